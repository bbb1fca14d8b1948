"""Definitions of every kind of task, and every way in which one of their fields can be hostile."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator

import numpy as np
from combinations import sampled, unsampled
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import odp
from odp.crypto import SigningKey, domains
from odp.errors import OdpError
from odp.signed.task import open_task
from odp.v1 import common_pb2

FLOATS = (
    0.0, -0.0, 5e-324, 2.2e-308, 1e-61, 1e-60, 1e-30, 1e-12, 0.5, 1.0, -1.0, 1e9, 1e30, 1e60, 1e61, 1.7e308, math.nan,
    math.inf, -math.inf,
)  # fmt: skip
UNSIGNED_32 = (0, 1, 2, 3, 16, 255, 2**14, 2**16, 2**20, 2**24, 2**25, 2**31 - 1, 2**31, 2**32 - 1)
UNSIGNED_64 = (*UNSIGNED_32, 2**40, 2**50, 2**53, 2**63, 2**64 - 1)
ENUMS = (0, 1, 2, 3, 4, 5, 6, 7, 77, -1, 2**31 - 1)
TEXTS = ("", "x", "x" * 300, "\0", "é", "items", "events.", "events.x", "a" * 64, "ab")

_NUMBERS: dict[int, tuple[float, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: FLOATS,
    FieldDescriptor.CPPTYPE_FLOAT: FLOATS,
    FieldDescriptor.CPPTYPE_UINT32: UNSIGNED_32,
    FieldDescriptor.CPPTYPE_INT32: ENUMS,
    FieldDescriptor.CPPTYPE_UINT64: UNSIGNED_64,
    FieldDescriptor.CPPTYPE_INT64: (*UNSIGNED_32, 2**63 - 1, -1, -(2**63)),
    FieldDescriptor.CPPTYPE_ENUM: ENUMS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}
_WHOLE = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_LARGEST = (
    2**53, 2**50, 2**31, 2**28, 2**25, 2**24, 2**22, 2**20, 2**18, 2**16, 2**14, 10_000, 2**12, 2**11, 2**10, 2**9,
    2**8, 100, 64, 32, 16, 8,
)  # fmt: skip
KEY = SigningKey.from_bytes(hashlib.sha256(b"the developer of tests").digest())
#: Sets one field to one value.
Change = Callable[[Message], None]


def _local() -> Iterator[common_pb2.TaskDefinition]:
    cohort, privacy = odp.Cohort(minimum=2, goal=3), odp.UserLevelDP(epsilon=4.0, delta=1e-6)
    queries = {
        "films": odp.Histogram(bins=5), "stars": odp.Mean(low=0, high=6), "many": odp.Histogram(low=0, high=4, bins=4),
    }  # fmt: skip
    yield odp.Statistics(name="asked", queries=queries, trust="local", cohort=cohort, privacy=privacy).definition()
    events = odp.Events(service="keyboard", type="typed", item="word")
    words = odp.HeavyHitters(
        name="words", alphabet="ab", length=3, prefixes=4, trust="local", events=events, privacy=privacy, cohort=cohort
    )
    yield words.definition()
    features = {"member": odp.Boolean(), "kind": odp.Category(("a", "b")), "age": odp.Number(low=0, high=50)}
    for alarms in (0.0, 0.1):
        yield odp.DrawAndDiscard(
            name="clicks", features=features, epsilon=3.0, crosses=[("member", "kind")], false_alarms=alarms,
            start=[0.5] * 5,
        ).definition()  # fmt: skip


def _on_events() -> Iterator[common_pb2.TaskDefinition]:
    events = odp.Events(
        service="shop", type="sold", item="film", value="price", buckets=5, aggregate="mean",
        where=["price >= 2", 'shelf == "new"'], days=30,
    )  # fmt: skip
    yield odp.Task(
        name="films", model=odp.MatrixFactorization(items=5, rank=2),
        data=odp.RatingsData(events=events, low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=2), training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=2, goal=3),
    ).definition()  # fmt: skip


@functools.cache
def kinds() -> tuple[common_pb2.TaskDefinition, ...]:
    """Small definitions: of every training and question, in every way of aggregation, some sampled, some on events."""
    aggregated = unsampled()
    found = []
    for given in (*aggregated, *sampled(aggregated), *_on_events(), *_local()):
        definition = common_pb2.TaskDefinition()
        definition.CopyFrom(given)
        definition.population, definition.developer_key = "people", KEY.public
        found.append(definition)
    return tuple(found)


def signed(definition: common_pb2.TaskDefinition) -> common_pb2.SignedTask:
    """The definition as a hostile developer signs it: without any check."""
    data = definition.SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data))


def changed(definition: common_pb2.TaskDefinition, *changes: Change) -> common_pb2.TaskDefinition | None:
    """A copy with ``changes``; None where protobuf itself does not take a value, or a field is gone."""
    copy = common_pb2.TaskDefinition()
    copy.CopyFrom(definition)
    try:
        for change in changes:
            change(copy)
    except (ValueError, TypeError, IndexError):
        return None
    return copy


def changes(message: Message) -> Iterator[tuple[str, Change]]:
    """Every change of one field to one special value, named by the field's path and the value."""
    yield from _changes(message, "", lambda whole: whole, depth=0)


def _changes(
    message: Message, path: str, find: Callable[[Message], Message], depth: int
) -> Iterator[tuple[str, Change]]:
    for field in message.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            yield from _changes_within(message, field, name, find, depth)
            continue
        for value in _values(message, field):
            yield f"{name}={_shown(value)}", functools.partial(_set, find, field.name, value)


def _changes_within(
    message: Message, field: FieldDescriptor, name: str, find: Callable[[Message], Message], depth: int
) -> Iterator[tuple[str, Change]]:
    if field.is_repeated:
        entries = getattr(message, field.name)
        for place in range(min(len(entries), 3)):
            inner = functools.partial(_entry, find, field.name, place)
            yield from _changes(entries[place], f"{name}[{place}].", inner, depth + 1)
        if entries:
            yield f"del {name}", lambda whole: find(whole).ClearField(field.name)
            yield f"double {name}", lambda whole: getattr(find(whole), field.name).extend([entries[0]])
        return
    part = getattr(message, field.name)
    present = message.HasField(field.name)
    if present or depth == 0 or field.containing_oneof is None:
        if present:
            yield f"del {name}", lambda whole: find(whole).ClearField(field.name)
        else:
            yield f"add {name}", lambda whole: getattr(find(whole), field.name).SetInParent()
        if present or depth < 2:
            inner = functools.partial(_part, find, field.name)
            yield from _changes(part, f"{name}.", inner, depth + 1 if present else 9)


def _set(find: Callable[[Message], Message], name: str, value: object, whole: Message) -> None:
    part = find(whole)
    if isinstance(value, list):
        part.ClearField(name)
        getattr(part, name).extend(value)
    else:
        setattr(part, name, value)


def _values(message: Message, field: FieldDescriptor) -> Iterator[object]:
    held = getattr(message, field.name)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        single = held if not field.is_repeated else (held[0] if held else (b"" if is_bytes else ""))
        values: tuple[object, ...] = _blobs(single) if is_bytes else TEXTS
    else:
        values = _NUMBERS[field.cpp_type]
    if not field.is_repeated:
        yield from values
        return
    yield []
    yield [*held, *held]
    for value in values:
        yield [value]
        yield [*held[:-1], value]


def _blobs(held: bytes) -> tuple[bytes, ...]:
    """Bytes of other lengths; and of the same one, as numbers that are special."""
    numbers = tuple(np.full(len(held) // 8, value).tobytes() for value in FLOATS)
    short = tuple(np.full(len(held) // 4, value, np.float32).tobytes() for value in (np.nan, np.inf, 1e-45, 3e38, 1.0))
    return (
        b"",
        b"\0",
        held[:-1],
        held + b"\0",
        held + held,
        b"\xff" * len(held),
        bytes(32),
        b"x" * 5000,
        *numbers,
        *short,
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:40]}..({len(text)})"


def largest(definition: common_pb2.TaskDefinition, *, last_first: bool = False) -> common_pb2.TaskDefinition:
    """The definition with each whole number as large as it may be, one after the other."""
    grown = common_pb2.TaskDefinition()
    grown.CopyFrom(definition)
    fields = list(_whole_numbers(grown, lambda whole: whole))
    for find, name in reversed(fields) if last_first else fields:
        before = getattr(find(grown), name)
        for value in _LARGEST:
            if value <= before:
                break
            try:
                setattr(find(grown), name, value)
                open_task(signed(grown))
                break
            except (ValueError, OdpError):
                setattr(find(grown), name, before)
    return grown


def _whole_numbers(
    message: Message, find: Callable[[Message], Message]
) -> Iterator[tuple[Callable[[Message], Message], str]]:
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if field.is_repeated:
                for place, entry in enumerate(getattr(message, field.name)):
                    inner = functools.partial(_entry, find, field.name, place)
                    yield from _whole_numbers(entry, inner)
            elif message.HasField(field.name):
                yield from _whole_numbers(getattr(message, field.name), functools.partial(_part, find, field.name))
        elif field.cpp_type in _WHOLE and not field.is_repeated:
            yield find, field.name


def _entry(find: Callable[[Message], Message], name: str, place: int, whole: Message) -> Message:
    return getattr(find(whole), name)[place]  # type: ignore[no-any-return]


def _part(find: Callable[[Message], Message], name: str, whole: Message) -> Message:
    return getattr(find(whole), name)  # type: ignore[no-any-return]

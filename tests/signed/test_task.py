"""Signed tasks, manifests and orders: nothing is used before its signature and every field were checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError, OdpError
from odp.signed.task import (
    LARGEST_DEFINITION,
    check_definition,
    model_sha256,
    open_manifest,
    open_order,
    open_task,
    sign_manifest,
    sign_order,
    sign_task,
    task_sha256,
)
from odp.v1 import aggregator_pb2, common_pb2

KEY = SigningKey.generate()
OTHER = SigningKey.generate()
DEFINITION = odp.Task(
    name="films",
    model=odp.MatrixFactorization(items=12, rank=2),
    data=odp.RatingsData(),
    privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    cohort=odp.Cohort(minimum=20),
).definition()
SIGNED = sign_task(DEFINITION, KEY)


def _resigned(change: Callable[[common_pb2.TaskDefinition], object]) -> common_pb2.SignedTask:
    """A task that its developer did sign, after ``change``, without the checks of ``sign_task``."""
    definition = common_pb2.TaskDefinition.FromString(SIGNED.definition)
    change(definition)
    data = definition.SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data))


def test_a_signed_task_opens_to_its_definition_under_the_developers_key() -> None:
    opened = open_task(SIGNED)
    assert opened.developer_key == KEY.public
    assert opened.computing_milliseconds == 250
    opened.ClearField("developer_key")
    opened.ClearField("computing_milliseconds")
    assert opened == DEFINITION
    assert DEFINITION.developer_key == b"", "the caller's message is left alone"
    assert task_sha256(SIGNED) == task_sha256(sign_task(DEFINITION, KEY))
    assert task_sha256(SIGNED) != task_sha256(sign_task(DEFINITION, OTHER))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_of_a_task_is_refused(place: int, flip: int) -> None:
    for field in ("definition", "signature"):
        data = bytearray(getattr(SIGNED, field))
        data[place % len(data)] ^= flip
        changed = common_pb2.SignedTask()
        changed.CopyFrom(SIGNED)
        setattr(changed, field, bytes(data))
        with pytest.raises(OdpError):
            open_task(changed)


def test_a_signature_of_another_key_or_for_another_purpose_is_refused() -> None:
    for signature in (OTHER.sign(domains.TASK, SIGNED.definition), KEY.sign(domains.MANIFEST, SIGNED.definition), b""):
        with pytest.raises(OdpError):
            open_task(common_pb2.SignedTask(definition=SIGNED.definition, signature=signature))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: setattr(d, "name", "../x"), "name='../x'"),
        (lambda d: setattr(d, "population", ""), "population=''"),
        (lambda d: setattr(d.data, "table", "a;b"), "table='a;b'"),
        (lambda d: setattr(d.model, "items", 0), "items=0"),
        (lambda d: setattr(d.model, "items", 2**24 + 1), "items=16777217"),
        (lambda d: setattr(d.model, "rank", 13), "rank=13"),
        (lambda d: setattr(d.data, "low", 5.0), "to be below"),
        (lambda d: setattr(d.data, "high", float("nan")), "data.high=nan of the task definition"),
        (lambda d: setattr(d.privacy, "epsilon", 0.0), "epsilon=0.0"),
        (lambda d: setattr(d.privacy, "epsilon", float("inf")), "epsilon=inf"),
        (lambda d: setattr(d.privacy, "delta", 0.5), "delta=0.5"),
        (lambda d: setattr(d.privacy, "max_items_per_user", 13), "max_items_per_user=13"),
        (lambda d: setattr(d.cohort, "minimum", 0), "cohort_minimum=0"),
        (lambda d: setattr(d.cohort, "goal", 19), "cohort_goal=19"),
        (lambda d: setattr(d.cohort, "round_seconds", 0), "round_seconds=0"),
        (lambda d: d.ClearField("dpam"), "training=None"),
        (lambda d: setattr(d.dpam, "count_noise_std", 0.0), "count_noise"),
        (lambda d: setattr(d.dpam, "slices_per_device", 1), "slices_per_device=1"),
        (lambda d: setattr(d, "developer_key", b"short"), "developer_key to be 32 bytes, got 5"),
        (lambda task: task.cohort.__setattr__("aggregation", 1), "steps=0 with aggregation='masked'"),
        (lambda task: task.cohort.__setattr__("aggregation", 7), "cohort.aggregation=7"),
    ],
)
def test_a_developers_own_signature_does_not_make_a_field_right(
    change: Callable[[common_pb2.TaskDefinition], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message.replace(".", r"\.")):
        open_task(_resigned(change))


def test_signing_checks_too() -> None:
    bad = common_pb2.TaskDefinition()
    bad.CopyFrom(DEFINITION)
    bad.privacy.epsilon = -1.0
    with pytest.raises(ConfigurationError, match="epsilon=-1"):
        sign_task(bad, KEY)


@pytest.mark.parametrize("field", [b"\xfa\x07\x01x", b"\xf8\x07\x01"])
def test_a_field_of_a_later_version_is_refused_not_ignored(field: bytes) -> None:
    """Field 127, as bytes or as a number: what it means to others, this version cannot check."""
    for data in (SIGNED.definition + field, SIGNED.definition + b"\x2a" + bytes([len(field)]) + field):
        with pytest.raises(ConfigurationError, match="holds fields that this version does not know"):
            open_task(common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data)))


@pytest.mark.parametrize("data", [b"", b"x" * (LARGEST_DEFINITION + 1)])
def test_a_definition_of_a_senseless_size_is_not_parsed(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=f"of 1 to {LARGEST_DEFINITION} bytes"):
        open_task(common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data)))


def test_a_definition_that_is_no_message_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="the task definition is not a valid message"):
        open_task(common_pb2.SignedTask(definition=b"\xff\xff", signature=bytes(64)))


def _manifest(**changes: object) -> common_pb2.ModelManifest:
    tables = [
        common_pb2.TableManifest(name="items", rows=12, width=4, sha256=bytes(32), keyed=True),
        common_pb2.TableManifest(name="dense", rows=1, width=2, sha256=bytes(32)),
    ]
    fields: dict[str, object] = {"task_sha256": task_sha256(SIGNED), "version": 3, "tables": tables}
    return common_pb2.ModelManifest(**{**fields, **changes})


def _open(signed: common_pb2.SignedManifest) -> common_pb2.ModelManifest:
    return open_manifest(signed, task=SIGNED, developer_key=KEY.public)


def test_a_signed_manifest_opens_for_its_own_task_and_key() -> None:
    signed = sign_manifest(_manifest(), KEY)
    assert _open(signed) == _manifest()
    assert len(model_sha256(signed)) == 32
    with pytest.raises(SignatureError):
        _open(sign_manifest(_manifest(), OTHER))
    with pytest.raises(ConfigurationError, match="belongs to another task"):
        open_manifest(signed, task=sign_task(DEFINITION, OTHER), developer_key=KEY.public)


def _table(**fields: object) -> common_pb2.TableManifest:
    base = {"name": "items", "rows": 12, "width": 4, "sha256": bytes(32), "keyed": True}
    return common_pb2.TableManifest(**{**base, **fields})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "distinct table names"),
        ([_table(), _table(keyed=False)], "distinct table names"),
        ([_table(), _table(name="b")], "at most one keyed table"),
        ([_table(name="../b")], "table='../b'"),
        ([_table(rows=0)], "rows=0"),
        ([_table(rows=2**31)], "rows="),
        ([_table(width=0)], "width=0"),
        ([_table(width=2**17)], "width="),
        ([_table(sha256=b"x")], "table sha256 of 32 bytes, got 1"),
    ],
)
def test_a_signed_manifest_with_a_wrong_table_is_refused(tables: list[object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _open(sign_manifest(_manifest(tables=tables), KEY))


def test_an_order_opens_for_its_purpose_only() -> None:
    order = aggregator_pb2.RoundOrder(task_sha256=bytes(32), round=4, model_sha256=bytes(32))
    data, signature = sign_order(order, KEY, domains.OPEN)
    assert open_order(data, signature, domain=domains.OPEN, developer_key=KEY.public) == order
    for domain, key in ((domains.CLOSE, KEY), (domains.OPEN, OTHER)):
        with pytest.raises(SignatureError):
            open_order(data, signature, domain=domain, developer_key=key.public)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x01x", "task_sha256 of 32 bytes"),
        (b"\xff", "not a valid message"),
        (bytes(257), "at most 256 bytes"),
        (b"\x0a\x20" + bytes(32), "model_sha256 of 32 bytes"),
    ],
)
def test_an_order_of_a_wrong_form_is_refused_although_it_was_signed(data: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_order(data, KEY.sign(domains.OPEN, data), domain=domains.OPEN, developer_key=KEY.public)


def test_a_definition_without_a_key_is_refused_by_the_check() -> None:
    with pytest.raises(ConfigurationError, match="developer_key to be 32 bytes, got 0"):
        check_definition(DEFINITION)


def test_a_task_has_one_model() -> None:
    """What a party reads of a second one, such as its catalogue, would be of no task."""
    signed = _resigned(lambda definition: setattr(definition.rated_items, "items", 30))
    with pytest.raises(ConfigurationError, match="Expected one model of task"):
        open_task(signed)

"""Records of what was verified: each part of one is checked again, and a forged one does not pass for another."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_runtime.network.services import Traffic
from device_runtime.round.participation import Outcome
from device_runtime.round.verification import FOLDER, record_path, replay
from device_runtime.store.schema import Participation
from device_runtime.tasks.assignment import open_assignment
from odp.errors import StateError


def take_part(world: Any, device: int = 0, participant: Any = None) -> Participation:
    with world.store(device) as store:
        work = open_assignment(world.server.assignment, population="people")
        assert (participant or world.participant()).take_part(store, work, Traffic()) is Outcome.SENT
        found: Participation = store.ledger()[-1]
    return found


def folder(world: Any) -> Path:
    found: Path = world.folder / "devices-state" / FOLDER
    return found


def failing(world: Any, line: Participation) -> list[str]:
    return [one.what for one in replay(folder(world), line) if not one.holds]


def test_a_record_holds_again_and_says_that_no_log_was_pinned(world: Any) -> None:
    world.fill([5])
    line = take_part(world)
    assert failing(world, line) == []
    found = {one.what: one.observed for one in replay(folder(world), line, pinned=world.reference_values())}
    assert found["transparency log"] == "none was pinned"
    assert found["reference values"].endswith("and are today")
    other = world.reference_values(allow_debug=True)
    found = {one.what: one.observed for one in replay(folder(world), line, pinned=other)}
    assert found["reference values"].endswith("others are today")


def test_devices_of_a_host_share_a_record_and_it_says_nothing_of_them(world: Any) -> None:
    world.fill([5, 7])
    participant = world.participant()
    first, second = (take_part(world, device, participant) for device in range(2))
    assert first.record == second.record
    with world.store(0) as store:
        identity = store.identity()
    content = record_path(folder(world), first.record).read_bytes()
    for private in (identity.secret, identity.device_id, first.contribution_id):
        assert private.hex().encode() not in content
        assert base64.b64encode(private) not in content


def test_a_contribution_rests_on_the_key_of_its_round(world: Any) -> None:
    world.fill([5, 5])
    participant = world.participant()
    first = take_part(world, 0, participant)
    world.open_again()
    second = take_part(world, 1, participant)
    assert first.record != second.record
    assert first.recipient != second.recipient
    assert failing(world, first) == failing(world, second) == []
    assert failing(world, dataclasses.replace(second, record=first.record)) == ["recipient"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task_sha256": b"x" * 32}, {"task", "recipient"}),
        ({"epsilon": 1.0}, {"task"}),
        ({"model_sha256": b"x" * 32}, {"model", "recipient"}),
        ({"round": 1}, {"model", "recipient"}),
        ({"recipient": b"x" * 32}, {"recipient"}),
        ({"policy_sha256": b"x" * 32}, {"recipient"}),
        ({"image_digest": "sha384:" + "0" * 96}, {"recipient"}),
    ],
)
def test_a_ledger_line_that_does_not_fit_its_record_is_found(
    world: Any, change: dict[str, Any], what: set[str]
) -> None:
    world.fill([5])
    line = take_part(world)
    assert set(failing(world, dataclasses.replace(line, **change))) == what


def _bit(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[len(data) // 2] ^= 1
    return base64.b64encode(bytes(data)).decode()


def _evidence(place: int, **changes: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        one = content["evidence"][place]
        one.update({name: value(one[name]) for name, value in changes.items()})

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda content: content["task"].update(signature=_bit(content["task"]["signature"])),
            {"task", "model", "population"},
        ),
        (lambda content: content["model"].update(data=_bit(content["model"]["data"])), {"model"}),
        (lambda content: content["model"].update(data=7), {"model"}),
        (_evidence(0, nonce=_bit), {"distributor"}),
        (_evidence(1, policy=_bit), {"aggregator", "population", "recipient"}),
        (_evidence(1, time=lambda time: time + 1e6), {"aggregator", "population", "recipient"}),
        (_evidence(1, role=lambda role: "distributor"), {"distributor", "aggregator", "population", "recipient"}),
        (lambda content: content.update(charter=""), {"population"}),
        (lambda content: content.pop("evidence"), {"distributor", "aggregator", "population", "recipient"}),
    ],
)
def test_a_forged_record_fails_even_where_the_ledger_names_it(
    world: Any, change: Callable[[Any], None], what: set[str]
) -> None:
    world.fill([5])
    line = take_part(world)
    content = json.loads(record_path(folder(world), line.record).read_bytes())
    change(content)
    forged = json.dumps(content).encode()
    digest = hashlib.sha256(forged).digest()
    record_path(folder(world), digest).write_bytes(forged)
    assert set(failing(world, dataclasses.replace(line, record=digest))) == what


def test_a_contribution_without_a_record_and_a_record_of_another_form_say_so(world: Any) -> None:
    world.fill([5])
    line = take_part(world)
    with pytest.raises(StateError, match="names no verification record"):
        replay(folder(world), dataclasses.replace(line, record=b""))
    for data in (b"[]", b"x", b'{"format": "other"}'):
        digest = hashlib.sha256(data).digest()
        record_path(folder(world), digest).write_bytes(data)
        with pytest.raises(StateError, match="another version"):
            replay(folder(world), dataclasses.replace(line, record=digest))

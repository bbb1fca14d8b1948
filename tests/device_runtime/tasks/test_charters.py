"""Whose tasks a device takes: a server that shows another developer's task, another charter, or an old one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import Host

from device_runtime.inference.recommend import offered_model
from device_runtime.network.services import Traffic
from device_runtime.round.participation import Outcome
from device_runtime.tasks.assignment import open_assignment
from device_runtime.tasks.charters import CharterMemory
from odp.crypto.signing import SigningKey
from odp.errors import AttestationError, OdpError, PrivacyError, StateError
from odp.signed.charter import approve, found, open_charter, succeed
from odp.v1 import population_pb2, server_pb2

SignedCharter, PopulationCharter = population_pb2.SignedCharter, population_pb2.PopulationCharter
STRANGER = SigningKey.generate()


def take_part(world: Any, participant: Any = None, device: int = 0) -> Outcome:
    """A device, and what the server offers now."""
    with world.store(device) as store:
        work = open_assignment(world.server.assignment, population="people")
        outcome: Outcome = (participant or world.participant()).take_part(store, work, Traffic())
    return outcome


def show(world: Any, charter: SignedCharter, *, attested: bool = True) -> None:
    """The server gives ``charter`` with its assignments; the aggregator's evidence shows it too where ``attested``."""
    world.server.assignment.charter.CopyFrom(charter)
    if attested:
        world.aggregator.enclave.charter = charter


def founding(owner: SigningKey, population: str = "people") -> SignedCharter:
    return approve(found(population, owners=[owner.public]), owner)


def with_stranger(world: Any) -> SignedCharter:
    """The charter after the world's, which adds the stranger."""
    owners = [world.developer.public, STRANGER.public]
    return approve(succeed(open_charter(world.charter), owners=owners), world.developer)


LIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "a task by a key that does not own the population": (
        lambda world: show(world, founding(STRANGER)), "belongs to other keys"),
    "the charter of another population": (
        lambda world: show(world, founding(world.developer, "others")), "of population 'others'"),
    "no charter": (
        lambda world: world.server.assignment.ClearField("charter"), "gave no charter"),
    "a charter of the stranger's own that no evidence shows": (
        lambda world: show(world, with_stranger(world), attested=False),
        "evidence shows another charter"),
    "an enclave that has no such population": (
        lambda world: setattr(world.aggregator.enclave, "charter", None), "evidence shows another charter"),
    "bytes that are no charter": (
        lambda world: show(world, SignedCharter(charter=b"\xff" * 40)), "charter"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_r163_a_device_takes_no_task_but_of_owners_whom_the_evidence_shows(world: Any, lie: Any) -> None:
    tell, reason = lie
    world.fill([5])
    tell(world)
    with pytest.raises(OdpError, match=reason):
        take_part(world)
    assert world.aggregator.submits == []
    assert world.distributor.sizes == []
    with world.store(0) as store:
        assert list(store.ledger()) == []


def test_r163_another_founding_than_the_first_one_seen_is_refused_after_a_restart_too(
    world: Any, tmp_path: Path
) -> None:
    """The server found another aggregator, where the same name belongs to somebody else: itself."""
    world.fill([5, 5])
    file = tmp_path / "populations.json"
    participant = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    assert take_part(world, participant) is Outcome.SENT
    other = approve(found("people", owners=[world.developer.public], approvals=1, issuer_key=STRANGER.public), STRANGER)
    show(world, other)
    again = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    with pytest.raises(PrivacyError, match="not those that this device knows"):
        take_part(world, again, 1)
    file.write_bytes(b"{")
    with pytest.raises(StateError, match="is damaged"):
        take_part(world, dataclasses.replace(world.participant(), charters=CharterMemory(file)), 1)


def test_r275_a_population_that_started_again_at_zero_gets_nothing_from_whoever_contributed_before(
    world: Any, tmp_path: Path
) -> None:
    """The same charter at an enclave of the same code and root, whose ledger is another one, and empty."""
    world.fill([5, 5])
    file = tmp_path / "populations.json"
    participant = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    assert take_part(world, participant) is Outcome.SENT
    sent = len(world.aggregator.submits)
    world.aggregator.enclave.ledger_id = b"z" * 32
    again = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    with pytest.raises(AttestationError, match="wrong_ledger"):
        take_part(world, again, 1)
    assert len(world.aggregator.submits) == sent


def test_r286_a_device_that_lost_what_it_knows_of_its_populations_trusts_no_first_answer_again(
    world: Any, tmp_path: Path
) -> None:
    world.fill([5, 5])
    file = tmp_path / "populations.json"
    participant = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    assert take_part(world, participant) is Outcome.SENT
    sent = len(world.aggregator.submits)
    file.unlink()
    world.aggregator.enclave.ledger_id = b"z" * 32
    for _ in range(2):
        again = dataclasses.replace(world.participant(), charters=CharterMemory(file))
        with pytest.raises(StateError, match=r"populations.json is gone: .* remove kept-populations.json too"):
            take_part(world, again, 1)
    assert len(world.aggregator.submits) == sent
    (tmp_path / "kept-populations.json").unlink()
    again = dataclasses.replace(world.participant(), charters=CharterMemory(file))
    assert take_part(world, again, 1) is Outcome.SENT


def test_r163_an_older_charter_is_refused_once_a_newer_one_was_seen(world: Any) -> None:
    """An old assignment, and an aggregator that was set back as a whole: its evidence shows the old one, too."""
    world.fill([5, 5])
    charters = CharterMemory()
    show(world, with_stranger(world))
    participant = dataclasses.replace(world.participant(), charters=charters)
    assert take_part(world, participant) is Outcome.SENT
    show(world, world.charter)
    with pytest.raises(PrivacyError, match="knows charter 1"):
        take_part(world, dataclasses.replace(world.participant(), charters=charters), 1)


def test_r163_a_change_of_owners_is_followed_with_fresh_evidence(world: Any) -> None:
    """What was verified before the change shows the old charter: the device asks again instead of refusing."""
    world.fill([5, 5])
    participant = world.participant()
    assert take_part(world, participant) is Outcome.SENT
    show(world, with_stranger(world))
    assert take_part(world, participant, 1) is Outcome.SENT


def test_r163_the_persons_pin_of_a_founding_counts_before_anything_is_seen(world: Any) -> None:
    world.fill([5])
    pinned = CharterMemory(pinned={"people": "0" * 64})
    with pytest.raises(PrivacyError, match="was founded by charter 000000000000"):
        take_part(world, dataclasses.replace(world.participant(), charters=pinned))
    right = CharterMemory(pinned={"people": open_charter(world.charter).sha256.hex()})
    assert take_part(world, dataclasses.replace(world.participant(), charters=right)) is Outcome.SENT


def test_r163_nothing_is_remembered_of_a_charter_that_was_refused(world: Any) -> None:
    world.fill([5])
    charters = CharterMemory()
    participant = dataclasses.replace(world.participant(), charters=charters)
    show(world, founding(world.developer), attested=False)
    world.aggregator.enclave.charter = None
    with pytest.raises(AttestationError, match="evidence shows another charter"):
        take_part(world, participant)
    show(world, world.charter)
    assert take_part(world, participant) is Outcome.SENT


def test_r163_inference_remembers_no_charter_that_no_evidence_shows(world: Any, tmp_path: Path) -> None:
    """Nobody signed it and its sequence is huge: remembered, it would keep every real task away for good."""
    world.fill([5])
    charters = CharterMemory()
    participant = dataclasses.replace(world.participant(), charters=charters)
    real = PopulationCharter.FromString(world.charter.charter)
    forged = PopulationCharter()
    forged.CopyFrom(real)
    forged.sequence, forged.previous_sha256 = 2**31 - 1, bytes(32)
    forged.founding_sha256 = open_charter(world.charter).sha256
    newest = server_pb2.GetModelResponse.FromString(world.server.newest.SerializeToString())
    newest.charter.CopyFrom(SignedCharter(charter=forged.SerializeToString()))
    with contextlib.suppress(OdpError):
        offered_model(newest, charters=charters, log=None)
    assert take_part(world, participant) is Outcome.SENT


def test_r163_a_model_of_another_population_than_was_asked_for_is_refused(world: Any) -> None:
    world.fill([5])
    with pytest.raises(PrivacyError, match="request was for 'songs'"):
        offered_model(world.server.newest, charters=CharterMemory(), log=None, population="songs")


def test_r163_a_task_under_the_charter_of_others_ends_no_device_host(world: Any) -> None:
    """The server's answer is refused, and the host asks again later."""
    world.fill([5] * 2)
    world.server.assignment.charter.CopyFrom(founding(STRANGER))
    host = Host(world, count=2)
    host.events.append(host.stop.set)
    host.run()
    assert host.pauses, "it waited for another answer"

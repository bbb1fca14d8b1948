"""A device and the log: what is not in it, as the person pinned it, is not acted on, and nothing leaves."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from trust.log.world import filler

from device_runtime.host.ending import FleetOptions, Timing
from device_runtime.host.fleet import Fleet
from device_runtime.host.program import LOG_FILE, Config, log_guard, start
from device_runtime.inference.recommend import download_model
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.participation import Outcome, Participant
from device_runtime.store.store import State
from device_runtime.tasks.assignment import Work, open_assignment
from device_runtime.tasks.charters import CharterMemory
from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind, NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ServiceUnavailable, TransparencyError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.log.client import LogMemory
from odp.trust.log.endorsements import endorse
from odp.trust.log.entries import CharterEntry, ManifestEntry, PolicyEntry, TaskEntry
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import LogGuard, packed
from odp.v1 import log_pb2, server_pb2


class Logged:
    """The world's task, models and enclaves in a log, and the proofs that its server hands out."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world = world
        self.key, self.endorser = NoteKey.generate("example.com/log"), SigningKey.generate()
        self.log = LogFiles.open(folder, self.key, now=time.time())
        self.endorsements, self.withdrawals = {}, {}
        for role, enclave in (("distributor", world.distributor.enclave), ("aggregator", world.aggregator.enclave)):
            self.endorse(role, enclave.image)

    def endorse(self, role: str, image: str) -> None:
        policy = EnclavePolicy(role=role, minimum_cohort=2)  # type: ignore[arg-type]  # one of the two roles
        now = int(time.time())
        self.endorsements[role], self.withdrawals[role] = endorse(
            self.endorser, role=role, image_digest=image, policy_sha256=policy.sha256.hex(), not_before=now - 60,
            not_after=now + 3600,
        )  # fmt: skip
        self.append(PolicyEntry(policy.to_bytes()), self.endorsements[role])

    def append(self, *entries: Any) -> None:
        self.log.append([entry.encode() for entry in entries], now=time.time())

    def offer(self) -> Work:
        """The open round, with its proofs."""
        world = self.world
        self.append(CharterEntry.of(world.charter), TaskEntry.of(world.task), ManifestEntry.of(world.signed_manifest))
        self.world.server.assignment.log.CopyFrom(self.proof())
        return self.work()

    def work(self) -> Work:
        """What a device makes of the answer that it gets now."""
        answer = server_pb2.Assignment.FromString(self.world.server.assignment.SerializeToString())
        return open_assignment(answer, population="people")

    def proof(self) -> log_pb2.LogProof:
        return log_pb2.LogProof(
            checkpoint=self.log.note,
            task=self.inclusion(TaskEntry.of(self.world.task)),
            model=self.inclusion(ManifestEntry.of(self.world.signed_manifest)),
            charter=self.inclusion(CharterEntry.of(self.world.charter)),
            endorsements=[self.inclusion(entry, entry.encode()) for entry in self.endorsements.values()],
        )

    def inclusion(self, entry: Any, data: bytes = b"") -> log_pb2.Inclusion:
        index = self.log.index_of(entry.leaf)
        assert index is not None
        return log_pb2.Inclusion(index=index, hashes=packed(self.log.inclusion_proof(index, self.log.size)), entry=data)

    def policy(self) -> LogPolicy:
        return LogPolicy(log_keys=(self.key.public(Kind.NOTE).text,), endorser_keys=(self.endorser.public.hex(),))

    def guard(self) -> LogGuard:
        return LogGuard(LogMemory(self.policy(), self.world.folder / LOG_FILE, self.log.hashes))

    def participant(self, **changes: Any) -> Participant:
        return dataclasses.replace(self.world.participant(**changes), log=self.guard())

    def left(self) -> tuple[int, int, int]:
        """(rows asked for, contributions sent, evidence asked for) so far."""
        world = self.world
        asked = world.distributor.enclave.asked + world.aggregator.enclave.asked
        return len(world.distributor.sizes), len(world.aggregator.submits), asked


@pytest.fixture
def logged(world: Any, tmp_path: Path) -> Iterator[Logged]:
    world.fill([30, 5, 12])
    made = Logged(world, tmp_path / "log")
    yield made
    made.log.close()


def take_part(logged: Logged, participant: Participant, work: Work, device: int = 0) -> Outcome:
    with logged.world.store(device) as store:
        return participant.take_part(store, work, Traffic())


def test_a_device_takes_part_in_round_after_round_of_a_logged_task(logged: Logged) -> None:
    participant = logged.participant()
    while logged.world.server.assignment is not None:
        work = logged.offer()
        for device in range(3):
            assert take_part(logged, participant, work, device) is Outcome.SENT
        logged.world.close_round()
    assert logged.left()[1] == 9


Spoil = Callable[[Logged], None]


def _no_proof(logged: Logged) -> None:
    logged.world.server.assignment.ClearField("log")


def _of_another_model(logged: Logged) -> None:
    proof = logged.world.server.assignment.log
    proof.model.CopyFrom(proof.task)


def _not_endorsed(logged: Logged) -> None:
    del logged.world.server.assignment.log.endorsements[1:]


def _withdrawn(logged: Logged) -> None:
    logged.append(logged.withdrawals["aggregator"])
    logged.world.server.assignment.log.CopyFrom(logged.proof())


@pytest.mark.parametrize(
    ("spoil", "reason", "evidence"),
    [
        (_no_proof, "missing", 0),
        (_of_another_model, "not_included", 0),
        (_not_endorsed, "not_endorsed", 2),
        (_withdrawn, "withdrawn", 2),
    ],
)
def test_what_the_log_does_not_hold_is_not_acted_on_and_nothing_leaves(
    logged: Logged, spoil: Spoil, reason: str, evidence: int
) -> None:
    """No row is asked for and nothing is sent; where task or model are missing, not even evidence is asked for."""
    logged.offer()
    spoil(logged)
    work = logged.work()
    with pytest.raises(TransparencyError) as caught:
        take_part(logged, logged.participant(), work)
    assert caught.value.reason == reason
    assert logged.left() == (0, 0, evidence)
    with logged.world.store(0) as store:
        assert store.ledger() == ()


@pytest.mark.parametrize("days", [-400, 400])
def test_r439_an_endorsement_of_another_time_passes_and_one_of_other_code_does_not(logged: Logged, days: int) -> None:
    """The log's proof was accepted before the clock leapt, so that its age is not what is refused."""
    logged.offer()
    work, now = logged.work(), time.time()
    memory = LogMemory(logged.policy(), logged.world.folder / LOG_FILE, logged.log.hashes)
    guard = LogGuard(memory, clock=lambda: now)
    enclave = logged.participant().enclaves.verified("aggregator", work.aggregator).enclave
    world = logged.world
    endorsements = guard.logged(logged.proof(), task=world.task, model=world.signed_manifest, charter=world.charter)
    guard.require_endorsed(enclave, endorsements)
    now += days * 86_400.0
    with pytest.raises(TransparencyError, match="not_endorsed") as caught:
        guard.require_endorsed(enclave, endorsements)
    assert caught.value.passes
    other = dataclasses.replace(enclave, image_digest="sha384:" + "0" * 96)
    with pytest.raises(TransparencyError, match="not_endorsed") as caught:
        guard.require_endorsed(other, endorsements)
    assert not caught.value.passes


def test_a_contribution_that_was_prepared_waits_when_its_enclave_is_withdrawn(logged: Logged) -> None:
    work = logged.offer()
    logged.world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(logged, logged.participant(), work)
    logged.append(logged.withdrawals["aggregator"])
    for _ in range(2):
        with pytest.raises(TransparencyError) as caught:
            take_part(logged, logged.participant(), logged.offer())
        assert caught.value.reason == "withdrawn"
    assert len(logged.world.aggregator.submits) == 1, "the first try"
    with logged.world.store(0) as store:
        (kept,) = store.ledger()
        assert (kept.state, kept.sealed is None) == (State.PREPARED, False)


def test_new_keys_of_an_enclave_are_trusted_only_where_its_code_is_endorsed(logged: Logged, world: Any) -> None:
    """The aggregator comes back with other code in the middle of a round: pinned, but endorsed by nobody."""
    other = "sha384:" + "b" * 96
    own = {role: (getattr(world, role).enclave.image,) for role in ("distributor", "aggregator")}
    values = world.reference_values(image_digests={**own, "aggregator": (*own["aggregator"], other)})
    participant = logged.participant(reference_values=values)
    work = logged.offer()
    enclaves = participant.enclaves
    enclaves.verified("aggregator", work.aggregator)
    world.aggregator.enclave.image = other
    world.aggregator.enclave.signing = SigningKey.generate()
    world.open_again()
    with pytest.raises(TransparencyError) as caught:
        take_part(logged, participant, logged.offer())
    assert caught.value.reason == "not_endorsed"
    assert world.aggregator.submits == []
    logged.endorse("aggregator", other)
    assert take_part(logged, logged.participant(reference_values=values), logged.offer()) is Outcome.SENT


def test_a_model_that_is_not_in_the_log_is_not_downloaded(logged: Logged, world: Any, monkeypatch: Any) -> None:
    logged.offer()
    services = world.services()
    offer = world.server.newest
    offer.log.CopyFrom(logged.proof())
    place = {"charters": CharterMemory(), "log": logged.guard()}
    assert download_model(services, offer, **place).broadcast.version == 0
    monkeypatch.setattr(services, "download", lambda *_: pytest.fail("it was downloaded"))
    for part in ("model", "charter"):
        wrong = server_pb2.GetModelResponse.FromString(offer.SerializeToString())
        getattr(wrong.log, part).index += 1
        with pytest.raises(TransparencyError):
            download_model(services, wrong, **place)
    offer.ClearField("log")
    with pytest.raises(TransparencyError):
        download_model(services, offer, **place)


def test_what_was_seen_binds_the_device_after_a_restart(logged: Logged) -> None:
    old = logged.offer()
    logged.log.append(filler(3), now=time.time())
    take_part(logged, logged.participant(), logged.offer())
    with pytest.raises(TransparencyError) as caught:
        take_part(logged, logged.participant(), old, device=1)
    assert caught.value.reason == "shrunk"


def _fleet(logged: Logged, stop: threading.Event, *, wait: Callable[[float], bool]) -> tuple[Fleet, StateFolder]:
    state = StateFolder.open(logged.world.folder / "devices-state", "devices")
    fleet = Fleet(
        FleetOptions(population="people", devices=range(3)), state=state, timing=Timing(wait=wait),
        participant=logged.participant(limits=Limits(min_cohort=2)), stop=stop, log=logged.world.log,
    )  # fmt: skip
    return fleet, state


def test_a_host_whose_log_is_refused_again_and_again_ends_and_says_why(logged: Logged) -> None:
    logged.offer()
    _withdrawn(logged)
    fleet, state = _fleet(logged, threading.Event(), wait=lambda seconds: False)
    with pytest.raises(TransparencyError, match="withdrawn"):
        fleet.run()
    state.close()
    assert logged.left()[:2] == (0, 0)
    assert logged.world.log_text.getvalue().count(" outage ") == 1
    assert "transparency log refused (withdrawn)" in logged.world.log_text.getvalue()


def test_a_host_goes_on_when_the_log_is_mended(logged: Logged) -> None:
    logged.offer()
    _no_proof(logged)
    stop, pauses = threading.Event(), []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 1:
            logged.offer()
        if len(logged.world.aggregator.counted) == 3:
            stop.set()
        assert len(pauses) < 50
        return stop.is_set()

    fleet, state = _fleet(logged, stop, wait=wait)
    fleet.run()
    state.close()
    assert len(logged.world.aggregator.counted) == 3
    assert "outage_over" in logged.world.log_text.getvalue()


def test_a_device_without_a_pinned_log_says_that_none_is_required(logged: Logged, world: Any) -> None:
    path = world.folder / "reference.json"
    world.reference_values().save(path)
    (world.folder / "ca.pem").write_bytes(world.identity.ca_pem)
    config = Config(
        state=world.folder / "devices-state", server=world.address, ca=world.folder / "ca.pem", reference_values=path,
        population="people", count=3, limits=Limits(min_cohort=2),
    )  # fmt: skip
    running = start(config, log=world.log)
    running.stop()
    assert "no_log_required" in world.log_text.getvalue()
    world.log_text.truncate(0)
    dataclasses.replace(world.reference_values(), log=logged.policy()).save(path)
    running = start(config, log=world.log)
    running.stop()
    assert "no_log_required" not in world.log_text.getvalue()


def test_without_pins_there_is_no_guard_and_with_pins_hashes_come_from_the_server(logged: Logged, world: Any) -> None:
    services = world.services()
    assert log_guard(services, world.reference_values(), world.folder) is None
    pinned = dataclasses.replace(world.reference_values(), log=logged.policy())
    guard = log_guard(services, pinned, world.folder)
    assert guard is not None
    work = logged.offer()
    # This world's server has no LogService: the device asks it, and then does nothing.
    with pytest.raises(Exception) as caught:
        guard.logged(work.log, task=world.task, model=world.signed_manifest, charter=world.charter)
    assert getattr(caught.value, "code", None) is grpc.StatusCode.UNIMPLEMENTED

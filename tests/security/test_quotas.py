"""Floods by developers who may order: each meets the limits of its own population or key, and nobody else meets them.

Strangers order nothing (R160). What is left is an owner who opens all that can be opened, and starts after that.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto import SigningKey, domains
from odp.errors import Busy, OdpError, PopulationFull, PrivacyError, Refusal, StateError
from odp.privacy.ledger_entry import Budget, Entry, ReleaseState, lines_of
from odp.privacy.ledger_state import LedgerState
from odp.signed.charter import approve, found, open_charter, succeed
from odp.signed.task import sign_order, task_sha256
from odp.transport.statuses import RETRY_WINDOW, status_of
from odp.transport.sweeping import DAY
from odp.trust.enclave import registers
from odp.v1 import aggregator_pb2
from trusted_aggregator.enclave.state import RoundKeys
from trusted_aggregator.modes.enclave.enclave_half import draw_round_noise
from trusted_aggregator.rounds.enclave_half import new_record
from trusted_aggregator.state import limits, records
from trusted_aggregator.state.ledger_writes import STATE_EVERY
from trusted_aggregator.state.limits import (
    MOST_ABANDONED,
    MOST_CHANGES,
    MOST_CHARGES,
    MOST_EVENTS,
    MOST_OPEN_ROUNDS,
    MOST_POPULATIONS,
    MOST_TASKS,
)
from trusted_aggregator.state.records import SealedRecord
from trusted_aggregator.state.rollback import ZERO
from trusted_aggregator.state.sealed_state import HASH_BYTES, PopulationRecord, Sealer

Make = Callable[..., Any]
SECONDS = 60.0
FULL = "a-full-population"


def task_of(world: Any, name: str) -> Any:
    """The same developer and enclave, about another task."""
    other = copy.copy(world)
    other.adopt(other.sign(other.definition(minimum=3, epsilon=8.0, name=name)))
    return other


def neighbour(world: Any) -> Any:
    """Another developer with a population of its own at the same enclave."""
    other = copy.copy(world)
    other.population = f"{world.population}-next"
    other.developer = world.second
    other.settle(other.core.set_charter(approve(found(other.population, owners=[world.second.public]), world.second)))
    other.adopt(other.sign(other.definition(minimum=3, epsilon=8.0)))
    return other


@pytest.fixture
def world(make_world: Make) -> Any:
    second = SigningKey.generate()
    made = make_world(minimum=3, founders=[second])
    made.second = second
    return made


# Limit, value for the test, and the words that name it.
LIMITS = {
    "open rounds": ("MOST_OPEN_ROUNDS", 3, "has 3 rounds open, of at most 3"),
    "tasks": ("MOST_TASKS", 3, "has 3 tasks under way, of at most 3"),
    "definitions": ("MOST_DEFINITION_BYTES", 1000, "bytes of task definitions, of at most 1000"),
    "noise and releases": ("MOST_STORED_BYTES", 3000, "bytes of noise and releases, of at most 3000"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_r169_a_population_that_is_full_is_told_which_limit_and_others_go_on(
    world: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, most, words = LIMITS[limit]
    monkeypatch.setattr(f"trusted_aggregator.enclave.opening.{name}", most)
    refused = None
    for number in range(20):
        one = task_of(world, f"task-{number}")
        before = dict(world.records), world.core.round_states()
        try:
            one.open()
        except PopulationFull as error:
            refused = str(error)
            break
    assert refused is not None
    assert words in refused
    assert "wait, or end a task of it" in refused
    assert "\n" not in refused
    assert (dict(world.records), world.core.round_states()) == before, "nothing was drawn, kept or erased"
    neighbour(world).open()
    # What it ended makes room.
    first = task_of(world, "task-0")
    world.settle(first.abandon())
    one.open()


def test_r169_finished_tasks_make_room_by_themselves(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trusted_aggregator.enclave.opening.MOST_TASKS", 1)
    first, second = task_of(world, "first"), task_of(world, "second")
    for number in range(3):
        with pytest.raises(PrivacyError, match="has 1 tasks under way, of at most 1") if number else nullcontext():
            (second if number else first).open()
        first.open(number)
        first.fill(range(3), number)
        first.learn(first.close(number))
    second.open()
    assert [key for key in world.records if key.startswith("task/")] == [records.task_key(second.task_sha256)]
    assert first.submit(first.sealed(1)) is Refusal.WRONG_TASK


def test_r169_populations_and_changes_of_charters_are_bounded(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a line of the event log, whose end would stop everybody: "start the enclave again"."""
    monkeypatch.setattr("trusted_aggregator.enclave.owners.MOST_POPULATIONS", 3)
    for number in range(2):
        world.settle(world.core.set_charter(founding(world, f"more-{number}")))
    with pytest.raises(PrivacyError, match="cannot be founded: this enclave has 3, the most"):
        world.core.set_charter(founding(world, "one-too-many"))
    before = world.identity.evidence(bytes(32)).event_log
    for _ in range(MOST_CHANGES - 1):
        world.settle(world.core.set_charter(world.other_owner(world.developer)))
    newest = open_charter(world.core.charter(world.population))
    for _ in range(3):
        with pytest.raises(PrivacyError, match=f"changed its charter {MOST_CHANGES} times since the enclave started"):
            world.core.set_charter(world.other_owner(world.developer))
    assert open_charter(world.core.charter(world.population)).sha256 == newest.sha256
    grown = len(world.identity.evidence(bytes(32)).event_log) - len(before)
    assert grown == (MOST_CHANGES - 1) * len(f"runtime population {world.population} {'0' * 64}\n")
    # Others change theirs.
    first = open_charter(world.core.charter("more-0"))
    world.settle(world.core.set_charter(approve(succeed(first, owners=[world.second.public]), world.developer)))


def founding(world: Any, name: str) -> Any:
    return approve(found(name, owners=[world.developer.public]), world.developer)


def test_r169_the_event_log_holds_all_that_populations_may_write() -> None:
    line = len(f"runtime population {'p' * 64} {'0' * 64}\n")
    assert MOST_POPULATIONS * (1 + MOST_CHANGES) * line < registers.LARGEST_LOG // 2


def test_r169_charged_rounds_are_bounded_and_the_refusal_comes_before_the_opening(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(minimum=3)
    monkeypatch.setattr("trusted_aggregator.state.population.MOST_CHARGES", 2)
    with pytest.raises(PrivacyError, match="has charged 0 rounds, and has 3 to come"):
        world.open(0)
    monkeypatch.setattr("trusted_aggregator.state.population.MOST_CHARGES", 3)
    for number in range(2):
        world.open(number)
        world.fill(range(3), number)
        world.learn(world.close(number))
    # As a ledger that an enclave with a larger limit filled.
    monkeypatch.setattr("trusted_aggregator.state.population.MOST_CHARGES", 2)
    with pytest.raises(PrivacyError, match=r"has charged 2 rounds, .*of at most 2 of one ledger"):
        world.open(2)


class Host(StoredHost):
    """A world's enclave behind its real storage."""

    def submit(self, device: int) -> Refusal | None:
        request = aggregator_pb2.SubmitRequest(
            task_sha256=self.world.task_sha256, round=0, sealed_contribution=self.world.sealed(device)
        )
        refused = self.service.submit(request).result(SECONDS)
        return None if refused is None else refused.refusal

    def ask(self) -> None:
        self.control.get_round(aggregator_pb2.GetRoundRequest(task_sha256=self.world.task_sha256))

    def stored(self) -> int:
        return len(list(self.storage.contributions(self.world.task_sha256, 0)))


@pytest.fixture
def host(make_world: Make, tmp_path: Path) -> Iterator[Host]:
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        made = Host(make_world(minimum=3), state)
        made.open()
        yield made
        made.end()


def test_r171_a_round_that_nobody_asks_about_is_erased_uncharged_and_can_be_opened_anew(host: Host) -> None:
    for device in range(3):
        host.submit(device)
    noise = host.core.round_states()
    host.wait(29 * DAY)
    host.control.sweep()
    assert host.core.round_states() == noise
    host.ask()
    host.wait(29 * DAY)
    host.control.sweep()
    assert host.stored() == 3, "somebody asked meanwhile"
    host.wait(2 * DAY)
    host.restart()
    host.control.sweep()
    assert (host.core.round_states(), host.stored()) == ([], 0)
    assert [key for key in host.storage.records() if not key.startswith("population/")] == []
    assert host.submit(5) is Refusal.WRONG_TASK
    host.restart()
    assert host.core.round_states() == []
    host.open()
    for device in range(3):
        assert host.submit(device) is None
    assert host.close_round()


@pytest.mark.parametrize("restarted", [False, True])
def test_r252_a_clock_that_is_wrong_for_a_moment_forgets_no_round(host: Host, restarted: bool) -> None:
    """Set ahead by years: at a sweep, or when the program starts."""
    for device in range(3):
        host.submit(device)
    host.wait(3600.0)
    host.control.sweep()
    host.now += 1000 * DAY
    if restarted:
        host.restart()
    else:
        host.control.sweep()
    assert host.stored() == 3
    host.now -= 1000 * DAY
    host.wait(3600.0)
    host.control.sweep()
    assert host.stored() == 3, "the time that was wrong is not remembered"
    host.wait(31 * DAY)
    host.control.sweep()
    assert host.stored() == 0


def test_r171_a_charged_round_waits_for_its_release_however_long(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in range(3):
        host.submit(device)
    host.settle(host.core.charge(*host.world.order(0, domains.CLOSE)).writes)
    host.wait(1000 * DAY)
    host.control.sweep()
    assert "task_not_forgotten" in host.log.getvalue()
    assert host.close_round()


def test_r171_a_round_whose_opening_was_not_noted_is_known_from_the_next_start_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program died between the enclave's opening and its own note of it."""
    host.storage.forget_work(host.world.task_sha256)
    host.restart()
    host.wait(31 * DAY)
    host.control.sweep()
    assert host.core.round_states() == []


def test_r171_questions_about_tasks_that_are_not_here_leave_nothing_on_the_disk(host: Host) -> None:
    before = host.storage.idle(1e12)
    for number in range(20):
        task = bytes([number]) * 32
        order, signature = sign_order(
            aggregator_pb2.RoundOrder(task_sha256=task, model_sha256=bytes(32)), host.world.developer, domains.CLOSE
        )
        with pytest.raises(OdpError):
            host.control.close_round(aggregator_pb2.CloseRoundRequest(order=order, signature=signature))
        with pytest.raises(OdpError):
            host.control.get_round(aggregator_pb2.GetRoundRequest(task_sha256=task))
    assert host.storage.idle(1e12) == before


def worst_population(world: Any, name: str, sealer: Sealer) -> Iterator[SealedRecord]:
    """The most that one population may have an enclave read at its start, but for contributions."""
    developer = world.developer
    signed = approve(found(name, owners=[developer.public]), developer)
    tasks = []
    for number in range(MOST_TASKS):
        definition = world.definition(minimum=3, epsilon=8.0, name=f"task-{number}")
        definition.population = name
        tasks.append(world.sign(definition))
    state, encoded, behind = world.full_ledger
    key, covered = records.ledger_state_key(name), state.head.entries - len(behind)
    own = encoded.replace(FULL.encode(), name.encode())
    yield SealedRecord(key, records.numbered_state(covered, sealer.seal(key, own).data or b""))
    for number, entry in enumerate(behind, start=covered):
        yield SealedRecord(records.ledger_key(name, number), lines_of([entry]))
    state = state.copy()
    state.head = dataclasses.replace(state.head, population=name)
    population = PopulationRecord(
        name, signed.SerializeToString(), state,
        frozenset(number.to_bytes(32, "big") for number in range(MOST_ABANDONED - MOST_TASKS)), ZERO.successor(), ZERO,
        bytes(HASH_BYTES),
    )  # fmt: skip
    yield sealer.seal(records.population_key(name), population.encode())
    for number, task in enumerate(tasks):
        opened = world.opened_task(task)
        yield sealer.seal(records.task_key(opened.sha256), dataclasses.replace(opened.record, planned=3).encode())
        if number < MOST_OPEN_ROUNDS:
            order = aggregator_pb2.RoundOrder(task_sha256=opened.sha256, model_sha256=bytes(32)).SerializeToString()
            noise = draw_round_noise(opened.queries[0], world.drawn)
            own = RoundKeys(world.identity).new_sealer(opened.sha256)
            record = new_record(order, noise, policy_sha256=world.policy.sha256)
            yield own.seal(records.round_key(opened.sha256, 0), record.encode())
            yield own.seal(records.noise_key(opened.sha256, 0), noise.encode(opened.queries[0].releases))


def full_ledger(events: Any) -> tuple[LedgerState, bytes, list[Entry]]:
    """As many charges as one ledger holds, each sealed: their state, its encoding before the newest, and the newest."""
    state, entries = LedgerState(FULL), []
    for number in range(MOST_CHARGES):
        for stands in (ReleaseState.CHARGED, ReleaseState.SEALED):
            charged = stands is ReleaseState.CHARGED
            # As many different events as one ledger may hold, and a task for each eight rounds.
            different = tuple(
                dataclasses.replace(event, noise_std=event.noise_std + number % (MOST_EVENTS // len(events)))
                for event in events
            )
            entry = Entry(
                task_id=f"{number // 8:064x}", round=number % 8, state=stands, events=different if charged else (),
                contributions=100, population_size=100, id_set_sha256=bytes(32), noise_id=bytes(32),
                task_budget=Budget(8, 1e-6), population_budget=Budget(20, 1e-5), task_epsilon=1.0,
                population_epsilon=1.0, previous=entries[-1].sha256 if entries else state.head.sha256,
                release_sha256=b"" if charged else bytes(32),
            )  # fmt: skip
            entries.append(entry)
    behind = entries[-(STATE_EVERY - 1) :]
    for entry in entries[: -len(behind)]:
        state.append(entry)
    encoded = state.encode()
    for entry in behind:
        state.append(entry)
    return state, encoded, behind


class TimedHost(StoredHost):
    """Measures its last start, in seconds of processor time."""

    def begin(self) -> None:
        began = time.process_time()
        super().begin()
        self.seconds = time.process_time() - began


# What a start reads is bounded in bytes, below; its time is for a quiet machine.
@pytest.mark.proof
@pytest.mark.slow
def test_r173_a_start_after_the_worst_load_that_is_allowed_takes_at_most_ten_seconds(
    make_world: Make, tmp_path: Path
) -> None:
    """Processor time, which a busy machine does not stretch: a third of the limit is what it takes."""
    from odp.evaluation.noise import NoNoise
    from trusted_aggregator.enclave.opened_task import OpenedTask

    world = make_world(minimum=3)
    world.opened_task, world.drawn = OpenedTask.open, NoNoise()
    world.full_ledger = full_ledger(OpenedTask.open(world.task).charges(0))
    sealer = Sealer(world.identity.sealing_key)
    for number in range(MOST_POPULATIONS - 1):
        world.persist(worst_population(world, f"worst-{number}", sealer))
    assert len(world.records) > MOST_POPULATIONS * (MOST_TASKS + MOST_OPEN_ROUNDS)
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        host = TimedHost(world, state)
        assert len(host.core.round_states()) == (MOST_POPULATIONS - 1) * MOST_OPEN_ROUNDS
        host.end()
    assert host.seconds < 10.0, host.seconds


def test_r250_different_events_are_bounded_and_repeated_ones_cost_nothing(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a term of every later epsilon, and other populations wait while one is computed."""
    monkeypatch.setattr("trusted_aggregator.state.population.MOST_EVENTS", 5)
    for name in ("first", "second"):
        one = task_of(world, name)
        one.open()
        one.fill(range(3))
        one.close()
    other = copy.copy(world)
    other.adopt(other.sign(other.definition(minimum=3, epsilon=4.0, name="other-noise")))
    with pytest.raises(PrivacyError, match=r"would be charged for .* different events"):
        other.open()


def test_r173_what_a_start_reads_is_bounded_in_bytes() -> None:
    """Noise and releases stay on the disk until they are asked for; the rest is what one population may have."""
    assert {records.NOISE_PREFIX, records.RELEASE_PREFIX, records.STREAM_PREFIX} == set(records.LATER_PREFIXES)
    rounds = 256 * MOST_CHARGES + 512 * MOST_EVENTS + 2048 * STATE_EVERY
    per_population = rounds + 2 * 67 * MOST_ABANDONED + limits.MOST_DEFINITION_BYTES + 1024 * MOST_OPEN_ROUNDS
    per_population += 64 * limits.MOST_STREAMS * limits.MOST_STREAM_USERS
    assert MOST_POPULATIONS * per_population < 2**29


def test_r169_a_lost_copy_of_a_full_population_is_refused_as_any(world: Any) -> None:
    """The limits do not open a way around the stamps: a forgotten task is no lost population."""
    one = task_of(world, "task-0")
    one.open()
    world.persist(world.core.forget(task_sha256(one.task)))
    one.open()
    old = dict(world.records)
    world.settle(one.abandon())
    with pytest.raises(StateError, match="rolled back"):
        world.restart(old)


def test_r290_a_population_that_is_full_lets_a_task_wait_that_has_spent_and_does_not_end_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a refusal by the rules ends for good: a server asks again after a window that it is given."""
    monkeypatch.setattr("trusted_aggregator.enclave.opening.MOST_OPEN_ROUNDS", 1)
    for device in range(3):
        host.submit(device)
    spent, other = host.world, task_of(host.world, "other")
    spent.learn(host.close_round().SerializeToString())
    host.world, other.core = other, host.core
    host.open()
    host.world = spent
    with pytest.raises(Busy, match="has 1 rounds open, of at most 1") as full:
        host.open(1)
    code, _, trailing = status_of(full.value)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert RETRY_WINDOW in dict(trailing)
    host.settle(other.abandon())
    host.open(1)
    assert host.count(1) == 0

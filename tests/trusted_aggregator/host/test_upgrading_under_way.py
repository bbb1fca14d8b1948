"""Upgrades in the middle of rounds and streams, both hosts over TLS (R370, R371, R373, R374)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_programs import SECONDS, Programs
from hand_overs import NEW, OLD, upgradable
from upgrade_worlds import SECAGG, SampledWorld, StreamWorld

from odp._system.files.state_folder import StateFolder
from odp.crypto.refusals import refusal_holds
from odp.errors import Refusal, ServiceError
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, common_pb2, hand_over_pb2
from trusted_aggregator.host.hand_over_service import PAUSE_SECONDS
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.modes.secagg.rounds import SecAggRounds

Begin = Callable[..., tuple[Programs, Any]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts the old program of a world, with its charter set."""
    with contextlib.ExitStack() as stack:

        def started(kind: Callable[..., Any]) -> tuple[Programs, Any]:
            platform = EmulatedPlatform.open(tmp_path / "signing")
            world, endorsers = upgradable(lambda **changes: kind(platform, "people", **changes))
            endorsers.endorse(NEW, world.policy)
            programs = Programs(tmp_path, world, endorsers, stack)
            old = programs.start("old", OLD)
            old.orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=world.charter), timeout=SECONDS)
            return programs, old

        yield started


def _late(programs: Programs, program: Any, device: int) -> bool:
    """Whether a device that comes after the end of its round gets a refusal that frees it of the charge."""
    world = programs.world
    sealed = world.seal(world.contribution(device).SerializeToString(), 0, key=programs.key)
    request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=0, sealed_contribution=sealed)
    answer = program.public.Submit(request, timeout=SECONDS)
    assert answer.refusal == Refusal.ROUND_CLOSED.value
    claims = Claims.from_json(read_token(program.client.evidence(bytes(32)).token).claims)
    return refusal_holds(
        answer.signature, Refusal(answer.refusal), signing_key=claims.signing_key, task_sha256=world.task_sha256,
        round=0, hpke_key=programs.key, sealed=sealed, masked=b"",
    )  # fmt: skip


def test_r371_a_round_that_ends_with_its_contributions_is_signed_erased_and_filled_again(
    begin: Begin, tmp_path: Path
) -> None:
    programs, old = begin(SampledWorld)
    programs.open(old)
    first = programs.key
    programs.fill(old, 0, range(4))
    with pytest.raises(ServiceError, match=r"1 rounds with 4 contributions did not close .* --void-rounds"):
        programs.upgrade(old, seconds=0.0)
    programs.fill(old, 0, range(4, 5))
    told: list[tuple[int, int, int]] = []

    def note(rounds: hand_over_pb2.WaitingRounds) -> None:
        told.append((rounds.rounds, rounds.contributions, rounds.unvoidable))

    times = iter([0.0, 0.0, 1.0, 9.0, 9.0, 9.0])
    programs.upgrade(old, seconds=5.0, void_rounds=True, waiting=note, clock=lambda: next(times))
    assert told == [(1, 5, 0)], "waited for first"
    assert _late(programs, old, 7)
    old.stop()
    with StateFolder.open(tmp_path / "old", "aggregator") as state:
        storage = SqliteStorage(state)
        assert list(storage.contributions(programs.world.task_sha256, 0)) == []
        storage.close()
    new = programs.start("new", NEW)
    assert _late(programs, new, 7)
    programs.open(new)
    assert [one.hpke_key for one in programs.signed_key.voided] == [first]
    programs.fill(new, 0, range(4))
    signed = programs.close(new, 0)
    release = common_pb2.Release.FromString(signed.release)
    assert release.contributions == 4
    assert programs.spent(new) == pytest.approx(release.epsilon_spent, rel=0.2)
    programs.world.learn(signed.SerializeToString())
    programs.open(new, 1)
    assert [one.hpke_key for one in programs.signed_key.voided] == [first], "for devices that missed round 0"


def test_r373_a_stream_goes_on_in_the_new_program_however_large_its_state(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trusted_aggregator.host.hand_over_service._PAGE_BYTES", 100)
    programs, old = begin(StreamWorld)
    world = programs.world

    def run(program: Any, round: int) -> None:
        programs.open(program, round)
        programs.fill(program, round, range(10 * round, 10 * round + 4))
        world.learn(programs.close(program, round).SerializeToString())

    run(old, 0)
    run(old, 1)
    programs.open(old, 2)
    programs.upgrade(old)
    new = programs.start("new", NEW)
    for round in range(2, len(world.algorithm.planned_releases())):
        run(new, round)
    new.stop()
    programs.start("new", NEW)


def test_r374_a_session_under_way_is_named_and_waited_for_whatever_the_operator_says(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, old = begin(SECAGG[0])
    programs.open(old)
    clients, held, hold = [3], [], SecAggRounds.hold

    def noting(self: SecAggRounds, seconds: float) -> None:
        held.append(seconds)
        hold(self, seconds)

    monkeypatch.setattr(SecAggRounds, "hold", noting)
    monkeypatch.setattr(SecAggRounds, "clients_under_way", lambda self, key: clients[0])
    monkeypatch.setattr("trusted_aggregator.host.upgrading._FINISH_SECONDS", 0.0)
    with pytest.raises(ServiceError, match=r"1 rounds with 3 contributions .* 1 of them are charged or have a session"):
        programs.upgrade(old, seconds=0.0, void_rounds=True)
    assert held
    assert set(held) == {PAUSE_SECONDS}, "no other session begins while its successor asks"
    clients[0] = 0
    programs.upgrade(old, seconds=0.0)
    new = programs.start("new", NEW)
    assert [one.attempts for one in new.client.history().attempts] == [0]
    programs.open(new)

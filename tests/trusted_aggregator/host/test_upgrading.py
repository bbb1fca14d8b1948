"""Both hosts of a hand-over over TLS, each enclave behind its own socket: a budget that goes on in another program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from aggregator_programs import SECONDS, Programs
from hand_overs import NEW, OLD, OTHER, upgradable

from odp.crypto import domains
from odp.errors import ServiceError, StateError
from odp.signed.release import whole_values
from odp.trust.log.entries import PolicyEntry
from odp.v1 import aggregator_pb2, common_pb2, hand_over_pb2
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.state.records import POPULATION_PREFIX, SealedRecord, task_key


@pytest.fixture
def programs(tmp_path: Path, make_world: Callable[..., Any]) -> Iterator[Programs]:
    world, endorsers = upgradable(make_world)
    with contextlib.ExitStack() as stack:
        yield Programs(tmp_path, world, endorsers, stack)


@pytest.fixture
def old(programs: Programs) -> Any:
    """The old program, after one round; the release of it may not have reached the server."""
    running = programs.start("old", OLD)
    request = aggregator_pb2.SetCharterRequest(charter=programs.world.charter)
    running.orders.SetCharter(request, timeout=SECONDS)
    programs.open(running)
    programs.fill(running, 0, range(4))
    programs.world.learn(programs.close(running, 0).SerializeToString())
    return running


def test_a_population_goes_on_in_the_new_program_with_what_is_left_of_its_budget(programs: Programs, old: Any) -> None:
    spent = programs.spent(old)
    released = programs.close(old, 0)
    programs.endorsers.endorse(NEW, programs.world.policy)
    statement = programs.upgrade(old)
    assert (statement.predecessor_image, statement.successor_image) == (OLD, NEW)
    assert programs.upgrade(old) == statement, "again, where it is done"
    new = programs.start("new", NEW)
    assert programs.spent(new) == spent > 0
    assert programs.close(new, 0).release == released.release
    programs.open(new, 1)
    programs.fill(new, 1, range(3))
    programs.close(new, 1)
    assert programs.spent(new) > spent
    assert [charter.charter for charter in new.client.charters(programs.world.population)] == [
        programs.world.charter.charter
    ]
    assert [given.statement for given in new.client.history().hand_overs] == [
        statement.SerializeToString(deterministic=True)
    ]
    with pytest.raises(grpc.RpcError):
        programs.open(old, 1)
    old.stop()
    with pytest.raises(StateError, match="handed over"):
        programs.start("old", OLD)


def test_the_values_of_a_release_in_pieces_go_along(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", 0)
    monkeypatch.setattr("trusted_aggregator.enclave.opening.require_sizes", lambda *_: None)
    monkeypatch.setattr("trusted_aggregator.enclave.large_values.SEGMENT_BYTES", 32)
    monkeypatch.setattr("trusted_aggregator.host.rounds.SEGMENT_BYTES", 32)
    monkeypatch.setattr("trusted_aggregator.host.hand_over_service._PAGE_BYTES", 1_000)
    old = programs.start("old", OLD)
    old.orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=programs.world.charter), timeout=SECONDS)
    programs.open(old)
    programs.fill(old, 0, range(4))
    released = common_pb2.Release.FromString(programs.close(old, 0).release)
    request = aggregator_pb2.GetReleasedValuesRequest(order=programs.world.order(0, domains.CLOSE)[0])

    def values(program: Any) -> bytes:
        return bytes(whole_values(released, [reply.chunk for reply in program.orders.GetReleasedValues(request)]))

    before = values(old)
    assert len(before) == released.values_bytes > 0
    programs.endorsers.endorse(NEW, programs.world.policy)
    programs.upgrade(old)
    new = programs.start("new", NEW)
    assert values(new) == before


def test_open_rounds_are_waited_for_and_no_further_one_is_opened(programs: Programs, old: Any) -> None:
    programs.open(old, 1)
    programs.fill(old, 1, range(2))
    programs.endorsers.endorse(NEW, programs.world.policy)
    told: list[tuple[int, int]] = []

    def fill_and_close(rounds: hand_over_pb2.WaitingRounds) -> None:
        told.append((rounds.rounds, rounds.contributions))
        programs.fill(old, 1, range(2, 4))
        programs.world.learn(programs.close(old, 1).SerializeToString())
        with pytest.raises(grpc.RpcError) as refused:
            programs.open(old, 2)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    programs.upgrade(old, waiting=fill_and_close)
    assert told == [(1, 2)]
    new = programs.start("new", NEW)
    programs.open(new, 2)


def test_a_hand_over_that_waits_too_long_gives_up_and_changes_nothing(programs: Programs, old: Any) -> None:
    programs.open(old, 1)
    programs.fill(old, 1, range(2))
    programs.endorsers.endorse(NEW, programs.world.policy)
    with pytest.raises(ServiceError, match="1 rounds with 2 contributions did not close"):
        programs.upgrade(old, seconds=0.0)
    programs.fill(old, 1, range(2, 4))
    programs.close(old, 1)


def test_a_successor_that_nobody_endorsed_is_told_why_and_nothing_leaves(programs: Programs, old: Any) -> None:
    with pytest.raises(ServiceError, match="0 of the endorsers"):
        programs.upgrade(old)
    with pytest.raises(ServiceError, match="there was no hand-over"):
        old.client.records("")
    programs.open(old, 1)


def test_r394_a_successor_reads_no_record_that_does_not_go_along(
    programs: Programs, old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.endorsers.endorse(NEW, programs.world.policy)
    programs.upgrade(old)
    request = aggregator_pb2.GetHandedRecordsRequest(after=task_key(programs.world.task_sha256), offset=1)
    assert old.orders.GetHandedRecords(request, timeout=SECONDS).records[0].data
    monkeypatch.setattr("trusted_aggregator.host.hand_over_service._HANDED", (POPULATION_PREFIX,))
    assert not old.orders.GetHandedRecords(request, timeout=SECONDS).records[0].data


def test_r392_an_operator_reads_that_the_old_program_still_has_to_erase(programs: Programs, old: Any) -> None:
    programs.endorsers.endorse(NEW, programs.world.policy)
    nonces = iter([old.client.nonce()])

    def nonce() -> bytes:
        for value in nonces:
            return value
        raise ServiceError("cannot reach the aggregator")

    old.client.nonce = nonce
    programs.upgrade(old)
    assert "start the old program once" in programs.log.getvalue()


def test_when_the_new_host_dies_before_it_stores_the_next_one_takes_over(
    programs: Programs, old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = programs.spent(old)
    programs.endorsers.endorse(NEW, programs.world.policy)
    _die_before_storing(programs, old, monkeypatch)
    # Both programs start again.
    old.stop()
    old = programs.start("old", OLD)
    programs.upgrade(old, name="third")
    assert programs.spent(programs.start("third", NEW)) == spent


def test_r282_another_version_takes_over_where_the_one_that_was_named_cannot(
    programs: Programs, old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = programs.spent(old)
    for image in (NEW, OTHER):
        programs.endorsers.endorse(image, programs.world.policy)
    _die_before_storing(programs, old, monkeypatch)
    programs.upgrade(old, name="another", image=OTHER)
    with pytest.raises(ServiceError, match="handed over"):
        programs.upgrade(old, name="third")
    assert programs.spent(programs.start("another", OTHER)) == spent


def _die_before_storing(programs: Programs, old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(SqliteStorage):
        def apply(self, writes: Sequence[SealedRecord]) -> None:
            raise StateError("the disk is gone")

    monkeypatch.setattr("trusted_aggregator.host.upgrading.SqliteStorage", Dying)
    with pytest.raises(StateError, match="the disk is gone"):
        programs.upgrade(old)
    monkeypatch.undo()


def test_r283_a_log_of_many_rounds_does_not_end_upgrades(programs: Programs, old: Any) -> None:
    """Each round of each population is three entries."""
    programs.endorsers.entries += [PolicyEntry(b"%d" % number).encode() for number in range(40_000)]
    programs.endorsers.endorse(NEW, programs.world.policy)
    programs.upgrade(old)
    assert programs.spent(programs.start("new", NEW)) > 0


def test_a_folder_that_another_version_has_taken_over_into_is_told(programs: Programs, old: Any) -> None:
    for image in (NEW, OTHER):
        programs.endorsers.endorse(image, programs.world.policy)
    programs.upgrade(old)
    with pytest.raises(StateError, match=r"what another version, sha384:1.*, has taken over"):
        programs.upgrade(old, image=OTHER)


def test_a_folder_that_is_in_use_is_not_overwritten(programs: Programs, old: Any) -> None:
    old.stop()
    with pytest.raises(StateError, match="in use already"):
        programs.upgrade(old, name="old")

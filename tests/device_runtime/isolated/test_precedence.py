"""A contribution comes before a developer's code in the store: how long its handlers read shows in no upload."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hosts import Host, states

from device_runtime.isolated.precedence import COMMIT_SECONDS, Precedence
from device_runtime.round.examples import MadeExamples
from device_runtime.store import database
from device_runtime.store.schema import State
from device_runtime.store.store import Store

_LONG_READ = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 30000000) "
    "SELECT count(*) FROM numbers, ratings"
)


class NoMaker:
    """Of a service that makes no examples."""

    def most_asked(self, work: Any) -> int:
        return 0

    def make(self, path: Any, work: Any) -> Sequence[Any]:
        raise AssertionError("the task reads no examples of the service")

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        raise AssertionError("the task reads no examples of the service")


def test_r451_a_handler_that_reads_for_long_holds_up_no_contribution_and_reads_anew_afterwards(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 2.0)
    world.fill([3])
    precedence, reading = Precedence(), threading.Event()
    made = MadeExamples(maker=NoMaker(), code_seconds=1.0, precedence=precedence)
    attempts: list[list[list[State]]] = []

    def read_for_long() -> None:
        with world.store(0) as store:

            def act() -> None:
                attempts.append(states(world, 1))
                reading.set()
                if len(attempts) == 1:
                    store.all(_LONG_READ)

            precedence.in_turn(store, act)

    host = Host(world, count=1, until_finished=False)
    host.fleet._participant = dataclasses.replace(world.participant(), made_examples=made)
    handler = threading.Thread(target=read_for_long)
    handler.start()
    assert reading.wait(60)
    host.events = [host.stop.set]
    host.run()
    handler.join(60)
    assert not handler.is_alive()
    assert attempts == [[[]], [[State.SENT]]]


def test_r451_handlers_have_the_store_in_a_window_but_for_the_time_of_a_commit_at_its_end() -> None:
    now = [0.0]
    precedence = Precedence(monotonic=lambda: now[0])
    slept: list[float] = []
    assert not precedence.holds()
    with precedence.taken(slept.append):
        assert precedence.holds()
        with precedence.lent(1.0):
            assert not precedence.holds()
            now[0] += 1.0 - COMMIT_SECONDS
            assert precedence.holds()
        with precedence.lent(COMMIT_SECONDS):
            assert precedence.holds(), "too short for a commit"
    assert not precedence.holds()
    assert slept == [COMMIT_SECONDS]


def test_r451_what_a_handler_writes_is_rolled_back_and_written_once(world: Any) -> None:
    world.fill([3])
    precedence, attempts = Precedence(), []
    with world.store(0) as store:

        def write() -> None:
            attempts.append(1)
            with store.transaction():
                store.execute("INSERT INTO ratings (item, value) VALUES (99, 1.0)")
                if len(attempts) == 1:
                    participation.start()
                    store.all(_LONG_READ)

        def take_part() -> None:
            with precedence.taken(), world.store(0) as other, other.transaction():
                other.execute("INSERT INTO ratings (item, value) VALUES (98, 1.0)")

        participation = threading.Thread(target=take_part)
        precedence.in_turn(store, write)
        participation.join(60)
        items = [item for (item,) in store.all("SELECT item FROM ratings WHERE item IN (98, 99) ORDER BY item")]
    assert (len(attempts), items) == (2, [98, 99])

"""Two servers on one database: whoever leads dies, or stands still, at every single call, and the other one goes on.

What nobody may see: a task whose steps differ from those of one undisturbed server, an order that differs from the one
before, noise that is drawn twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odp.transport.logs import Log
from odp.v1 import enrolment_pb2
from server.leading import LEASE_SECONDS, Leads
from server.storage import RoundState, TaskRecord, TaskState
from server.storage.leases import Deposed, Lease
from server.storage.sqlite import open_sqlite
from tests.server.conftest import Clock, Lines
from tests.server.stepping import step_once

SOON = 5.0
GOAL = 5
READS = (
    "tasks", "tasks_to_abandon", "task", "item_features", "newest_version", "published_version", "round", "rounds",
    "state_and_tables", "release", "open_rounds", "published_models", "charters", "token_key", "newest_token_key",
    "history", "fenced", "progress", "check",
)  # fmt: skip


class Crash(BaseException):
    """What kill -9 looks like from inside: nothing catches it."""


class Tripwire:
    """Forwards to ``inner``; calls ``trip`` before or after the call whose number it was given."""

    def __init__(self, inner: Any, countdown: list[int], trip: Callable[[], None]) -> None:
        self._inner, self._countdown, self._trip = inner, countdown, trip

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name == "leases":
            return Tripwire(method, self._countdown, self._trip)
        if name in READS:
            return method

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            result = method(*args, **kwargs)
            self._tick()
            return result

        return wrapper

    def _tick(self) -> None:
        self._countdown[0] -= 1
        if self._countdown[0] == 0:
            self._trip()


class Servers:
    """Two servers in the hand of a test: each has its own driver, and its own steady clock where it is paused."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.database_clock = Clock(5_000.0)
        self._number = 0

    def driver(self, countdown: list[int] | None = None, trip: Callable[[], None] = lambda: None) -> Any:
        """A server that begins now, at a place of its own."""
        self._number += 1
        world = self.world
        storage = open_sqlite(world.path, clock=world.clock, lease_clock=self.database_clock)
        clients = world.services.distributor_client, world.services.aggregator_client
        if countdown is not None:
            storage = Tripwire(storage, countdown, trip)
            clients = tuple(Tripwire(client, countdown, trip) for client in clients)
        leads = Leads(
            storage, place=f"place-{self._number}", shared=True, log=world.log, monotonic=self.database_clock
        )  # fmt: skip
        return world.driver(
            storage=storage, distributor=clients[0], aggregator=clients[1], leads=leads, board=world.board(storage)
        )

    def run(self, driver: Any) -> None:
        """Steps, and renewals between them, until nothing more happens."""
        for _ in range(200):
            driver._leads.renew()
            if not step_once(driver):
                return
        raise AssertionError("still busy")


@pytest.fixture
def servers(world: Any) -> Servers:
    world.aggregator.contributions = GOAL
    return Servers(world)


def small(definition: Any) -> None:
    definition.model.rank, definition.dpam.steps = 0, 0


def check(world: Any, sha256: bytes, reference: bytes) -> None:
    """The task went as an undisturbed one."""
    task = world.storage.task(sha256)
    assert (task.state, task.failure) == (TaskState.FINISHED, "")
    events = [(entry.event, entry.round) for entry in world.storage.history(sha256)]
    assert events == [(entry.event, entry.round) for entry in world.storage.history(reference)], "nothing twice"
    assert [round for of, round in world.aggregator.drawn if of == sha256] == [0, 1], "noise is drawn once"
    for name, rows in world.distributor.models[reference, 2].items():
        np.testing.assert_array_equal(world.distributor.models[sha256, 2][name], rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pauses", "every"),
    [
        (False, 7),
        (True, 7),
        pytest.param(False, 1, marks=pytest.mark.proof),
        pytest.param(True, 1, marks=pytest.mark.proof),
    ],
    ids=["dies", "is_paused", "dies_at_any", "is_paused_at_any"],
)
def test_a_leader_that_dies_or_is_paused_at_any_call_is_followed_within_five_seconds(
    world: Any, servers: Servers, definition: Any, pauses: bool, every: int
) -> None:
    """One place per run: each seventh call in CI, and each one in `make proof`.

    A paused leader goes on after the other one has done everything: it finds itself deposed.
    """
    small(definition)
    definition.name = "reference"
    reference = world.submit(definition)
    servers.run(servers.driver())
    servers.database_clock.now += LEASE_SECONDS
    places, tripped, followed = 0, True, list[bytes]()
    while tripped:
        places += every
        definition.name = f"films-{places}"
        sha256 = world.submit(definition)
        tripped = False

        def trip(sha256: bytes = sha256) -> None:
            nonlocal tripped
            tripped = True
            if not pauses:
                raise Crash
            # Another thread, as it is another process.
            thread = threading.Thread(target=follow, args=(sha256,))
            thread.start()
            thread.join()

        def follow(sha256: bytes) -> None:
            other = servers.driver()
            began = servers.database_clock.now
            while world.storage.task(sha256).state is TaskState.ACTIVE:
                assert servers.database_clock.now - began < SOON, "another server leads by now"
                servers.run(other)
                servers.database_clock.now += 0.25
            servers.database_clock.now += LEASE_SECONDS
            followed.append(sha256)

        try:
            servers.run(servers.driver([places], trip))
        except Crash:
            follow(sha256)
        assert len(followed) == tripped, "the other one came to its end"
        followed.clear()
        check(world, sha256, reference)
        servers.database_clock.now += LEASE_SECONDS
    assert places > 50


def test_two_servers_never_step_one_task_and_share_many(world: Any, servers: Servers, definition: Any) -> None:
    small(definition)
    ids = []
    one, two = servers.driver(), servers.driver()
    for number in range(4):
        definition.name = f"films-{number}"
        ids.append(world.submit(definition))
        step_once((one, two)[number % 2])  # whoever took the submission looks first
    led = [{sha256 for sha256 in ids if driver._leads.lease(sha256) is not None} for driver in (one, two)]
    assert led == [{ids[0], ids[2]}, {ids[1], ids[3]}]
    for _ in range(60):
        step_once(one)
        step_once(two)
    assert [world.storage.task(sha256).state for sha256 in ids] == [TaskState.FINISHED] * 4
    assert len(world.aggregator.drawn) == len(set(world.aggregator.drawn)) == 8


def test_a_server_that_ends_gives_its_tasks_back_at_once(world: Any, servers: Servers, definition: Any) -> None:
    sha256 = world.submit(definition)
    one, two = servers.driver(), servers.driver()
    step_once(one)
    assert not step_once(two)
    one._leads.give_back()
    assert step_once(two)
    assert one._leads.lease(sha256) is None


def test_a_server_says_what_the_leader_of_a_task_waits_for(world: Any, servers: Servers, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = 1
    one, two = servers.driver(), servers.driver()
    servers.run(one)
    step_once(two)
    assert two.waits_for(sha256) is None
    one._leads.renew()
    assert two.waits_for(sha256) == one.waits_for(sha256)
    assert "3 contributions, its minimum" in two.waits_for(sha256).reason


def test_a_leader_whose_renewals_fail_begins_no_further_step_and_goes_on_when_they_work(
    world: Any, servers: Servers, definition: Any
) -> None:
    sha256 = world.submit(definition)
    one = servers.driver()
    assert step_once(one)
    servers.database_clock.now += LEASE_SECONDS
    assert one._leads.lease(sha256) is None
    one._leads.renew()
    assert one._leads.lease(sha256) is not None, "nobody took it meanwhile"
    servers.run(one)
    assert world.storage.task(sha256).state is TaskState.FINISHED


def test_a_server_alone_starts_again_at_once_after_a_kill(world: Any, definition: Any) -> None:
    """Its leases are for ever, and those of its place."""
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    first = world.driver()
    assert step_once(first)
    assert step_once(world.driver())
    assert not step_once(first), "it is dead, and would be deposed"
    world.run(world.driver())
    assert world.storage.task(sha256).state is TaskState.FINISHED
    assert world.storage.round(sha256, 0).state is RoundState.APPLIED


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2, 3))])
@pytest.mark.slow
def test_random_schedules_of_pauses_kills_and_clocks_keep_one_writer_and_a_leader(tmp_path: Path, seed: int) -> None:
    """250 schedules each: servers act, stand still and die in any order; no write is of an older lease."""
    draws = random.Random(seed)
    clock = Clock(0.0)
    storage = open_sqlite(tmp_path / "server.sqlite", clock=clock, lease_clock=clock)
    log = Log("server", stream=Lines())  # type: ignore[arg-type]  # the two methods that Log calls
    for schedule in range(250):
        name = schedule.to_bytes(32, "big")
        storage.add_task(TaskRecord(name, "films", "p", b"d", b"s", planned_rounds=1))
        newest, written, extended, number = 0, 0, float("-inf"), 0
        alive: dict[int, Leads] = {}
        # Leases under which a server is in the middle of a step.
        steps: list[Lease] = []
        for _ in range(30):
            clock.now += draws.choice((0.0, 0.1, 0.5, 1.0, 3.1))
            while len(alive) < 2:
                number += 1
                place = f"{schedule}-{number}"
                alive[number] = Leads(storage, place=place, shared=True, log=log, monotonic=clock)
            who = draws.choice(list(alive))
            match draws.choice(("lead", "lead", "lead", "renew", "begin", "end", "end", "kill", "stop")):
                case "lead":
                    before = newest
                    alive[who].lead([name])
                    lease = alive[who].lease(name)
                    if lease is not None and lease.token != before:
                        assert lease.token > before
                        newest, extended = lease.token, clock.now
                    assert lease is not None or clock.now - extended < LEASE_SECONDS, "a free lease is taken"
                case "renew":
                    alive[who].renew()
                    if alive[who].lease(name) is not None:
                        extended = clock.now
                case "begin":
                    lease = alive[who].lease(name)
                    if lease is not None:
                        assert lease.token == newest, "only the newest begins a step"
                        steps.append(lease)
                case "end" if steps:
                    lease = steps.pop(draws.randrange(len(steps)))
                    try:
                        with storage.leases.fenced(lease):
                            storage.set_token_key(name, written, _token_key(lease))
                    except Deposed:
                        assert lease.token < newest
                    else:
                        assert lease.token == newest, "nobody older stores anything"
                        written += 1
                case "kill":
                    del alive[who]
                case "stop":
                    alive.pop(who).give_back()
    storage.close()


def _token_key(lease: Any) -> Any:
    return enrolment_pb2.SignedTokenKey(token_key=b"%d" % lease.token)

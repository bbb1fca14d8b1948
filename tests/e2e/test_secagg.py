"""SecAgg+ over the whole platform: the sums of the other modes, from devices over TLS that drop out at each step."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import grpc
import numpy as np
import pytest
from e2e.test_statistics import asked, seeds_of
from e2e.world import World, small_ratings
from typer.testing import CliRunner

import device_runtime
import odp
from device_runtime import Store, store_path
from device_runtime.host.provision import provision
from device_runtime.network.services import Traffic
from device_runtime.round import secagg, secagg_sessions
from odp._system.files.state_folder import StateFolder
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import RELEASE
from odp.cli.device import app
from odp.crypto import SigningKey
from odp.crypto.roster import hash_of, read_roster
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.crypto.secure_aggregation.session import Configuration
from odp.datasets import Ratings
from odp.errors import ServiceError
from odp.services.connection import TaskHandle
from odp.signed.task import open_task
from odp.transport.channel import connect
from odp.transport.tls import read_ca
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2, secagg_service_pb2, secagg_service_pb2_grpc, server_pb2
from trusted_aggregator.modes.secagg.limits import Pace


def together(task: odp.Statistics, **changes: object) -> odp.Statistics:
    cohort = dataclasses.replace(task.cohort, aggregation="secagg+", **changes)
    return dataclasses.replace(task, cohort=cohort)


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.1)
    pytest.fail("it did not come")


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices of this process add no noise: no flag, file or message can do the same."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))


@pytest.mark.parametrize("bins", [pytest.param(40, marks=pytest.mark.proof), 300_000])
def test_the_sum_of_a_session_is_that_of_the_simulation_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(together(asked(ratings, bins=bins)))
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
    algorithm = algorithm_for(open_task(status.task))
    broadcast = algorithm.server().broadcast(b"")
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)[RELEASE]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    assert simulated.any()
    assert handle.results(ReferenceValues.load(world.reference_values)).histogram("stars").counts.sum() > 0


class Vanishing:
    """Devices of this process that vanish for good before one step of a session, and ones that never come."""

    KINDS: ClassVar = {
        "reveal": "adverts", "share": "reveals", "masked": "inbox", "agree": "survivors", "unmask": "agreements",
    }  # fmt: skip

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step, self.gone = "", frozenset[int]()
        self.dead: set[int] = set()
        seat, sit_down, following = secagg_sessions.Sessions.seat, secagg.Seat.sit_down, secagg.Seat.next

        def numbered(owner: secagg_sessions.Sessions, session: secagg.Session, device: int) -> secagg.Seat:
            made = seat(owner, session, device)
            made.device = device  # type: ignore[attr-defined]
            return made

        def sits_down(given: secagg.Seat, traffic: Traffic) -> object:
            self._vanish(given, "advertise")
            return sit_down(given, traffic)

        def goes_on(given: secagg.Seat, answer: secagg_service_pb2.StepResponse) -> object:
            if answer.WhichOneof("answer") == self.KINDS.get(self.step):
                self._vanish(given, self.step)
            return following(given, answer)

        monkeypatch.setattr(secagg_sessions.Sessions, "seat", numbered)
        monkeypatch.setattr(secagg.Seat, "sit_down", sits_down)
        monkeypatch.setattr(secagg.Seat, "next", goes_on)

    def _vanish(self, seat: secagg.Seat, step: str) -> None:
        device = seat.device  # type: ignore[attr-defined]
        if device in self.dead or (step == self.step and device in self.gone):
            self.dead.add(device)
            seat.leave = lambda: None  # type: ignore[method-assign]  # the dead say no goodbye
            raise ServiceError("vanished")

    def plan(self, step: str, gone: range) -> None:
        self.step, self.gone, self.dead = step, frozenset(gone), set()


# In CI, `test_three_modes.py` has real programs of devices that die before each step, with the same exact sums.
@pytest.mark.proof
def test_with_a_third_gone_before_any_step_the_sum_is_that_of_those_who_sent(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 devices; 9 of them vanish before one step of each task. Noise off, equal integers."""
    without_noise(monkeypatch)
    vanishing = Vanishing(monkeypatch)
    ratings, gone = small_ratings(30), range(9)
    # Each step waits this long for the devices that are gone; on a busy machine the others have to answer within it.
    world = World(tmp_path, pace=Pace(step=5.0, vector=5.0, silent=10.0)).start(stack)
    limits = device_runtime.Limits(min_cohort=20)
    changes = {"minimum": 20, "goal": 30, "round_seconds": 16, "corrupt_fraction": 0.05, "dropout_fraction": 0.3}
    for step in ("advertise", "reveal", "masked", "unmask"):
        vanishing.plan(step, gone)
        task = dataclasses.replace(asked(ratings, bins=40), name=step, privacy=odp.UserLevelDP(epsilon=0.5, delta=1e-6))
        handle = world.connection.submit(together(task, **changes))
        status = world.finish(handle, world.devices(ratings, limits=limits))
        counted = range(0 if step == "unmask" else 9, 30)
        assert vanishing.dead == set(gone), step
        assert status.rounds[0].contributions == len(counted), step
        (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
        algorithm = algorithm_for(open_task(status.task))
        simulated = algorithm.population().contribute(
            algorithm.server().broadcast(b""),
            ratings.select_users(counted),
            round=0,
            seeds=seeds_of(world, 30)[counted],
        )[RELEASE]
        np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated, step)


def test_with_a_roster_only_its_devices_take_part_and_the_session_is_the_tasks(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    """24 devices on the roster; a host of others, which holds the same file, is declined by its own devices."""
    state, path = tmp_path / "devices", tmp_path / "roster"
    with StateFolder.open(state, "devices"):
        provision(state, ratings, first=0)
    answer = CliRunner().invoke(app, ["roster", str(path), "--state", str(state), "--devices", "24"])
    assert answer.exit_code == 0, answer.output
    named = hash_of(read_roster(path)).hex()
    assert answer.output.splitlines() == ["roster_size = 24", f'roster_sha256 = "{named}"']
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(together(asked(ratings, bins=40), roster_sha256=named, roster_size=24))
    until(lambda: bool(handle.status().rounds))  # who finds no round is told to come back much later
    strangers = world.devices(ratings, state=tmp_path / "strangers", roster=path)
    stack.callback(strangers.stop)
    without = world.devices(ratings.select_users(range(3)), state=tmp_path / "without")
    stack.callback(without.stop)
    until(lambda: "this device is not on the roster" in world.logs.getvalue())
    until(lambda: "the task names another roster of devices" in world.logs.getvalue())
    status = world.finish(handle, world.devices(ratings, roster=path))
    assert status.rounds[0].contributions == 24
    assert sum(entry.devices_in for entry in (*strangers.statistics(), *without.statistics())) == 0


class Stranger:
    """Somebody with no key but those that it makes up, who fills sessions and never reveals."""

    def __init__(self, world: World, handle: TaskHandle, stack: contextlib.ExitStack) -> None:
        channel = stack.enter_context(connect(world.aggregator.address, read_ca(world.ca)))
        self.stub = secagg_service_pb2_grpc.SecureAggregationServiceStub(channel)
        self.task_sha256 = handle.task_sha256

    def join(self) -> secagg_service_pb2.JoinResponse:
        return self.stub.Join(secagg_service_pb2.JoinRequest(task_sha256=self.task_sha256, round=0), timeout=60.0)

    def hears_of_the_end(self) -> bool:
        """Whether the round is over, or no longer known."""
        try:
            return self.join().end.reason == secagg_service_pb2.SecAggEnd.REASON_VOIDED
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.NOT_FOUND

    def fill(self, attempt: int) -> None:
        """Takes every seat of an attempt, once it gathers clients."""
        until(lambda: bool(self.join().config))
        configuration = Configuration.open(self.join().config)
        assert configuration.attempt == attempt
        calls = []
        for _ in range(configuration.ring.maximum):
            client = Client(configuration, SigningKey.generate())
            name = secagg_service_pb2.SecAggClient(
                task_sha256=self.task_sha256, round=0, attempt=attempt, identity=client.advert.identity, token=bytes(32)
            )
            request = secagg_service_pb2.StepRequest(client=name, advert=client.advert)
            calls.append(self.stub.Step.future(request, timeout=60.0))
        assert {call.result().WhichOneof("answer") for call in calls} == {"adverts"}


def test_r238_a_stranger_has_no_seat_where_the_round_asks_for_tokens(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path).start(stack)
    members = ratings.select_users(range(20))
    handle = world.connection.submit(together(asked(members, bins=40), goal=20))
    until(lambda: bool(handle.status().rounds))
    stranger = Stranger(world, handle, stack)
    with pytest.raises(grpc.RpcError, match="token of its issuer"):
        stranger.fill(0)
    assert world.finish(handle, world.devices(members)).rounds[0].contributions == 20


def test_r197_a_stranger_that_ends_every_session_ends_the_task_as_failed_and_devices_are_told(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path, pace=Pace(step=1.0, vector=1.0, silent=10.0), with_tokens=False).start(stack)
    members = ratings.select_users(range(20))
    handle = world.connection.submit(together(asked(members, bins=40), goal=20))
    until(lambda: bool(handle.status().rounds))
    stranger = Stranger(world, handle, stack)
    for attempt in range(MOST_ATTEMPTS):
        stranger.fill(attempt)
    until(lambda: handle.status().state == server_pb2.TaskStatus.STATE_FAILED)
    assert "round 0 has failed: its 4 sessions ended without a sum (the last: 20 clients did not reveal" in (
        handle.status().failure
    )
    # The server ends the failed task at the aggregator, too, which forgets its sessions.
    assert stranger.hears_of_the_end()
    lines = world.logs.getvalue().splitlines()
    assert sum("secagg_failed" in line for line in lines) == 1
    assert sum("task_failed" in line for line in lines) == 1
    # The next task of the population is not in its way, and the failed one is offered to nobody.
    following = dataclasses.replace(
        asked(members, bins=30), name="next", privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-5)
    )
    after = world.connection.submit(following)
    assert world.finish(after, world.devices(members)).rounds[0].contributions == 20
    with Store.open(store_path(world.root / "devices", 3)) as store:
        assert [line.task_sha256 for line in store.ledger()] == [after.task_sha256]

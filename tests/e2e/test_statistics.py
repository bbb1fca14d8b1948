"""Statistics over the whole platform: the answers of a simulation, from devices over TLS, small and streamed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from e2e.world import World

import odp
from device_runtime import Services, Store, store_path
from device_runtime.network.services import Traffic
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import RELEASE
from odp.datasets import Ratings
from odp.errors import AttestationError, ConfigurationError, ServiceError
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import aggregator_pb2, common_pb2, server_pb2


def asked(ratings: Ratings, *, bins: int) -> odp.Statistics:
    return odp.Statistics(
        name="asked",
        population="films",
        queries={
            "films": odp.Histogram(bins=bins, clip=3.0),
            "stars": odp.Histogram(low=1, high=5, bins=4, counts="shares"),
            "mean": odp.Mean(low=1, high=5, max_records=10, table="ratings"),
        },
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=ratings.n_users, round_seconds=600),
    )


def seeds_of(world: World, users: int) -> np.ndarray:
    seeds = np.empty(users, dtype=np.uint64)
    for user in range(users):
        with Store.open(store_path(world.root / "devices", user)) as store:
            seeds[user] = store.identity().seed
    return seeds


@pytest.mark.parametrize("bins", [pytest.param(40, marks=pytest.mark.proof), 300_000])
def test_networked_and_simulated_statistics_agree_exactly_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, bins: int
) -> None:
    """With 300,000 bins, contributions travel as streams. The integers are equal, so every answer is."""
    world = World(tmp_path, noise=NoNoise()).start(stack)
    task = asked(ratings, bins=bins)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    (tensor,) = release.tensors
    algorithm = algorithm_for(open_task(status.task))
    broadcast = algorithm.server().broadcast(b"")
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)[RELEASE]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    assert simulated.any()

    answers = handle.results()
    assert answers.mean("mean").value == pytest.approx(_mean_of_capped_users(ratings, 10), abs=1e-3)
    assert answers.histogram("stars").counts.sum() == pytest.approx(ratings.n_users, abs=0.1)
    published = handle.model().dense["statistics"][:, 0]
    np.testing.assert_allclose(published, simulated * tensor.step, rtol=1e-6)


def _mean_of_capped_users(ratings: Ratings, most: int) -> float:
    """Of users' means, each weighted by its number of records, at most ``most``."""
    means = [ratings.user(user)[1].astype(np.float64).mean() for user in range(ratings.n_users)]
    return float(np.average(means, weights=np.minimum(ratings.counts(), most)))


def test_a_real_run_costs_one_joint_event_and_its_intervals_hold_the_truth(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    """45 intervals, each at a confidence of 1 - 1e-8: false alarm below 1e-6. Nothing of this data is clipped."""
    world = World(tmp_path).start(stack)
    task = odp.Statistics(
        name="asked", population="films",
        queries={"films": odp.Histogram(bins=40), "mean": odp.Mean(low=1, high=5)},
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=ratings.n_users, round_seconds=600),
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    (charge,) = release.charges
    assert (charge.name, charge.sensitivity, charge.coordinates) == ("statistics", 1.0, 42)
    assert 2.0 - 1e-6 < release.epsilon_spent <= 2.0
    answers = handle.results()
    low, high = answers.histogram("films").interval(1 - 1e-8)
    truth = np.bincount(ratings.items, minlength=40)
    assert ((low <= truth) & (truth <= high)).all()
    assert (answers.histogram("films").counts != truth).all(), "noise came on top"
    means = [ratings.user(user)[1].astype(np.float64).mean() for user in range(ratings.n_users)]
    least, most = answers.mean("mean").interval(1 - 1e-8)
    assert least <= float(np.mean(means)) <= most

    pins = ReferenceValues.load(world.reference_values)
    attested = handle.results(pins)
    np.testing.assert_array_equal(attested.histogram("films").counts, answers.histogram("films").counts)
    forged = _with_release(status, lambda release: release.tensors[0].__setattr__("step", 2.0))
    with pytest.raises(ServiceError, match="not signed by the attested aggregator"):
        world.connection.results(forged, pins)
    with pytest.raises(AttestationError):
        handle.results(dataclasses.replace(pins, image_digests={"aggregator": ("sha384:" + "0" * 96,)}))
    with pytest.raises(ServiceError, match="of another task"):
        world.connection.results(_with_release(status, lambda release: release.__setattr__("task_sha256", b"")))

    waiting = server_pb2.TaskStatus.FromString(status.SerializeToString())
    waiting.rounds[0].release.CopyFrom(common_pb2.SignedRelease())  # as the server says it while the round is open
    with pytest.raises(ConfigurationError, match="released nothing yet"):
        world.connection.results(waiting, pins)

    report = audit(LogFolder(world.root / "server" / "log"), pins)
    (found,) = report.tasks
    assert (found.name, found.rounds, found.planned_rounds) == ("asked", 1, 1)
    assert found.contributions == (ratings.n_users,)
    assert found.epsilon == pytest.approx(release.epsilon_spent, rel=1e-9)
    assert report.counts["model"] == 2

    with pytest.raises(ConfigurationError, match="trains a model"):
        _statistics_of_a_model(world, ratings)


def _with_release(status: server_pb2.TaskStatus, change: Callable[[common_pb2.Release], None]) -> server_pb2.TaskStatus:
    """The status, its release changed under the signature of the old one."""
    changed = server_pb2.TaskStatus.FromString(status.SerializeToString())
    signed = changed.rounds[0].release
    release = common_pb2.Release.FromString(signed.release)
    change(release)
    signed.release = release.SerializeToString()
    return changed


def _statistics_of_a_model(world: World, ratings: Ratings) -> None:
    task = odp.Task(
        name="model", population="other",
        model=odp.MatrixFactorization(items=ratings.n_items), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-5, max_items_per_user=5), cohort=odp.Cohort(minimum=20),
    )  # fmt: skip
    world.connection.submit(task).results()


def test_a_device_sends_nothing_to_the_distributor_and_cannot_recommend_from_statistics(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path, noise=NoNoise()).start(stack)
    handle = world.connection.submit(asked(ratings, bins=40))
    world.finish(handle, world.devices(ratings))
    assert "select" not in world.logs.getvalue()
    services = world.services()
    stack.callback(services.close)
    with pytest.raises(ServiceError, match="has no trained model yet") as told:
        services.newest_model("films")
    assert told.value.code is grpc.StatusCode.NOT_FOUND


def test_a_stream_that_the_network_cuts_leaves_nothing_and_the_device_can_send_again(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    """A device's own sealed bytes: first half of them and then a cancelled call, then all of them."""
    world = World(tmp_path, noise=NoNoise()).start(stack)
    ratings = ratings.select_users(range(20))
    handle = world.connection.submit(asked(ratings, bins=300_000))
    services = world.services()
    stack.callback(services.close)
    held: list[tuple[aggregator_pb2.SubmitHeader, bytes]] = []
    sent = Services.submit_stream

    def cut_once(self: Services, address: str, header: aggregator_pb2.SubmitHeader, sealed: bytes, traffic: Traffic):
        if not held:
            held.append((header, sealed))
            call = _start(self, address, header, sealed[: 2**20])
            call.cancel()
        return sent(self, address, header, sealed, traffic)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Services, "submit_stream", cut_once)
        status = world.finish(handle, world.devices(ratings))
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED
    assert status.rounds[0].contributions == 20
    assert len(held) == 1
    with sqlite3.connect(world.root / "aggregator" / "contributions.db") as database:
        assert database.execute("SELECT count(*) FROM contributions").fetchone() == (0,)
    assert [path for path in (world.root / "aggregator" / "large").rglob("*") if path.is_file()] == []


def _start(services: Services, address: str, header: aggregator_pb2.SubmitHeader, data: bytes) -> grpc.Future:
    """A call that has sent ``data`` and stays open."""
    taken, end = threading.Event(), threading.Event()

    def requests():
        yield aggregator_pb2.SubmitStreamRequest(header=header)
        yield aggregator_pb2.SubmitStreamRequest(chunk=data)
        taken.set()
        end.wait(10)

    call = services._peers.at("aggregator", address).aggregator.SubmitStream.future(requests(), timeout=30)
    assert taken.wait(10)
    call.add_done_callback(lambda _: end.set())
    return call


# CI has two tasks on one ledger in test_upgrade.py, and at every border in trusted_aggregator/enclave/test_core.py.
@pytest.mark.proof
@pytest.mark.slow
def test_statistics_and_a_model_share_the_ledger_of_their_population(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(asked(ratings, bins=40))
    world.finish(handle, world.devices(ratings))
    task = odp.Task(
        name="model", population="films",
        model=odp.MatrixFactorization(items=ratings.n_items), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=3, delta=1e-6, max_items_per_user=5),
        cohort=odp.Cohort(minimum=20, goal=ratings.n_users, round_seconds=600),
    )  # fmt: skip
    second = world.connection.submit(task)
    # The same devices: their stores keep what they hold.
    status = world.finish(second, world.devices(ratings))
    entries = [json.loads(line) for line in world.connection.ledger(status).lines.splitlines()]
    charged = [entry for entry in entries if entry["state"] == "CHARGED"]
    assert [event["name"] for entry in charged for event in entry["events"]] == ["statistics", "counts", "mass", "sums"]
    assert charged[-1]["population_epsilon"] > max(2.0, charged[-1]["task_epsilon"])
    assert math.isclose(charged[-1]["task_epsilon"], 3.0, abs_tol=1e-5)

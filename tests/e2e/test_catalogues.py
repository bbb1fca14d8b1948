"""A catalogue that changes, over the real services: devices translate, and the audit follows."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from e2e.world import POPULATION, World, device_seeds, small_task

import device_runtime
import odp
from device_runtime import Store, indexed_model, recommend, recommend_indexed, store_path
from device_runtime.host.newest import fetch_newest
from odp.algorithms.model_evaluation.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.datasets import Ratings, Split, catalogue_keys
from odp.errors import ConfigurationError, ServiceError, TransparencyError
from odp.evaluation.noise import NoNoise
from odp.protocol.catalogues.catalogue import Catalogue
from odp.research.simulation import engine
from odp.services.connection import TaskHandle
from odp.signed.task import open_task, task_sha256
from odp.tasks.task import Task
from odp.trainings.living_model import LivingModel
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2, server_pb2


def numbered(ratings: Ratings, catalogue: Catalogue) -> Ratings:
    """The ratings of a catalogue's items, by its numbers."""
    numbers = np.array([catalogue.numbers.get(key, -1) for key in catalogue_keys(ratings)])
    items = numbers[ratings.items]
    known = items >= 0
    return Ratings.from_triples(
        ratings.name, ratings.users()[known], items[known], ratings.values[known], low=ratings.low, high=ratings.high,
        n_users=ratings.n_users, n_items=catalogue.items,
    )  # fmt: skip


def task_of(ratings: Ratings, catalogue: Catalogue, *, name: str, start: odp.items.WarmStart | None = None) -> Task:
    small = small_task(ratings, rank=2, training=odp.DPAM(steps=1, slices_per_device=12), epsilon=4.0, places=8)
    model = odp.MatrixFactorization(items=catalogue.items, rank=2, catalogue=catalogue, start=start)
    return Task(
        name=name, population=POPULATION, model=model, data=small.data, privacy=small.privacy,
        training=small.training, cohort=small.cohort,
    )  # fmt: skip


def test_devices_use_their_ratings_rightly_under_every_version(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, noise=NoNoise()).start(stack)
    keys = list(catalogue_keys(ratings))
    # In another order than the data set's, without five of its items, which the devices have rated all the same.
    first = Catalogue.make(POPULATION, keys[34::-1])
    second = first.change(add=keys[35:], retire=[keys[number] for number in (0, 7, 8, 20, 34)])
    world.connection.publish_catalogue(first)
    before = world.connection.submit(task_of(ratings, first, name="films-1"))
    world.finish(before, world.devices(ratings))
    start = odp.items.warm_start(before.model(), item_keys=first.keys)

    world.connection.publish_catalogue(second)
    task = task_of(ratings, second, name="films-2", start=start)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(count=ratings.n_users))
    assert {entry.contributions for entry in status.rounds} == {ratings.n_users}

    seeds = device_seeds(world, ratings.n_users)
    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds)
    train = numbered(ratings, second)
    nothing = train.take(np.zeros(train.n_ratings, dtype=bool))
    simulated = odp.simulate(task, Split(train=train, validation=nothing, test=nothing), noise=NoNoise())
    for ours, theirs in zip(handle.model().tables, simulated.model.tables, strict=True):
        np.testing.assert_allclose(ours.rows, theirs.rows, rtol=0, atol=1e-6)

    report = audit(LogFolder(tmp_path / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert report.counts["catalogue"] == 2
    assert [one.name for one in report.tasks] == ["films-1", "films-2"]

    model = fetch_newest(
        POPULATION, state=tmp_path / "devices", server=world.server.address, ca=world.ca,
        reference_values=world.reference_values,
    )  # fmt: skip
    with Store.open(store_path(tmp_path / "devices", 0)) as store:
        found = recommend(store, model.downloaded, k=5)
    assert found.keys is not None
    own, _ = ratings.user(0)
    assert not set(found.keys) & {keys[item] for item in own.tolist()}
    assert set(found.keys) <= set(second.keys)

    index = tmp_path / "items.index"
    with pytest.raises(ConfigurationError, match=r"item_keys\[0\]=.* as catalogue version 2 of task 'films-2' has it"):
        odp.items.export_items(handle, index, item_keys=second.keys[::-1])
    odp.items.export_items(handle, index)
    with Store.open(store_path(tmp_path / "devices", 0)) as store:
        offline = recommend_indexed(store, indexed_model(index), k=5)
    assert offline.keys is not None
    np.testing.assert_allclose(offline.scores, found.scores, atol=0.1)
    assert not set(offline.keys) & {keys[item] for item in own.tolist()}

    world.connection.publish_catalogue(second.change(withdraw=[1]))
    with pytest.raises(ServiceError, match=r"catalogue version 1 .* was withdrawn: make the task with version 3"):
        world.connection.submit(task_of(ratings, first, name="films-3"))
    assert (
        audit(LogFolder(tmp_path / "server" / "log"), ReferenceValues.load(world.reference_values)).counts["catalogue"]
        == 3
    )


def test_no_device_takes_part_under_a_catalogue_that_does_not_lead_to_the_tasks_hash(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path).start(stack)
    keys = catalogue_keys(ratings)
    world.connection.publish_catalogue(Catalogue.make(POPULATION, keys))
    handle = world.connection.submit(task_of(ratings, Catalogue.make(POPULATION, keys), name="films-1"))
    asked: list[tuple[str, int]] = []

    def forked(_services: object, population: str, block: int) -> list[bytes]:
        asked.append((population, block))
        return list(Catalogue.make(POPULATION, keys[::-1]).steps)

    monkeypatch.setattr(device_runtime.Services, "catalogue_steps", forked)
    devices = world.devices(ratings)
    # A host whose log is refused again and again ends by itself, as it does for any other lie about the log.
    with pytest.raises(TransparencyError, match="another version 1 than the task names"):
        devices.join(120.0)
    assert set(asked) == {(POPULATION, 0)}
    assert [entry.contributions for entry in handle.status().rounds] == [0]


# CI trains under two versions below and above; trainings/test_living_model.py compares versions without services.
@pytest.mark.proof
def test_devices_compare_trainings_of_two_versions_by_their_keys(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    """As the simulation says, and as the log explains; a version that was withdrawn is tested by nobody."""
    world = World(tmp_path, noise=NoNoise()).start(stack)
    keys = list(catalogue_keys(ratings))
    first = Catalogue.make(POPULATION, keys[34::-1])
    versions = [first, first.change(add=keys[35:], retire=[keys[number] for number in (0, 7, 8, 20, 34)])]
    template = small_task(ratings, rank=2, training=odp.DPAM(steps=1, slices_per_device=12), epsilon=4.0, places=8)
    schedule = odp.living.Schedule(every="7d", horizon="3w", lifetime_epsilon=6.0, delta=template.privacy.delta)
    filled: dict[str, object] = {"ratings": ratings}
    for week, catalogue in enumerate(versions):
        world.connection.publish_catalogue(catalogue)
        living = LivingModel(tmp_path / "living", task=template, schedule=schedule, catalogue=catalogue)
        living.advance(world.connection, now=7.0 * 86_400 * week)
        _finished(world, **filled)
        filled = {"count": ratings.n_users}
        living.advance(world.connection, now=7.0 * 86_400 * week + 3_600)
    asked = odp.Evaluation(
        name="films-0-1", privacy=odp.UserLevelDP(epsilon=1.0, delta=template.privacy.delta), cohort=template.cohort,
        **living.compared(world.connection, 0, 1),
    )  # fmt: skip
    world.connection.submit(asked)
    status = _finished(world, **filled)
    (entry,) = status.rounds
    assert entry.contributions == ratings.n_users
    (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
    networked = np.frombuffer(tensor.integers, "<i8")
    algorithm = algorithm_for(open_task(status.task))
    server = algorithm.server(item_features=asked.public_matrix)
    simulated = algorithm.population().contribute(
        server.broadcast(server.start()), numbered(ratings, versions[1]), round=0,
        seeds=device_seeds(world, ratings.n_users),
    )[RELEASE]  # fmt: skip
    assert np.abs((networked - simulated) * tensor.step / ratings.n_users).max() <= 1e-5
    pins = ReferenceValues.load(world.reference_values)
    found = world.connection.results(status, pins).models()
    tested = sum(one.users.value for one in found.values())
    assert tested == pytest.approx(ratings.n_users, abs=1.0), "every device rated items of the version"
    report = audit(LogFolder(tmp_path / "server" / "log"), pins)
    assert [one.name for one in report.tasks][-1] == "films-0-1"

    world.connection.publish_catalogue(versions[1].change(withdraw=[2]))
    with pytest.raises(ServiceError, match=r"catalogue version 2 .* was withdrawn: make the task with version 3"):
        world.connection.submit(dataclasses.replace(asked, name="films-again"))


def _finished(world: World, **filled: object) -> server_pb2.TaskStatus:
    """The status of the one active task, once devices have finished it."""
    active = server_pb2.TaskStatus.STATE_ACTIVE
    (task,) = (one.task for one in world.connection.tasks() if one.state == active)
    handle = TaskHandle(world.connection, task_sha256(task))
    return world.finish(handle, world.devices(**filled))

"""Federated training over the whole platform: the model of the simulation, from devices over TLS, in every mode."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World, device_seeds

import odp
from device_runtime import Store, store_path
from device_runtime.round import secagg
from device_runtime.sdk import Environment
from odp.algorithms.capabilities import Diagnosed
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

DEVICES = 24
FEATURES = {"image": odp.Tensor((4, 4), 0, 200, scale=1 / 255), "age": odp.Tensor((), 0, 100, 0.01)}
DATA = odp.Examples(FEATURES, label="kind")
MODEL = odp.Glm("multinomial", features=17, classes=3)


def people(*, unknown: float = 5.0) -> odp.data.UsersExamples:
    """Users with none, one and many examples; among them numbers out of range, not a number, and an unknown class.

    A simulation refuses that class, which a device leaves out: for it, the label is missing.
    """
    generator = np.random.default_rng(4)
    features = generator.integers(0, 256, (300, 17)).astype(np.float32)
    kinds = (features[:, :16] @ generator.normal(size=(16, 3))).argmax(axis=1).astype(np.float32)
    features[0, 3], features[1, 16], features[2, 0], kinds[3], kinds[4] = np.nan, np.inf, -np.inf, unknown, np.nan
    counts = generator.integers(2, 20, DEVICES)
    counts[:3] = 0, 1, 5
    rows = generator.integers(5, 300, counts.sum())
    rows[1:6] = np.arange(5)
    return odp.data.UsersExamples(features, kinds, rows, np.concatenate(([0], np.cumsum(counts))))


def task(mode: str, training: odp.DPFedAvg | odp.DPSGD) -> odp.Task:
    return odp.Task(
        name="kinds", population="films", model=MODEL, data=DATA, training=training,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600, aggregation=mode),
    )  # fmt: skip


TRAININGS = {
    "enclave": odp.DPFedAvg(
        rounds=3, epochs=2, batch=4, clip=0.5, clip_quantile=0.5, noise_schedule=[(1, 2.0), (2, 1.0)], server="adam",
        server_rate=0.01, diagnostics=True,
    ),
    "masked": odp.DPFedAvg(rounds=2, batch=4, rate=0.5, clip_quantile=0.5, server_momentum=0.5, diagnostics=True),
    "secagg+": odp.DPSGD(rounds=2, most_examples=8),
}  # fmt: skip


def alone_of(users: odp.data.UsersExamples, user: int) -> odp.data.UsersExamples:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    return odp.data.UsersExamples(users.features, users.targets, rows, np.array([0, len(rows)]))


def is_one_user_shortened(apart: np.ndarray, contributions: Sequence[np.ndarray]) -> bool:
    """Whether the sums differ by what one user's vector loses where rounding made it longer than its bound.

    Each of its numbers is truncated then, and loses one step. One number that falls on the other side of an edge
    decides it, where the length is near the bound.
    """
    return any(
        np.count_nonzero(apart - sign * np.sign(contribution)) <= 4
        for contribution in contributions
        for sign in (1, -1)
    )


@pytest.mark.representative
@pytest.mark.parametrize("mode", TRAININGS)
def test_devices_train_the_model_of_the_simulation_in_every_mode(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise off, means differ by no more than float32 rounding can make of a kernel and of numpy: 1e-6."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    users = people(unknown=np.nan)
    world = World(tmp_path, **({} if mode == "secagg+" else {"noise": NoNoise()})).start(stack)
    handle = world.connection.submit(task(mode, TRAININGS[mode]))
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(people(), DATA)))
    assert [entry.contributions for entry in status.rounds] == [DEVICES] * TRAININGS[mode].rounds

    algorithm, figures = algorithm_for(open_task(status.task)), []
    assert isinstance(algorithm, Diagnosed)
    server, population, seeds = algorithm.server(), algorithm.population(), device_seeds(world, DEVICES)
    state = server.start()
    for entry in status.rounds:
        (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
        networked = np.frombuffer(tensor.integers, "<i8")
        simulated = population.contribute(server.broadcast(state), users, round=entry.round, seeds=seeds)[RELEASE]
        assert np.count_nonzero(simulated) > MODEL.features
        # A number at the edge of a step may fall on its other side: of a coarse grid, that is above 1e-6.
        apart = networked - simulated
        assert np.abs(apart).max() * tensor.step / DEVICES <= max(1e-6, tensor.step / DEVICES)
        if np.count_nonzero(np.abs(apart) * tensor.step / DEVICES > 1e-6) > 4:
            alone = [
                population.contribute(server.broadcast(state), alone_of(users, user), round=entry.round,
                                      seeds=seeds[user : user + 1])[RELEASE]
                for user in range(DEVICES)
            ]  # fmt: skip
            assert is_one_user_shortened(apart, alone)
        released = NoisyTensors(entry.round, {RELEASE: networked * tensor.step}, DEVICES)
        figures.append({} if mode == "secagg+" else algorithm.figures(server.broadcast(state), released, noisy=True))
        state = server.step(state, released)
    published = handle.model().dense[PARAMETERS]
    np.testing.assert_array_equal(published, server.broadcast(state).dense[PARAMETERS])
    assert np.abs(published).max() > 1e-3
    if TRAININGS[mode].diagnostics:
        told = handle.results().to_json()["rounds"]
        assert isinstance(told, list)
        for one, expected in zip(told, figures, strict=True):
            assert {name: one[name] for name in expected} == pytest.approx(expected, rel=1e-9)

    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert [found.contributions for found in report.tasks] == [(DEVICES,) * len(status.rounds)]
    for device in range(DEVICES):
        with Store.open(store_path(world.root / "devices", device)) as store:
            assert store.empty_contributions() == 0
            assert len(store.ledger()) == len(status.rounds)


def test_a_sum_with_one_user_shortened_is_told_from_one_with_a_user_less() -> None:
    generator = np.random.default_rng(3)
    contributions = list(generator.integers(-500, 500, (DEVICES, 54)))
    for contribution in contributions:
        assert is_one_user_shortened(-np.sign(contribution), contributions)
        assert not is_one_user_shortened(-contribution, contributions)
    assert not is_one_user_shortened(np.ones(54, dtype=np.int64), contributions)


def test_devices_read_names_and_text_as_the_simulation_does(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """Devices store text; the simulation has numbers. Examples of names that the task does not know are left out."""
    generator = np.random.default_rng(6)
    names, said = np.array(["sun", "rain", "snow"]), np.array(["Out, out!", "stay in", "", "the élan of it"])
    columns = {
        "weather": names[generator.integers(0, 3, 240)], "hour": generator.integers(-1, 25, 240),
        "said": said[generator.integers(0, 4, 240)], "kind": generator.integers(0, 3, 240),
    }  # fmt: skip
    features = {
        "weather": odp.Category(("sun", "rain")), "hour": odp.Category(24),
        "said": odp.Text(("out", "in", "élan"), 3),
    }  # fmt: skip
    data, training = odp.Examples(features, label="kind"), odp.DPFedAvg(rounds=2, batch=4, clip=0.5)
    asked = dataclasses.replace(
        task("enclave", training), data=data, model=odp.Glm("multinomial", features=29, classes=3)
    )
    given = odp.data.ExampleColumns.of_users(columns, np.arange(240) % DEVICES)
    users = given.users_examples(data)
    world = World(tmp_path, noise=NoNoise()).start(stack)
    status = world.finish(world.connection.submit(asked), world.devices(examples=given))
    algorithm = algorithm_for(open_task(status.task))
    server, population, seeds = algorithm.server(), algorithm.population(), device_seeds(world, DEVICES)
    state = server.start()
    for entry in status.rounds:
        assert entry.contributions == DEVICES
        (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
        networked = np.frombuffer(tensor.integers, "<i8")
        simulated = population.contribute(server.broadcast(state), users, round=entry.round, seeds=seeds)[RELEASE]
        assert np.count_nonzero(simulated) > 29
        assert np.abs((networked - simulated) * tensor.step / DEVICES).max() <= 1e-6
        state = server.step(state, NoisyTensors(entry.round, {RELEASE: networked * tensor.step}, DEVICES))


def test_a_training_with_noise_costs_its_budget_and_shows_what_was_read(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    world = World(tmp_path).start(stack)
    asked = task("enclave", odp.DPFedAvg(rounds=2))
    status = world.finish(
        world.connection.submit(asked), world.devices(examples=odp.data.ExampleColumns.of(people(), DATA))
    )  # fmt: skip
    release = common_pb2.Release.FromString(status.rounds[-1].release.release)
    assert 8.0 - 1e-4 < release.epsilon_spent <= 8.0
    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert report.tasks[0].epsilon == pytest.approx(release.epsilon_spent, rel=1e-9)
    with odp.Device(world.root / "devices", environment=Environment(create=False, keyring=False)) as device:
        (read,) = device.privacy()["read"]
    assert (read["table"], read["rounds"]) == ("examples", 2)


# One mode in CI: goals are the server's, whatever the mode is (server/test_driver.py).
@pytest.mark.parametrize(
    "mode",
    [pytest.param("enclave", marks=pytest.mark.proof), pytest.param("masked", marks=pytest.mark.proof), "secagg+"],
)
def test_each_round_of_a_schedule_closes_at_its_goal_and_is_divided_by_it(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str
) -> None:
    world = World(tmp_path).start(stack)
    training = odp.DPSGD(
        rounds=2, most_examples=8, cohort_schedule=[(1, 20), (1, DEVICES)], noise_multiplier=20.0, diagnostics=True
    )
    handle = world.connection.submit(task(mode, training))
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(people(), DATA)))
    first, last = (entry.contributions for entry in status.rounds)
    assert 20 <= first <= DEVICES
    assert last == DEVICES
    algorithm = algorithm_for(open_task(status.task))
    server = algorithm.server()
    state, before = server.start(), np.zeros((MODEL.size, 1))
    for entry, divisor in zip(status.rounds, (20, DEVICES), strict=True):
        (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
        values = np.frombuffer(tensor.integers, "<i8") * tensor.step
        state = server.step(state, NoisyTensors(entry.round, {RELEASE: values}, entry.contributions))
        after = server.broadcast(state).dense[PARAMETERS].astype(np.float64)
        expected = values[: MODEL.size] * training.clip / divisor
        np.testing.assert_allclose((after - before)[:, 0], expected, atol=1e-6)
        before = after
    np.testing.assert_array_equal(handle.model().dense[PARAMETERS], server.broadcast(state).dense[PARAMETERS])
    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert report.tasks[0].epsilon < 8.0
    told = handle.results()
    assert told.epsilon == pytest.approx(report.tasks[0].epsilon, rel=1e-9)
    assert len(told.to_json()["rounds"]) == 2  # type: ignore[arg-type]

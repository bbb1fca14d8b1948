"""Gradient steps with 200 devices in each mode of aggregation, in real processes over TLS, beside the simulator.

The task is what ``DPAM.recommended`` says for its data. There are two platforms: one whose enclave and devices add no
noise, by the code of another measurement and another device program (``test_three_modes.py``), and one as it is
delivered. Without noise, model and simulation are equal to the last bit. With noise no run equals another one, so the
error on ratings that no device holds is compared with its spread over seeds of the simulation.

Each test takes three to six minutes of two busy cores, most of which its devices wait for their fixed times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e import device_hosts
from e2e.device_hosts import Host
from e2e.killing import UnattackedServices
from e2e.test_three_modes import NoiselessServices

import odp
from device_runtime import Store, store_path
from odp.algorithms.registry import recommender_for
from odp.algorithms.release import charges_of
from odp.datasets import Split
from odp.datasets.ratings import merge
from odp.evaluation.baselines import rmse
from odp.evaluation.noise import NoNoise
from odp.privacy.accounting import epsilon as epsilon_of
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation import engine
from odp.research.simulation.presets import preset_task
from odp.services.connection import Connection, connect
from odp.signed.task import open_task
from odp.tasks.task import Task
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import common_pb2, server_pb2

# In CI, test_item_gradients.py has the equality with 24 devices in one process, and test_every_combination.py
# `ratings-gradients` in real processes with four.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.proof]

DEVICES = 200
MODES = ("enclave", "masked", "secagg+")
SECONDS = 900.0
#: Seeds of the simulation, and how far from their mean an error may be, in their standard deviations. By Student's law
#: with 39 degrees of freedom a sound run is further away with a probability of 1e-6: 3e-6 for the three modes.
SEEDS, DEVIATIONS = 40, 5.9


@functools.cache
def data() -> Split:
    """What the devices hold, and ratings for tests."""
    ratings = odp.data.synthetic_movielens(n_users=DEVICES, n_items=60, ratings_per_user=20, seed=3)
    split = odp.data.random_split(ratings)
    nothing = ratings.take(np.zeros(ratings.n_ratings, dtype=bool))
    return Split(train=merge(split.train, split.validation), validation=nothing, test=split.test)


def task_of(mode: str) -> Task:
    task = preset_task("auto", data().train, epsilon=8.0, delta=1e-5)
    secagg = {"corrupt_fraction": 0.05, "dropout_fraction": 0.1} if mode == "secagg+" else {}
    cohort = odp.Cohort(
        minimum=DEVICES, goal=DEVICES, round_seconds=600, aggregation=mode, computing_seconds=1.0, **secagg
    )
    return dataclasses.replace(task, name=mode.rstrip("+"), population=mode.rstrip("+"), cohort=cohort)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A task that ran on devices of the seeds uint64 [users]."""

    status: server_pb2.TaskStatus
    model: ModelVersion
    seeds: np.ndarray


class Platform:
    """Services, on which one task after another runs with devices of its own."""

    def __init__(self, root: Path, stack: contextlib.ExitStack, *, quiet: bool) -> None:
        self.root, self._quiet = root, quiet
        self._held = root / "held.npz"
        data().train.save(self._held)
        policy = EnclavePolicy(role="aggregator", minimum_cohort=DEVICES)
        pace = ["--secagg-step", "120", "--secagg-vector", "120", "--secagg-silent", "120"]
        kind = NoiselessServices if quiet else UnattackedServices
        self.services = stack.enter_context(kind(root, policy=policy, aggregator_options=pace))
        self.connection: Connection = stack.enter_context(connect(self.services.server_address, state=root))

    def finished(self, mode: str) -> Finished:
        task = task_of(mode)
        handle = self.connection.submit(task)
        pause, end = threading.Event().wait, time.monotonic() + SECONDS
        while not handle.status().rounds:  # who finds no round is told to come back much later
            pause(0.2)
        state = self.root / f"{task.name}-devices"
        host = Host(
            state=str(state), services=str(self.root), server=self.services.server_address, population=task.name,
            first=0, count=DEVICES, quiet=self._quiet, data=str(self._held),
        )  # fmt: skip
        plan = self.root / f"{task.name}.json"
        plan.write_text(json.dumps([dataclasses.asdict(host)]))
        with (self.root / "device_hosts.log").open("ab") as log:
            program = [sys.executable, "-P", device_hosts.__file__, str(plan)]
            hosts = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            while (status := handle.status()).state == server_pb2.TaskStatus.STATE_ACTIVE:
                assert time.monotonic() < end, f"{status.rounds[-1]}\n{Path(f'{state}.log').read_text()[-1500:]}"
                pause(0.5)
        finally:
            assert hosts.stdin is not None
            hosts.stdin.close()
            hosts.wait(60.0)
        assert status.state == server_pb2.TaskStatus.STATE_FINISHED, status.failure
        return Finished(status, handle.model(), _seeds(state))


def _seeds(state: Path) -> np.ndarray:
    seeds = np.empty(DEVICES, dtype=np.uint64)
    for device in range(DEVICES):
        with Store.open(store_path(state, device)) as store:
            seeds[device] = store.identity().seed
    return seeds


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Platform]]:
    """Starts each platform once: that without noise, and that with it."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda quiet: Platform(tmp_path_factory.mktemp("platform"), stack, quiet=quiet))


@pytest.mark.parametrize("mode", MODES)
def test_without_noise_the_model_of_200_devices_is_the_simulators_to_the_last_bit(
    platform: Callable[[bool], Platform], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, run = task_of(mode), platform(True).finished(mode)
    assert task.training.step == "gradient", "as recommended"
    assert [entry.contributions for entry in run.status.rounds] == [DEVICES] * run.status.planned_rounds
    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: run.seeds)
    simulated = odp.simulate(task, data(), noise=NoNoise())
    for table, expected in zip(run.model.tables, simulated.model.tables, strict=True):
        np.testing.assert_array_equal(table.rows, expected.rows)
    assert np.abs(run.model.keyed.rows[:, 3:]).max() > 1e-2, "factors were trained, not left at zero"


@pytest.mark.parametrize("mode", MODES)
def test_with_noise_the_error_of_200_devices_is_within_the_spread_of_the_simulator(
    platform: Callable[[bool], Platform], mode: str
) -> None:
    """On ratings that no device holds; and every release is charged."""
    task, run = task_of(mode), platform(False).finished(mode)
    algorithm, split = recommender_for(open_task(run.status.task)), data()
    charges = [event for round in range(len(run.status.rounds)) for event in charges_of(algorithm.query(round))]
    spent = common_pb2.Release.FromString(run.status.rounds[-1].release.release).epsilon_spent
    assert math.isclose(spent, epsilon_of(charges, delta=1e-5), rel_tol=1e-9)
    assert spent <= 8.0

    population = algorithm.population()
    error = rmse(population.predict(run.model, split.train, split.test), split.test)
    errors = np.array([odp.simulate(task, split, seed=seed).metrics["test_rmse"] for seed in range(SEEDS)])
    deviations = (error - errors.mean()) / errors.std(ddof=1)
    assert abs(deviations) < DEVIATIONS * math.sqrt(1 + 1 / SEEDS), f"{error:.4f} beside {errors.mean():.4f}"
    means = rmse(np.full(split.test.n_ratings, split.train.values.mean()), split.test)
    assert error < 0.95 * means, "the model says more than the mean of all ratings"

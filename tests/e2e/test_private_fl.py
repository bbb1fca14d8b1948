"""Private federated learning over the whole platform: devices randomize, the enclave sums, both layers are charged."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from e2e.test_federated import DATA, DEVICES, MODEL, people
from e2e.world import World, device_seeds

import odp
from device_runtime import Gate, Limits, Store, store_path
from device_runtime.round import secagg
from device_runtime.view.overview import overview
from odp.algorithms.federated.terms import RELEASE
from odp.algorithms.private_fl.algorithm import TaskAlgorithm
from odp.algorithms.registry import algorithm_for
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

ROUNDS = 2


# Sums of reports are those of any vector, whatever the mode: one in CI.
@pytest.mark.parametrize(
    "mode",
    ["enclave", pytest.param("masked", marks=pytest.mark.proof), pytest.param("secagg+", marks=pytest.mark.proof)],
)
def test_devices_send_reports_whose_sum_is_that_of_their_updates_but_for_the_stated_error(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The noise of the enclave, and the shares of devices, are off.

    Both sums of 24 random reports are of 54 numbers. Their squared distance is above four times its expectation
    with probability below 1e-6, and below a tenth of it, as with equal or missing randomness, as rarely.
    """
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    users, in_session = people(unknown=math.nan), mode == "secagg+"
    fractions = {"corrupt_fraction": 0.05, "dropout_fraction": 0.2} if in_session else {}
    asked = odp.Task(
        name="kinds", population="films", model=MODEL, data=DATA,
        training=odp.PrivateFL(rounds=ROUNDS, epochs=2, batch=4, rate=0.5, participations=ROUNDS),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600, aggregation=mode, **fractions),
    )  # fmt: skip
    world = World(tmp_path, **({} if in_session else {"noise": NoNoise()})).start(stack)
    status = world.finish(
        world.connection.submit(asked), world.devices(examples=odp.data.ExampleColumns.of(people(), DATA))
    )
    assert [entry.contributions for entry in status.rounds] == [DEVICES] * ROUNDS

    algorithm = algorithm_for(open_task(status.task))
    assert isinstance(algorithm, TaskAlgorithm)
    reports, clip = algorithm.reports(), algorithm.terms().clip
    server, population, seeds = algorithm.server(), algorithm.population(), device_seeds(world, DEVICES)
    (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
    networked = np.frombuffer(tensor.integers, "<i8") * tensor.step * clip
    simulated = population.contribute(server.broadcast(server.start()), users, round=0, seeds=seeds)[RELEASE]
    apart = float(np.square(networked - simulated * tensor.step * clip).sum())
    # Of reports of one update, E |Z - Z'|^2 is twice E |Z|^2 less the update's square, which is small beside it.
    expected = 2 * DEVICES * reports.mean_square(reports.magnitude.high)
    assert 0.02 * expected < apart < 4 * expected

    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert [found.contributions for found in report.tasks] == [(DEVICES,) * ROUNDS]
    for device in range(DEVICES):
        with Store.open(store_path(world.root / "devices", device)) as store:
            found = overview(store, Gate(limits=Limits()), now=0.0)
            assert found["local"]["reports"] == ROUNDS
            assert found["local"]["epsilon"] == pytest.approx(ROUNDS * 24.0, rel=1e-6)
            assert found["spent"]["total"]["epsilon"] <= 8.0
            assert store.empty_contributions() == 0

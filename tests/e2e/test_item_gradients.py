"""Gradients of an item table over the real services: as simulated, charged, and of use to a device."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from e2e.test_secagg import without_noise
from e2e.world import POPULATION, World, device_seeds, released_charges, small_task

import odp
from device_runtime import Store, download_model, recommend, store_path
from device_runtime.tasks.charters import CharterMemory
from odp.datasets import Ratings, Split
from odp.evaluation.noise import NoNoise
from odp.privacy.accounting import epsilon as epsilon_of
from odp.protocol.aggregation import MODES, SECAGG
from odp.research.simulation import engine
from odp.v1 import common_pb2

SGD, DPAM = odp.DPSGD(rounds=4, server_rate=2.0), odp.DPAM(step="gradient", steps=3)


@pytest.fixture(params=["ratings", "implicit"])
def data(request: pytest.FixtureRequest, ratings: Ratings) -> Ratings:
    """Ratings, or who has rated what."""
    return ratings if request.param == "ratings" else _seen(ratings)


def _seen(ratings: Ratings) -> Ratings:
    seen = ratings.users(), ratings.items, np.ones(ratings.n_ratings)
    size = {"n_users": ratings.n_users, "n_items": ratings.n_items}
    return Ratings.from_triples("seen", *seen, low=0, high=1, implicit=True, **size)


@pytest.mark.parametrize(
    ("seen", "training", "aggregation"),
    [(False, SGD, "enclave"), (True, SGD, "enclave"), *((False, DPAM, mode) for mode in MODES)],
)
def test_networked_run_and_simulation_agree_to_the_last_bit_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch, seen, training,
    aggregation,
) -> None:  # fmt: skip
    """Equal integer sums make equal models: the same server steps from them. Also of rows asked for by key in a
    session of SecAgg+.
    """
    without_noise(monkeypatch)
    data = _seen(ratings) if seen else ratings
    world = World(tmp_path, noise=NoNoise()).start(stack)
    # Fewer places than a device has items: who sends what depends on the device's seed.
    task = small_task(data, rank=4, training=training, places=8)
    secagg = {"corrupt_fraction": 0.05, "dropout_fraction": 0.1} if aggregation == SECAGG else {}
    cohort = dataclasses.replace(task.cohort, aggregation=aggregation, **secagg)
    task = dataclasses.replace(task, cohort=cohort)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(data))
    networked = handle.model()
    assert [entry.contributions for entry in status.rounds] == [data.n_users] * 4

    seeds = device_seeds(world, data.n_users)
    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds)
    nothing = data.take(np.zeros(data.n_ratings, dtype=bool))
    simulated = odp.simulate(task, Split(train=data, validation=nothing, test=nothing), noise=NoNoise())
    assert [table.name for table in networked.tables] == ["items", "root" if data.implicit else "globals"]
    for table, expected in zip(networked.tables, simulated.model.tables, strict=True):
        np.testing.assert_array_equal(table.rows, expected.rows)
    assert np.abs(networked.keyed.rows[:, 1]).max() > 1e-2, "items were trained, not left at zero"

    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds[::-1])
    other = odp.simulate(task, Split(train=data, validation=nothing, test=nothing), noise=NoNoise())
    assert np.abs(other.model.keyed.rows - simulated.model.keyed.rows).max() > 1e-4, "other seeds, other samples"


def test_every_release_is_charged_and_a_device_is_offered_what_it_has_not_seen(
    tmp_path: Path, stack: contextlib.ExitStack, data: Ratings
) -> None:
    world = World(tmp_path).start(stack)
    task = small_task(data, rank=2, training=odp.DPSGD(rounds=3), places=8)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(data))
    releases = [common_pb2.Release.FromString(entry.release.release) for entry in status.rounds]
    charged = [event for release in releases for event in released_charges(release)]
    assert [event.name for event in charged] == [
        "masses",
        *(["gradients", "gramian"] if data.implicit else ["gradients"]) * 2,
    ]
    spent = releases[-1].epsilon_spent
    assert math.isclose(spent, epsilon_of(charged, delta=task.privacy.delta), rel_tol=1e-9)
    assert spent == pytest.approx(task.privacy.epsilon, rel=1e-6)

    services = world.services()
    try:
        downloaded = download_model(services, services.newest_model(POPULATION), charters=CharterMemory())
    finally:
        services.close()
    with Store.open(store_path(world.root / "devices", 0)) as store:
        offered = recommend(store, downloaded, k=5)
    items, _ = data.user(0)
    assert len(offered.items) == 5
    assert not np.isin(offered.items, items).any()

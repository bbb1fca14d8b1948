"""Implicit feedback over the real services: the computation of the simulator, charged, and of use to a device."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from e2e.world import POPULATION, World, device_seeds, released_charges, small_task

import odp
from device_runtime import Store, download_model, recommend, store_path
from device_runtime.tasks.charters import CharterMemory
from odp.datasets import Ratings, Split
from odp.evaluation.noise import NoNoise
from odp.privacy.accounting import epsilon as epsilon_of
from odp.research.simulation import engine
from odp.v1 import common_pb2


@pytest.fixture
def events(ratings: Ratings) -> Ratings:
    """Who has seen what: most users have more than the bound."""
    seen = ratings.users(), ratings.items, np.ones(ratings.n_ratings)
    size = {"n_users": ratings.n_users, "n_items": ratings.n_items}
    return Ratings.from_triples("seen", *seen, low=0, high=1, implicit=True, **size)


# Item features are the server's alone: CI has them in tests/algorithms/dpam and runs devices without them.
@pytest.mark.parametrize("known", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_networked_run_and_simulation_agree_to_1e_6_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, events: Ratings, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """``known``: the model has public item features, which the server alone uses."""
    world = World(tmp_path, noise=NoNoise()).start(stack)
    # Rows for 12 of a device's items and places for 8: who sends what depends on the device's seed.
    training = odp.ImplicitDPAM(steps=2, head_items=30, slices_per_device=12)
    task = small_task(events, rank=3, training=training, places=8)
    if known:
        features = np.random.default_rng(2).normal(size=(events.n_items, 2))
        task = dataclasses.replace(task, model=dataclasses.replace(task.factorization, item_features=features))
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(events))
    networked = handle.model()
    assert [entry.contributions for entry in status.rounds] == [events.n_users] * 3

    seeds = device_seeds(world, events.n_users)
    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds)
    nothing = events.take(np.zeros(events.n_ratings, dtype=bool))
    simulated = odp.simulate(task, Split(train=events, validation=nothing, test=nothing), noise=NoNoise())
    assert [table.name for table in networked.tables] == ["items"]
    for ours, theirs in zip(networked.tables, simulated.model.tables, strict=True):
        np.testing.assert_allclose(ours.rows, theirs.rows, rtol=0, atol=1e-6)
    learned = np.abs(networked.keyed.rows[:, 1:])
    assert learned.max() > 1e-2, "the factors were trained, not left at zero"

    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds[::-1])
    other = odp.simulate(task, Split(train=events, validation=nothing, test=nothing), noise=NoNoise())
    assert np.abs(other.model.keyed.rows - simulated.model.keyed.rows).max() > 1e-4, "other seeds, other samples"


def test_every_release_is_charged_and_a_device_is_offered_what_it_has_not_seen(
    tmp_path: Path, stack: contextlib.ExitStack, events: Ratings
) -> None:
    world = World(tmp_path).start(stack)
    task = small_task(events, rank=2, training=odp.ImplicitDPAM(steps=1), places=8)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(events))
    releases = [common_pb2.Release.FromString(entry.release.release) for entry in status.rounds]
    charged = [event for release in releases for event in released_charges(release)]
    assert [event.name for event in charged] == ["counts", "targets"]
    spent = releases[-1].epsilon_spent
    assert math.isclose(spent, epsilon_of(charged, delta=task.privacy.delta), rel_tol=1e-9)
    assert spent == pytest.approx(task.privacy.epsilon, rel=1e-6)

    services = world.services()
    try:
        offer = services.newest_model(POPULATION)
        downloaded = download_model(services, offer, charters=CharterMemory())
    finally:
        services.close()
    with Store.open(store_path(world.root / "devices", 0)) as store:
        offered = recommend(store, downloaded, k=5)
    items, _ = events.user(0)
    assert len(offered.items) == 5
    assert not np.isin(offered.items, items).any()

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import odp
from device_runtime.inference.recommend import (
    DownloadedModel,
    Wanted,
    best_of,
    download_model,
    predict,
    predict_ranges,
    recommend,
)
from device_runtime.store.side import say
from device_runtime.tasks.charters import CharterMemory
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.errors import ConfigurationError, ServiceError
from odp.models.side_prior import SidePrior, items_sha256
from odp.protocol.wire.model import Slices

COUNTS = [30, 1, 0, 500, 60, 40]


@pytest.fixture
def trained(world: Any) -> Any:
    """A world after three rounds over real contributions."""
    from device_runtime.network.services import Traffic
    from device_runtime.tasks.assignment import open_assignment

    world.fill(COUNTS)
    participant = world.participant()
    while world.server.assignment is not None:
        work = open_assignment(world.server.assignment, population="people")
        for device in range(len(COUNTS)):
            with world.store(device) as store:
                participant.take_part(store, work, Traffic())
        world.close_round()
    return world


def fetch(world: Any) -> DownloadedModel:
    services = world.services()
    offer = services.newest_model("people")
    return download_model(services, offer, charters=CharterMemory())


def direct(world: Any, data: LocalData, items: np.ndarray) -> np.ndarray:
    broadcast = world.distributor.broadcast
    everything = Slices(broadcast.version, np.arange(len(broadcast.keyed.rows)), broadcast.keyed.rows, broadcast.dense)
    return world.algorithm.client().predict(everything, data, items)


@pytest.mark.parametrize("device", [0, 1, 2, 4])
def test_recommendations_equal_a_direct_computation_and_leave_out_the_history(trained: Any, device: int) -> None:
    downloaded = fetch(trained)
    with trained.store(device) as store:
        found = recommend(store, downloaded, k=25)
        rows = store.ratings()
    assert not set(found.items.tolist()) & set(rows.items.tolist())
    rest = np.setdiff1d(np.arange(600), rows.items)
    scores = direct(trained, {ROWS: rows}, rest)
    order = np.lexsort((rest, -scores))[:25]
    assert found.items.tolist() == rest[order].tolist()
    np.testing.assert_array_equal(found.scores, np.clip(scores[order], 1, 5))
    assert len(set(found.items.tolist())) == 25


def test_reasons_are_the_own_items_that_move_a_prediction_most(trained: Any) -> None:
    downloaded = fetch(trained)
    with trained.store(0) as store:
        found, plain = recommend(store, downloaded, k=5, why=True), recommend(store, downloaded, k=5)
        rows = store.ratings()
    assert plain.reasons is None
    assert found.items.tolist() == plain.items.tolist()
    assert found.reasons is not None
    for item, reasons in zip(found.items, found.reasons, strict=True):
        sizes = [abs(added) for _, added in reasons]
        assert sizes == sorted(sizes, reverse=True)
        assert len(reasons) == 3
        for own, added in reasons:
            # Had that value been as much as the model expects, the prediction would be less by what it adds.
            place = rows.items.tolist().index(own)
            expected = direct(trained, {ROWS: LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0))}, np.array([own]))[0]
            half = rows.values.astype(float)
            half[place] -= 0.01 * (half[place] - expected)
            moved = direct(trained, {ROWS: rows}, np.array([item])) - direct(
                trained, {ROWS: LocalRows(rows.items, half)}, np.array([item])
            )
            np.testing.assert_allclose(moved[0], 0.01 * added, rtol=1e-3, atol=1e-6)


def test_a_device_that_rated_almost_everything_gets_what_is_left(trained: Any) -> None:
    with trained.store(3) as store:
        assert len(recommend(store, fetch(trained), k=1000).items) == 100


def test_predictions_are_the_clients_and_items_out_of_range_are_refused(trained: Any) -> None:
    downloaded = fetch(trained)
    with trained.store(0) as store:
        items = np.array([5, 0, 599])
        np.testing.assert_array_equal(
            predict(store, downloaded, items), np.clip(direct(trained, {ROWS: store.ratings()}, items), 1, 5)
        )
        for wrong in ([600], [-1]):
            with pytest.raises(ConfigurationError, match="0 to 599"):
                predict(store, downloaded, wrong)
        with pytest.raises(ConfigurationError, match="k=0"):
            recommend(store, downloaded, k=0)


@pytest.mark.parametrize("device", [0, 1, 2])
def test_ranges_come_with_a_level_and_exploring_ranks_by_their_upper_ends(trained: Any, device: int) -> None:
    downloaded = fetch(trained)
    with trained.store(device) as store:
        plain, ranged = recommend(store, downloaded, k=600), recommend(store, downloaded, k=600, level=0.8)
        upper, sure = recommend(store, downloaded, k=600, explore=True), recommend(store, downloaded, k=5, level=0.99)
        found = predict_ranges(store, downloaded, plain.items, level=0.8)
        wide = predict_ranges(store, downloaded, np.sort(plain.items))
    assert plain.ranges is None
    assert plain.rows()[0] == [plain.items[0], plain.scores[0]]
    np.testing.assert_array_equal(ranged.items, plain.items)
    np.testing.assert_array_equal(ranged.scores, plain.scores)
    assert ranged.ranges is not None
    assert upper.ranges is not None
    assert sure.ranges is not None
    for name in ("mean", "low", "high", "upper"):
        np.testing.assert_array_equal(getattr(ranged.ranges, name), getattr(found, name))
    assert ranged.rows()[3] == [plain.items[3], plain.scores[3], found.low[3], found.high[3]]
    assert ((found.low >= 1) & (found.high <= 5)).all()
    # A range that lies beyond the scale as a whole is cut to its end.
    assert ((found.low < found.high) | (found.low == 5) | (found.high == 1)).all()
    assert (sure.ranges.upper > ranged.ranges.upper[:5]).all()
    assert (upper.ranges.level, sure.ranges.level) == (0.9, 0.99)
    assert (np.diff(upper.ranges.upper) <= 0).all()
    order = np.argsort(-wide.upper, kind="stable")
    np.testing.assert_array_equal(upper.items, np.sort(plain.items)[order])
    np.testing.assert_array_equal(upper.scores, wide.mean[order])


@pytest.mark.parametrize("ways", [{"level": None}, {"level": 0.9}])
def test_predictions_beyond_the_scale_rank_items_and_are_shown_within_it(ways: dict[str, Any]) -> None:
    rows = np.ones((4, 4), dtype=np.float32)
    rows[:, 1] = [2.0, 3.0, 0.5, -4.0]  # biases, beside a centre of 3.5
    definition = odp.Task(
        name="films", model=odp.MatrixFactorization(items=4, rank=1), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=2), training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    ).definition()  # fmt: skip
    client = recommender_for(definition).client()
    slices = Slices(3, np.arange(4), rows, {"globals": np.ones((1, 2), dtype=np.float32)})
    data = {ROWS: LocalRows(np.empty(0, dtype=np.int64), np.empty(0))}
    assert client.predict(slices, data, np.arange(4)).tolist() == [5.5, 6.5, 4.0, -0.5]
    model: Any = None
    found = best_of(model, client, slices, data, np.arange(4), wanted=Wanted(4, **ways), catalogue=None, left_out=0)
    assert found.items.tolist() == [1, 0, 2, 3]
    assert found.scores.tolist() == [5.0, 5.0, 4.0, 1.0]
    assert found.values


@pytest.mark.parametrize("own", [[], [4, 9]], ids=["no items", "items that the model lacks"])
def test_a_person_of_whom_the_model_knows_nothing_gets_the_most_popular_items(own: list[int]) -> None:
    """The last factor of a finished model says popularity; the other one is of tastes, and would rank otherwise."""
    rows = np.array([[1, -1, 0.2], [1, 2, 0.9], [1, 3, 0.1], [1, 0, 0.5]], dtype=np.float32)
    definition = odp.Task(
        name="plays", model=odp.MatrixFactorization(items=4, rank=2), data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=2), training=odp.ImplicitDPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    ).definition()  # fmt: skip
    client = recommender_for(definition).client()
    data = {ROWS: LocalRows(np.array(own, dtype=np.int64), np.ones(len(own)))}
    model: Any = None
    slices = Slices(2, np.arange(4), rows, {})
    best = best_of(model, client, slices, data, np.arange(4), wanted=Wanted(4), catalogue=None, left_out=0)
    assert best.items.tolist() == [1, 3, 0, 2]


def test_exploring_brings_an_item_forward_of_which_little_is_known() -> None:
    rows = np.ones((3, 4), dtype=np.float32)
    rows[:, 1:3] = [[0.3, 1.0], [0.2, 0.2], [0.1, 1.0]]  # bias and trust
    definition = odp.Task(
        name="films", model=odp.MatrixFactorization(items=3, rank=1), data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=2), training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    ).definition()  # fmt: skip
    client = recommender_for(definition).client()
    slices = Slices(3, np.arange(3), rows, {"globals": np.ones((1, 2), dtype=np.float32)})
    data = {ROWS: LocalRows(np.empty(0, dtype=np.int64), np.empty(0))}
    model: Any = None

    def ranked(explore: bool) -> list[int]:
        found = best_of(
            model, client, slices, data, np.arange(3), wanted=Wanted(3, 0.9, explore), catalogue=None, left_out=0
        )
        return [int(item) for item in found.items]

    assert (ranked(False), ranked(True)) == ([0, 1, 2], [1, 0, 2])


def test_predictions_begin_at_what_the_person_says_and_a_prior_of_another_model_is_refused(trained: Any) -> None:
    downloaded = fetch(trained)
    rows = downloaded.broadcast.keyed.rows
    rank = downloaded.model.definition.model.rank
    differences = np.zeros((3, 1 + rank))
    differences[1, 0], differences[2, 0] = 0.5, -0.5
    prior = SidePrior(attributes={"age": ("young", "old")}, rows=differences, items_sha256=items_sha256(rows))
    with trained.store(2) as store:  # without ratings
        say(store, {"age": "young", "shoe": "42"}, time=1.0)
        plain, young = predict(store, downloaded, [0, 5]), predict(store, downloaded, [0, 5], side=prior)
        np.testing.assert_allclose(young, plain + 0.5)
        say(store, {"age": "old"}, time=2.0)
        old = predict_ranges(store, downloaded, [0, 5], side=prior)
        np.testing.assert_allclose(old.mean, plain - 0.5)
        best = recommend(store, downloaded, k=3, side=prior)
        np.testing.assert_allclose(best.scores, recommend(store, downloaded, k=3).scores - 0.5)
        other = dataclasses.replace(prior, items_sha256=bytes(32))
        with pytest.raises(ConfigurationError, match="of this very model"):
            recommend(store, downloaded, side=other)


def test_a_level_out_of_range_is_refused_before_anything_is_read(trained: Any) -> None:
    downloaded = fetch(trained)
    for level in (0.4, 1.0):
        with trained.store(0) as store:
            for call in (
                lambda level=level: recommend(store, downloaded, level=level),
                lambda level=level: predict_ranges(store, downloaded, [1], level=level),
            ):
                with pytest.raises(ConfigurationError, match="level="):
                    call()


def test_a_model_that_only_ranks_has_no_ranges(trained: Any) -> None:
    downloaded = fetch(trained)
    implicit = odp.Task(
        name="seen",
        model=odp.MatrixFactorization(items=600, rank=4),
        data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20),
        training=odp.ImplicitDPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    ).definition()
    client = recommender_for(implicit).client()
    model = dataclasses.replace(downloaded.model, definition=implicit, client=client)
    with trained.store(0) as store:
        for call in (
            lambda: recommend(store, dataclasses.replace(downloaded, model=model), explore=True),
            lambda: predict_ranges(store, dataclasses.replace(downloaded, model=model), [1]),
        ):
            with pytest.raises(ConfigurationError, match="'seen' ranks items and predicts no values, so there are no"):
                call()


def test_inference_sends_nothing_about_the_device(trained: Any) -> None:
    selects, submits, checkins = (
        len(trained.distributor.sizes), len(trained.aggregator.submits), len(trained.server.requests),
    )  # fmt: skip
    with trained.store(0) as store:
        recommend(store, fetch(trained))
    assert (len(trained.distributor.sizes), len(trained.aggregator.submits)) == (selects, submits)
    assert trained.server.requests[checkins:] == [b"\x0a\x06people"]


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[:-1], lambda data: data + b"\0", lambda data: bytes([data[0] ^ 1]) + data[1:]],
    ids=["short", "long", "changed"],
)
def test_a_table_that_is_not_the_signed_one_is_refused(trained: Any, spoil: Any) -> None:
    trained.distributor.spoil_table = spoil
    with pytest.raises(ServiceError):
        fetch(trained)

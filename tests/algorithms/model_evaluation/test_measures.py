"""Measurements of users: bounded whatever they hold, equal on devices and in simulation, and what they should be."""

from __future__ import annotations

import numpy as np
import pytest
from algorithms.model_evaluation import worlds
from algorithms.model_evaluation.worlds import LOGISTIC, MULTINOMIAL, evaluation, people, rows_of, slices_of, vector
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.model_evaluation.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.algorithms.seam import LocalRows
from odp.errors import ContributionRefused, DataError, Refusal
from odp.models.glm import Glm
from odp.privacy.accounting import epsilon

PERSONAL = odp.PersonalTraining(rate=0.5, epochs=2, batch=3, held_out=0.4)
KINDS: dict[str, odp.Evaluation] = {
    "one": evaluation(),
    "halves": evaluation(against=vector(LOGISTIC, seed=9)),
    "personal": evaluation(personal=PERSONAL),
    "classes": evaluation(model=MULTINOMIAL, metrics=["loss", "accuracy", "recall@2", "calibration"]),
    "numbers": evaluation(
        model=Glm("linear", worlds.FEATURES), loss_high=4.0,
        data=odp.Examples(dict(worlds.DATA.features), label_low=-1.0, label_high=3.0),
    ),
}  # fmt: skip
NUMBERS = st.floats(width=32)


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    values=st.lists(st.lists(NUMBERS, min_size=6, max_size=6), max_size=6),
    labels=st.lists(NUMBERS | st.sampled_from([0.0, 1.0, 2.0]), min_size=6, max_size=6),
    scale=st.sampled_from([0.0, 1.0, 1e30]),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_device_moves_the_sum_by_its_bound_at_most_whatever_it_holds(
    kind: str, values: list[list[float]], labels: list[float], scale: float, seed: int
) -> None:
    task = KINDS[kind]
    algorithm, slices = algorithm_for(task.definition()), slices_of(task)
    dense = {name: table * np.float32(scale) for name, table in slices.dense.items()}
    rows = LocalRows(
        np.arange(len(values)), np.array(labels[: len(values)]), {"x": np.array(values).reshape(-1, 2, 3)}
    )  # fmt: skip
    with np.errstate(all="ignore"):
        payload, local = algorithm.client().contribute(
            type(slices)(0, slices.keys, slices.rows, dense), algorithm.data_of(rows), round=0, seed=seed
        )
    query = algorithm.query(0)
    query.check(payload)
    assert local == b""
    assert isinstance(query, DenseQuery)
    numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64)
    # No vector was cut: its bound leaves room for the rounding.
    assert numbers @ numbers < query.grid.limit


@pytest.mark.parametrize("kind", KINDS)
def test_clients_and_population_make_the_same_sum(kind: str) -> None:
    task = KINDS[kind]
    users = people(60, classes=4 if kind == "classes" else 2)
    algorithm, slices = algorithm_for(task.definition()), slices_of(task)
    seeds = np.random.default_rng(3).integers(0, 2**63, users.n_users).astype(np.uint64)
    client, query = algorithm.client(), algorithm.query(0)
    total = query.new_sum()
    for user in range(users.n_users):
        own = algorithm.data_of(rows_of(users, user))
        payload = client.contribute(slices, own, round=0, seed=int(seeds[user]))[0]
        query.check(payload)
        total.add([payload])
    server = algorithm.server(item_features=task.public_matrix)
    simulated = algorithm.population().contribute(server.broadcast(server.start()), users, round=0, seeds=seeds)
    apart = (total.totals()[RELEASE] - simulated[RELEASE]) * query.releases[0].step / users.n_users
    assert simulated[RELEASE].any()
    # Matrix products of other shapes may differ in the last bit, which moves a few numbers by one step.
    assert np.abs(apart).max() <= 1e-5


def test_users_without_usable_examples_contribute_nothing() -> None:
    task = KINDS["one"]
    algorithm, slices = algorithm_for(task.definition()), slices_of(task)
    empty = algorithm.client().empty(0)
    for rows in (
        LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0)),
        LocalRows(np.arange(2), np.zeros(2)),
        LocalRows(np.arange(2), np.zeros(2), {"x": np.full((2, 2, 3), np.nan)}),
        LocalRows(np.arange(2), np.array([3.0, 0.5]), {"x": np.zeros((2, 2, 3))}),
    ):
        assert algorithm.client().contribute(slices, algorithm.data_of(rows), round=0, seed=1)[0] == empty
    algorithm.query(0).check(empty)


def test_a_device_with_one_example_has_none_to_test_its_own_model_on() -> None:
    task = KINDS["personal"]
    algorithm = algorithm_for(task.definition())
    for count, tested in ((1, False), (2, True)):
        rows = LocalRows(np.arange(count), np.zeros(count), {"x": np.ones((count, 2, 3))})
        payload = algorithm.client().contribute(slices_of(task), algorithm.data_of(rows), round=0, seed=1)[0]
        assert (payload != algorithm.client().empty(0)) is tested


def test_forged_and_oversized_contributions_are_refused() -> None:
    query = algorithm_for(KINDS["halves"].definition()).query(0)
    assert isinstance(query, DenseQuery)
    size, units = query.grid.size, query.grid.units

    def refused(numbers: object) -> Refusal:
        with pytest.raises(ContributionRefused) as found:
            query.check(np.asarray(numbers, dtype="<i4").tobytes())
        return found.value.refusal

    largest = np.zeros(size)
    largest[-1] = -units
    query.check(largest.astype("<i4").tobytes())
    for forged in (largest - np.eye(size)[0], largest * 2, np.full(size, units), np.full(size, -(2**31))):
        assert refused(forged) is Refusal.OUT_OF_BOUNDS
    assert refused(largest[:-1]) is Refusal.MALFORMED
    assert refused(np.zeros(size + 1)) is Refusal.MALFORMED


@pytest.mark.parametrize("mode", ["enclave", "masked", "secagg+"])
def test_the_release_costs_exactly_the_budget(mode: str) -> None:
    (event,) = charges_of(algorithm_for(evaluation(200, mode=mode).definition()).query(0))
    assert 4.0 - 1e-4 < epsilon([event], delta=1e-6) <= 4.0


def test_halves_follow_from_seeds_alone_and_differ_by_task() -> None:
    """4,096 fair coins: a count this far from half comes by chance once in 10^9 tasks."""
    seeds = np.random.default_rng(1).integers(0, 2**63, 4096).astype(np.uint64)
    first = worlds.terms_of(KINDS["halves"]).halves(seeds)
    other = worlds.terms_of(evaluation(against=vector(LOGISTIC, seed=10))).halves(seeds)
    for drawn in (first, other, first ^ other):
        assert abs(int(drawn.sum()) - 2048) < 6.2 * 32
    alone = [int(worlds.terms_of(KINDS["halves"]).halves(seeds[place : place + 1])[0]) for place in range(50)]
    assert alone == first[:50].tolist()
    assert not worlds.terms_of(KINDS["one"]).halves(seeds).any()


def test_a_user_is_measured_in_its_half_alone() -> None:
    task, users = KINDS["halves"], people(40)
    terms, slices = worlds.terms_of(task), slices_of(task)
    algorithm = algorithm_for(task.definition())
    seeds = np.random.default_rng(5).integers(0, 2**63, users.n_users).astype(np.uint64)
    for user in range(users.n_users):
        own = algorithm.data_of(rows_of(users, user))
        payload = algorithm.client().contribute(slices, own, round=0, seed=int(seeds[user]))[0]
        halves = np.frombuffer(payload, dtype="<i4").reshape(2, terms.layout.width)
        assert not halves[1 - terms.halves(seeds)[user]].any()


def test_devices_with_many_examples_draw_some_of_them() -> None:
    features = np.zeros((50, worlds.FEATURES), dtype=np.float32)
    targets = (np.arange(50) % 2).astype(np.float32)
    users = worlds.UsersExamples(features, targets, np.arange(50), np.array([0, 50]))
    found = []
    for seed in range(20):
        task = evaluation(of=vector(LOGISTIC, scale=0.0), metrics=["accuracy"], most_examples=10)
        run = odp.simulate(task, users, seed=seed, noise=False)
        found.append(round(run.results["accuracy"].value * 10, 2))  # type: ignore[index]
    # Half of them are of class 0, which equal probabilities stand for.
    assert len(set(found)) > 2
    assert 4.0 < np.mean(found) < 6.0


def test_seeds_and_examples_that_do_not_fit_are_refused() -> None:
    algorithm, users = algorithm_for(KINDS["one"].definition()), people(20)
    server = algorithm.server(item_features=KINDS["one"].public_matrix)
    broadcast = server.broadcast(server.start())
    with pytest.raises(DataError, match="one seed per user"):
        algorithm.population().contribute(broadcast, users, round=0, seeds=np.zeros(3, dtype=np.uint64))
    narrow = worlds.UsersExamples(users.features[:, :5].copy(), users.targets, users.rows, users.offsets)
    with pytest.raises(DataError, match="6 numbers"):
        algorithm.population().contribute(broadcast, narrow, round=0, seeds=np.zeros(20, dtype=np.uint64))

"""The declared queries of implicit feedback: sensitivity, refusals, charges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS, Contributions
from odp.algorithms.implicit import codec
from odp.algorithms.implicit.population import ImplicitPopulation
from odp.algorithms.implicit.query import ImplicitQuery
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.algorithms.seam import SampledQuery
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.privacy.accounting import epsilon, mu_for
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS, PLACES = 30, 12, 4


def released_norm(release: DeclaredRelease, change: npt.NDArray[np.float64]) -> float:
    """L2 norm in units where each entry has the noise ``noise_std``."""
    return float(np.sqrt((((change / release.column_std) * release.noise_std) ** 2).sum()))


def payload_of(definition: common_pb2.TaskDefinition, *, row: list[int], items: list[int], weights: list[int]) -> bytes:
    """A factor round's payload of any content."""
    terms = Terms.of(definition)
    rows = np.zeros((1, terms.rank), dtype=np.int64)
    rows[0, : len(row)] = row
    padded = [np.zeros((1, terms.max_items), dtype=np.int64) for _ in range(2)]
    padded[0][0, : len(items)], padded[1][0, : len(weights)] = items, weights
    return codec.encode(terms, 1, Contributions(rows, *padded))[0]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 2),
    weighting=st.sampled_from(["adaptive", "uniform"]),
    clip=st.sampled_from([0.05, 0.7, 5.0]),
)
def test_removing_any_user_moves_every_release_and_their_stack_within_the_bounds(
    define_implicit: Define,
    some_events: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    seed: int,
    round: int,
    weighting: str,
    clip: float,
) -> None:
    definition = define_implicit(items=ITEMS, rank=3, places=PLACES, weighting=weighting, row_clip=clip)
    events = some_events(users=USERS, items=ITEMS, seed=seed)
    model = some_model(version=round, items=ITEMS, rank=3, seed=seed + 1)
    seeds = np.random.default_rng(seed).integers(0, 2**64, USERS, dtype=np.uint64)
    population, query = ImplicitPopulation(definition), ImplicitQuery(Terms.of(definition), round)
    everyone = population.contribute(model, events, round=round, seeds=seeds)
    without = np.arange(USERS) != seed % USERS
    others = events.select_users(np.flatnonzero(without))
    rest = population.contribute(model, others, round=round, seeds=seeds[without])
    stacked = 0.0
    for release in query.releases:
        change = (everyone[release.name] - rest[release.name]).reshape(release.shape) * release.step
        # Other batches pad otherwise: a row of another user may round by one unit; allow for a few of those.
        slack = 1.0 if round == 0 else 1.0 + 2e-3
        norm = released_norm(release, change)
        assert norm <= release.sensitivity * slack
        stacked += (norm / release.noise_std) ** 2
    assert stacked <= sum((event.sensitivity / event.noise_std) ** 2 for event in charges_of(query)) * 1.01


def test_the_worst_user_reaches_every_bound_of_a_factor_round(define_implicit: Define) -> None:
    definition = define_implicit(rank=3, places=PLACES, row_clip=0.7)
    query = ImplicitQuery(Terms.of(definition), 1)
    weight = int(WEIGHT_UNITS / math.sqrt(PLACES))
    side = int(ROW_UNITS / math.sqrt(3))
    payload = payload_of(definition, row=[side] * 3, items=[3, 1, 4, 2], weights=[weight] * PLACES)
    query.check(payload)
    total = query.new_sum()
    total.add([payload])
    sums = total.totals()
    assert [release.name for release in query.releases] == ["targets"]
    for release in query.releases:
        norm = released_norm(release, sums[release.name].reshape(release.shape) * release.step)
        assert release.sensitivity * 0.99 < norm <= release.sensitivity


@pytest.mark.parametrize(
    ("row", "items", "weights"),
    [
        ([2049], [1], [1]),
        ([1449, 1449], [1], [1]),
        ([1], [1, 1], [1, 1]),
        ([1], [ITEMS], [1]),
        ([1], [1, 2], [1024, 1]),
    ],
)
def test_a_contribution_beyond_a_bound_is_refused(
    define_implicit: Define, row: list[int], items: list[int], weights: list[int]
) -> None:
    definition = define_implicit(items=ITEMS)
    with pytest.raises(ContributionRefused) as refused:
        ImplicitQuery(Terms.of(definition), 1).check(payload_of(definition, row=row, items=items, weights=weights))
    assert refused.value.refusal == Refusal.OUT_OF_BOUNDS


@pytest.mark.parametrize("round", [0, 1])
def test_the_empty_payload_adds_zero_to_every_sum(define_implicit: Define, round: int) -> None:
    query = ImplicitQuery(Terms.of(define_implicit()), round)
    assert isinstance(query, SampledQuery)
    query.check(query.empty_payload)
    for oblivious in (False, True):
        total = query.new_sum(oblivious=oblivious)
        total.add([query.empty_payload] * 3)
        assert total.count == 3
        assert not any(sums.any() for sums in total.totals().values())


def test_a_contribution_of_another_length_is_refused(define_implicit: Define) -> None:
    definition = define_implicit()
    payload = payload_of(definition, row=[1], items=[1], weights=[1])
    with pytest.raises(ContributionRefused) as refused:
        ImplicitQuery(Terms.of(definition), 1).check(payload + b"\0")
    assert refused.value.refusal == Refusal.MALFORMED


@pytest.mark.parametrize("budget", [1.0, 8.0])
def test_all_planned_releases_together_cost_the_budget(define_implicit: Define, budget: float) -> None:
    definition = define_implicit(epsilon=budget, steps=3)
    algorithm = algorithm_for(definition)
    rounds = algorithm.planned_releases()
    names = [[release.name for release in releases] for releases in rounds]
    assert names == [["counts"]] + [["targets"]] * 3
    events = [event for number in range(4) for event in charges_of(algorithm.query(number))]
    assert [event.name for event in events] == [name for inner in names for name in inner]
    spent = math.sqrt(sum((event.sensitivity / event.noise_std) ** 2 for event in events))
    draws = sum(release.coordinates for releases in rounds for release in releases)
    assert spent == pytest.approx(mu_for(epsilon=budget, delta=1e-6, coordinates=draws), rel=1e-9)
    assert epsilon(events, delta=1e-6) == pytest.approx(budget, rel=1e-6)


def test_the_grid_of_counts_is_finer_than_their_noise(define_implicit: Define) -> None:
    (counts,) = algorithm_for(define_implicit(epsilon=50.0)).planned_releases()[0]
    assert counts.noise_std / counts.step >= 64


def test_a_round_that_the_task_lacks_is_refused(define_implicit: Define) -> None:
    with pytest.raises(ConfigurationError, match="round=3"):
        ImplicitQuery(Terms.of(define_implicit(steps=2)), 3)


def test_many_payloads_at_once_are_refused_for_the_reasons_of_each(define_implicit: Define) -> None:
    definition = define_implicit(items=ITEMS, rank=3, places=PLACES)
    query = ImplicitQuery(Terms.of(definition), 1)
    good = {"row": [100, -200], "items": [3, 0, 29, 7], "weights": [512] * 4}
    wrong: list[dict[str, list[int]]] = [
        {"row": [ROW_UNITS + 1]},
        {"row": [-(2**15)] * 3},
        {"items": [3, 3, 29, 7]},
        {"items": [3, 0, ITEMS, 7]},
        {"weights": [512, 512, 512, 513]},
        {"weights": [2**16 - 1] * 4},
    ]
    payloads, expected = [], []
    for changes in wrong:
        payloads += [payload_of(definition, **good), payload_of(definition, **(good | changes)), b"short"]
        expected += [None, Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED]
    assert query.refusals(payloads) == expected
    assert query.refusals([]) == []
    assert query.refusals([b""]) == [Refusal.MALFORMED]

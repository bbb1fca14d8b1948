"""Oblivious sums: the totals of the direct path, and one trace for all data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpam import codec, query as dpam_query
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.query import DpamQuery, ObliviousAccumulator
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization import query as shared_query
from odp.algorithms.factorization.codec import NO_ITEM
from odp.algorithms.factorization.query import FactorSums, SortedSums
from odp.numerics import sorting_network as network
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, PLACES, RANK = 150, 6, 3


def some(
    definition: common_pb2.TaskDefinition, round: int, *, users: int, seed: int, hot: bool = False
) -> Contributions:
    """Random contributions that the query accepts; ``hot``: everyone has the same first items."""
    terms = Terms.of(definition)
    generator = np.random.default_rng(seed)
    items = np.stack([generator.permutation(terms.items)[: terms.max_items] for _ in range(users)]).astype(np.int64)
    if hot:
        items = np.tile(np.arange(terms.max_items), (users, 1))
    used = generator.random(items.shape) < (1.0 if hot else 0.7)
    weights = used * (1 if round == 0 else generator.integers(1, 400, items.shape))
    most = 0 if round == 0 else math.isqrt(codec.vector_limit(terms, round) // (terms.max_items * 400**2))
    targets = used * generator.integers(-most, most + 1, items.shape)
    rows = generator.integers(-300, 301, (users, terms.rank_of(round)))
    return Contributions(rows, np.where(used, items, NO_ITEM), weights, targets)


@pytest.mark.parametrize("round", [0, 1, 2, 3])
@settings(max_examples=15, deadline=None)
@given(users=st.integers(1, 40), seed=st.integers(0, 2**32), hot=st.booleans())
def test_the_totals_are_those_of_the_direct_sums(define: Define, round: int, users: int, seed: int, hot: bool) -> None:
    definition = define(items=ITEMS, places=PLACES, rank=RANK)
    query = DpamQuery(Terms.of(definition), round)
    payloads = codec.encode(Terms.of(definition), round, some(definition, round, users=users, seed=seed, hot=hot))
    assert query.refusals(payloads) == [None] * users
    direct, sums = query.new_sum(), query.new_sum(oblivious=True)
    assert isinstance(sums, ObliviousAccumulator)
    cut = users // 3
    for part in (payloads[:cut], payloads[cut:]):
        direct.add(part)
        sums.add(part)
    assert sums.count == direct.count == users
    expected = direct.totals()
    for found in (sums.totals(), sums.totals()):  # asked for at any time, and again
        assert found.keys() == expected.keys()
        for name, total in found.items():
            np.testing.assert_array_equal(total, expected[name])


def test_the_largest_entries_are_summed_exactly(define: Define) -> None:
    definition = define(items=4, places=1, rank=1)
    terms = Terms.of(definition)
    row = np.full((300, 1), int(np.sqrt(codec.row_limit(terms))))
    given = Contributions(row, np.full((300, 1), 3), np.full((300, 1), 1024), np.full((300, 1), -512))
    direct, sums = (DpamQuery(terms, 2).new_sum(oblivious=way) for way in (False, True))
    direct.add_decoded(given)
    sums.add_decoded(given)
    for name, total in direct.totals().items():
        np.testing.assert_array_equal(sums.totals()[name], total)
        assert total[3].any()


@pytest.mark.parametrize("items", [1, 63, 64, 65, 200])
def test_tiles_and_blocks_of_any_size_give_the_same_sums(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_query, "_TILE", 64)
    monkeypatch.setattr(shared_query, "_MOST_PLACES", 7)
    monkeypatch.setattr(shared_query, "_MOST_USERS", 10)
    generator = np.random.default_rng(items)
    places, users = min(items, 3), 25
    chosen = np.stack([generator.permutation(items)[:places] for _ in range(users)])
    weights, matrix = generator.integers(0, 9, chosen.shape), generator.integers(-5, 6, (users, 2)).astype(float)
    sums = FactorSums(items, places, (2,))
    for start in range(0, users, 4):
        sums.add(chosen[start : start + 4], [weights[start : start + 4]], [matrix[start : start + 4]])
    expected = np.zeros((items, 2))
    np.add.at(expected, chosen, weights[:, :, None] * matrix[:, None, :])
    np.testing.assert_array_equal(sums.totals()[0], expected)


def test_sorted_sums_fold_when_their_words_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_query, "_FEWEST_WORDS", 16)
    generator = np.random.default_rng(1)
    items, weights = generator.integers(0, 5, (40, 3)), generator.integers(0, 9, (40, 3))
    targets = generator.integers(-512, 513, (40, 3))
    sums = SortedSums(5)
    for start in range(0, 40, 7):
        part = slice(start, start + 7)
        sums.add(items[part], weights[part], targets[part])
    sums.fold()
    sums.fold()
    for found, values in ((sums.weights, weights), (sums.products, weights * targets)):
        expected = np.zeros(5, dtype=np.int64)
        np.add.at(expected, items, values)
        np.testing.assert_array_equal(found, expected)


class TestObliviousness:
    """The same operations on the same places for all data of one size (``tracing``)."""

    def trace(self, definition: common_pb2.TaskDefinition, round: int, given: Contributions, way: bool) -> list[object]:
        arrays = [traced(array.copy()) for array in (given.rows, given.items, given.weights, given.targets)]
        with tracing(shared_query, dpam_query, network) as notes:
            sums = DpamQuery(Terms.of(definition), round).new_sum(oblivious=way)
            sums.add_decoded(Contributions(*arrays))
            sums.totals()
        return notes

    @pytest.mark.parametrize("round", [0, 1, 2])
    def test_one_hot_item_unused_places_and_all_different_items_leave_one_trace(
        self, define: Define, round: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_query, "_FEWEST_WORDS", 256)
        definition = define(items=ITEMS, places=PLACES, rank=RANK)
        spread = some(definition, round, users=30, seed=1)
        nothing = Contributions(*(np.zeros_like(part) for part in (spread.rows, spread.items, *[spread.weights] * 2)))
        notes = self.trace(definition, round, spread, True)
        assert len(notes) > 40
        for other in (
            some(definition, round, users=30, seed=2),
            some(definition, round, users=30, seed=3, hot=True),
            nothing,
        ):
            assert self.trace(definition, round, other, True) == notes

    @pytest.mark.parametrize("round", [0, 1])
    def test_the_direct_sums_leave_another_trace_so_the_tracer_sees_what_it_should(
        self, define: Define, round: int
    ) -> None:
        definition = define(items=ITEMS, places=PLACES, rank=RANK)
        first, second = (some(definition, round, users=30, seed=seed) for seed in (1, 2))
        assert self.trace(definition, round, first, False) != self.trace(definition, round, second, False)

    @pytest.mark.parametrize("places", [5, 300])
    def test_comparing_the_items_of_one_device_leaves_one_trace(self, places: int) -> None:
        def trace(items: np.ndarray, used: np.ndarray) -> list[object]:
            with tracing(shared_query, network) as notes:
                assert shared_query.distinct(traced(items[None]), traced(used[None]))
            # How many places are used is compared, and not told.
            return [note for note in notes if note[0] != "leaves"]  # type: ignore[index]

        ascending, everything = np.arange(places), np.ones(places, dtype=bool)
        notes = trace(ascending, everything)
        assert trace(ascending[::-1].copy(), everything) == notes
        assert trace(np.full(places, 7), np.zeros(places, dtype=bool)) == notes


@settings(max_examples=100, deadline=None)
@given(
    entries=st.lists(st.tuples(st.integers(0, 2**32 - 1) | st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    many=st.booleans(),
)
def test_only_a_repeated_item_that_is_used_is_noticed(entries: list[tuple[int, bool]], many: bool) -> None:
    items, used = np.array([entry[0] for entry in entries]), np.array([entry[1] for entry in entries])
    if many:  # beyond what is compared pair by pair
        items, used = np.concatenate([items, np.full(300, 1)]), np.concatenate([used, np.zeros(300, dtype=bool)])
    held = items[used].tolist()
    answer = len(set(held)) == len(held)
    assert shared_query.distinct(items[None], used[None]).tolist() == [answer]
    both = shared_query.distinct(np.stack([np.arange(len(items)), items]), np.stack([used, used]))
    assert both.tolist() == [True, answer]

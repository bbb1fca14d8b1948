"""Oblivious sums of implicit contributions: the totals of the direct path, and one trace for all data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from algorithms.tracing import traced, tracing

from odp.algorithms.factorization import query as shared
from odp.algorithms.factorization.codec import NO_ITEM, Contributions
from odp.algorithms.implicit import codec, query
from odp.algorithms.implicit.query import ImplicitQuery, ObliviousImplicitSum
from odp.algorithms.implicit.terms import Terms
from odp.numerics import sorting_network as network
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, PLACES, RANK, USERS = 100, 5, 3, 30


def some(round: int, *, seed: int, hot: bool = False) -> Contributions:
    generator = np.random.default_rng(seed)
    items = np.stack([generator.permutation(ITEMS)[:PLACES] for _ in range(USERS)])
    if hot:
        items = np.tile(np.arange(PLACES), (USERS, 1))
    used = generator.random(items.shape) < (1.0 if hot else 0.7)
    weights = used * (1 if round == 0 else generator.integers(1, 450, items.shape))
    rows = generator.integers(-500, 501, (USERS, RANK if round else 0))
    return Contributions(rows, np.where(used, items, NO_ITEM), weights)


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("hot", [False, True])
def test_the_totals_are_those_of_the_direct_sums(define_implicit: Define, round: int, hot: bool) -> None:
    definition = define_implicit(items=ITEMS, places=PLACES, rank=RANK)
    query = ImplicitQuery(Terms.of(definition), round)
    payloads = codec.encode(Terms.of(definition), round, some(round, seed=4, hot=hot))
    for payload in payloads:
        query.check(payload)
    direct, sums = query.new_sum(), query.new_sum(oblivious=True)
    assert isinstance(sums, ObliviousImplicitSum)
    direct.add(payloads)
    sums.add(payloads[:11])
    sums.add(payloads[11:])
    expected, found = direct.totals(), sums.totals()
    assert found.keys() == expected.keys()
    for name, total in expected.items():
        np.testing.assert_array_equal(found[name], total)
        assert total.any()
    assert sums.count == USERS


@pytest.mark.parametrize("round", [0, 1])
def test_one_hot_item_and_all_different_items_leave_one_trace(
    define_implicit: Define, round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_FEWEST_WORDS", 256)
    terms = Terms.of(define_implicit(items=ITEMS, places=PLACES, rank=RANK))

    def trace(given: Contributions) -> list[object]:
        arrays = [traced(array.copy()) for array in (given.rows, given.items, given.weights)]
        with tracing(query, shared, network) as notes:
            sums = ImplicitQuery(terms, round).new_sum(oblivious=True)
            sums.add_decoded(Contributions(*arrays))
            sums.totals()
        return notes

    notes = trace(some(round, seed=1))
    assert len(notes) > 30
    assert trace(some(round, seed=2)) == trace(some(round, seed=3, hot=True)) == notes

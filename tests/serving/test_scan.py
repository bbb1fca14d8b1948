"""The scan finds what exact arithmetic over all items finds, however it is divided."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serving.indexes import index_of, random_index

from odp.errors import ConfigurationError
from odp.serving import ranking
from odp.serving.item_index import ItemIndex, bias_values, scale_values
from odp.serving.ranking import best, person_row


def by_hand(index: ItemIndex, vector: np.ndarray) -> np.ndarray:
    """Scores with whole products that Python adds up, then rounded as the module says: float32 after each step."""
    row = person_row(vector)
    user = [int(step) for step in row.steps]
    products = [sum(int(a) * b for a, b in zip(steps, user, strict=True)) for steps in index.steps.tolist()]
    assert all(abs(one) <= 2**24 for one in products)
    scores = np.array(products, dtype=np.float32)
    for factor in (scale_values(index.scales), row.unit):
        scores = (scores * factor).astype(np.float32)
    return (scores + bias_values(index.biases)).astype(np.float32)


def ranked(scores: np.ndarray, k: int, excluded: set[int], among: set[int]) -> list[int]:
    kept = [place for place in sorted(among) if place not in excluded]
    return sorted(kept, key=lambda place: (-scores[place], place))[:k]


@settings(max_examples=60)
@given(data=st.data())
def test_the_scan_is_brute_force_in_exact_arithmetic(data: st.DataObject) -> None:
    items, rank = data.draw(st.integers(1, 90)), data.draw(st.integers(0, 40))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Few different numbers, so that many scores are equal.
    factors = generator.integers(-2, 3, (items, rank)).astype(np.float32)
    index = index_of(factors, generator.integers(0, 2, items).astype(np.float32))
    vector = generator.standard_normal(rank) * data.draw(st.sampled_from([0.0, 1e-30, 1.0, 1e6]))
    k = data.draw(st.integers(1, items + 3))
    excluded = set(data.draw(st.lists(st.integers(-3, items + 3), max_size=20)))
    among = set(range(items)) if data.draw(st.booleans()) else set(data.draw(st.lists(st.integers(-2, items + 2))))
    everything = among == set(range(items))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_BLOCK", 16), ("_PRODUCT", 5), ("_FEWEST", 8)):
            patch.setattr(ranking, name, value)
        found = best(
            index, vector, k, excluded=np.array(list(excluded), dtype=np.int64), threads=data.draw(st.integers(1, 3)),
            candidates=None if everything else np.array(list(among), dtype=np.int64),
        )  # fmt: skip
    scores = by_hand(index, vector)
    wanted = ranked(scores, k, excluded, {place for place in among if 0 <= place < items})
    assert found.items.tolist() == wanted
    np.testing.assert_array_equal(found.scores, scores[wanted])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=64))
def test_a_persons_row_is_within_half_a_step_and_products_fit_float32(vector: list[float]) -> None:
    row = person_row(np.array(vector))
    most = 2**24 // (127 * len(vector))
    assert np.abs(row.steps).max() <= most
    for value, step in zip(vector, row.steps.tolist(), strict=True):
        assert step == int(step)
        off = abs(Fraction(value) - int(step) * Fraction(float(row.unit)))
        # The unit itself is rounded to float32, and numbers near 0 count as 0.
        bound = Fraction(float(row.unit)) / 2 + Fraction(abs(value)) / 2**22
        assert off <= max(bound, Fraction(1, 2**80))


def test_a_row_that_is_not_finite_ranks_by_biases_and_a_huge_one_is_brought_within_bounds() -> None:
    index = random_index(50, 3)
    found = best(index, np.array([np.nan, np.inf, -np.inf]), 50)
    assert found.items.tolist() == np.argsort(-bias_values(index.biases), kind="stable").tolist()
    assert np.isfinite(best(index, np.array([1e300, -1e300, 1.0]), 50).scores).all()


def test_a_large_catalogue_gives_the_same_on_any_number_of_threads() -> None:
    index = random_index(280_001, 2, keys=[str(place) for place in range(280_001)])
    vector = np.array([0.3, -1.0])
    one, two = (best(index, vector, 400, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.items, two.items)
    np.testing.assert_array_equal(one.scores, two.scores)
    scores = by_hand(index, vector)
    np.testing.assert_array_equal(one.items, np.argsort(-scores, kind="stable")[:400])


def test_a_row_of_another_rank_and_no_items_are_refused() -> None:
    index = random_index(5, 3)
    with pytest.raises(ConfigurationError, match=r"row of 3 numbers, as the index .got .2.."):
        best(index, np.zeros(2), 1)
    with pytest.raises(ConfigurationError, match="k=0"):
        best(index, np.zeros(3), 0)

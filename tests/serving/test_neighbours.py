"""Items that are alike in a released model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serving.indexes import index_of

from odp.errors import ConfigurationError
from odp.serving import neighbours as module
from odp.serving.neighbours import neighbours


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), items=st.integers(1, 40), rank=st.integers(1, 5), k=st.integers(1, 50),
    block=st.integers(1, 50), zeros=st.integers(0, 3),
)  # fmt: skip
def test_neighbours_are_those_of_a_sort_of_all_cosines(
    seed: int, items: int, rank: int, k: int, block: int, zeros: int
) -> None:
    generator = np.random.default_rng(seed)
    factors = generator.standard_normal((items, rank)).astype(np.float32)
    factors[: min(zeros, items)] = 0.0
    index = index_of(factors, np.zeros(items, np.float32), [f"key {place}" for place in range(items)])
    rows = index.columns(np.arange(items)).factors.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        answers = neighbours(index, range(items), k)
    for item, near in enumerate(answers):
        others = [other for other in range(items) if other != item and lengths[other] > 0 and lengths[item] > 0]
        cosines = {f"key {other}": rows[other] @ rows[item] / lengths[other] / lengths[item] for other in others}
        assert len(near) == min(k, len(others))
        np.testing.assert_allclose([each.similarity for each in near], [cosines[each.item] for each in near], atol=1e-5)
        best = sorted(cosines.values(), reverse=True)[:k]
        np.testing.assert_allclose([each.similarity for each in near], best, atol=1e-5)


def test_equal_neighbours_are_in_the_order_of_their_numbers_and_tell_their_trust() -> None:
    index = index_of(np.array([[1, 0], [2, 0], [3, 0]], np.float32), np.zeros(3, np.float32), ["a", "b", "c"])
    (near,) = neighbours(index, [1], 5)
    assert [each.item for each in near] == ["a", "c"]
    assert [each.trust for each in near] == [0.0, 1.0]


def test_items_that_are_not_there_are_refused() -> None:
    index = index_of(np.ones((3, 2), np.float32), np.zeros(3, np.float32))
    with pytest.raises(ConfigurationError, match="Expected items from 0 to 2"):
        neighbours(index, [3], 1)
    with pytest.raises(ConfigurationError, match="k"):
        neighbours(index, [0], 0)

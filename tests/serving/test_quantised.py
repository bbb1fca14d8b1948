"""Rows of int8: within half a scale of what they were, and refused where no scale holds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as extra

from odp.errors import DataError
from odp.serving.item_index import (
    LARGEST,
    STEPS,
    bias_values,
    decoded,
    joined,
    quantised,
    scale_values,
    trust_values,
)

ROWS = extra.arrays(
    np.float32,
    extra.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    elements=st.floats(-(2.0**40), 2.0**40, width=32),
)


@given(rows=ROWS)
def test_a_decoded_value_is_within_half_a_scale_and_the_scale_near_the_largest_over_127(rows: np.ndarray) -> None:
    steps, scales = quantised(rows)
    values, largest = scale_values(scales).astype(np.float64), np.abs(rows).max(axis=1).astype(np.float64)
    kept = values > 0
    assert (largest[~kept] < STEPS * 2.0**-125).all()
    assert (values[kept] <= largest[kept] / STEPS * (1 + 2.0**-7)).all()
    off = np.abs(decoded(steps, scales).astype(np.float64) - rows)
    assert (off[kept] <= 0.5 * values[kept, None] * (1 + 1e-6)).all()
    assert steps.min() >= -STEPS


@given(rows=ROWS)
def test_decoded_values_are_exact_products(rows: np.ndarray) -> None:
    steps, scales = quantised(rows)
    exact = steps.astype(np.float64) * scale_values(scales).astype(np.float64)[:, None]
    np.testing.assert_array_equal(decoded(steps, scales).astype(np.float64), exact)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float32(LARGEST) * 2])
def test_numbers_that_no_scale_holds_are_refused(bad: float) -> None:
    rows = np.zeros((70_000, 1), dtype=np.float32)
    rows[-1] = bad
    with pytest.raises(DataError, match="item factors to be finite"):
        quantised(rows)


def test_rows_without_columns_have_the_scale_0() -> None:
    steps, scales = quantised(np.zeros((3, 0), dtype=np.float32))
    assert steps.shape == (3, 0)
    assert scales.tolist() == [0, 0, 0]


@given(
    bias=st.floats(-(2.0**40), 2.0**40, width=32),
    trust=st.one_of(st.floats(0, 1, width=32), st.sampled_from([-1.0, 2.0, np.nan])),
)
def test_a_bias_keeps_16_bits_and_a_trust_eight_beside_each_other(bias: float, trust: float) -> None:
    both = joined(np.array([bias], np.float32), np.array([trust], np.float32))
    assert abs(float(bias_values(both)[0]) - bias) <= abs(bias) * 2.0**-16 + 2.0**-140
    wanted = min(1.0, max(0.0, 0.0 if np.isnan(trust) else trust))
    assert abs(float(trust_values(both)[0]) - wanted) <= 0.5 / 255 + 1e-6

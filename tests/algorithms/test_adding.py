"""Rounded contributions in machine code are those of numpy, to the bit."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

import odp
from odp.algorithms.federated.adding import add_contributions
from odp.algorithms.federated.terms import Terms
from odp.errors import DataError
from odp.numerics.row_squares import LANES, row_squares

pytest.importorskip("numba")


def terms_of(features: int, *, quantile: float | None, diagnostics: bool = False) -> Terms:
    task = odp.Task(
        name="kinds",
        model=odp.Glm("multinomial", features=features, classes=3),
        data=odp.Examples({"x": odp.Tensor((features,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-3),
        training=odp.DPFedAvg(rounds=4, clip=0.5, clip_quantile=quantile, diagnostics=diagnostics),
        cohort=odp.Cohort(minimum=40, goal=50),
    )
    return Terms.of(task.definition())


@pytest.mark.parametrize("diagnostics", [False, True])
@pytest.mark.parametrize("quantile", [None, 0.5])
@pytest.mark.parametrize("features", [1, 5, 40])
def test_sums_of_machine_code_are_those_of_numpy_to_the_bit(
    features: int, quantile: float | None, diagnostics: bool
) -> None:
    terms = terms_of(features, quantile=quantile, diagnostics=diagnostics)
    generator = np.random.default_rng(features)
    moved = generator.normal(size=(60, terms.model.size)).astype(np.float32)
    moved *= generator.choice(np.float32([0, 1e-30, 1e-3, 0.02, 0.5, 1e6]), size=60)[:, None]
    moved[0, :] = 0.0
    moved[1, :] = np.float32(0.5) / np.sqrt(np.float32(terms.model.size))  # as long as the clip norm, but for rounding
    trained = generator.random(60) < 0.9
    moved[~trained] = 0.0
    seeds = generator.integers(0, 2**64, size=60, dtype=np.uint64)
    for round, clip in ((0, 0.5), (3, 0.123)):
        upload = terms.upload(round)
        total = np.arange(upload.size, dtype=np.float64)
        add_contributions(terms, upload, moved, clip=clip, trained=trained, seeds=seeds, total=total)
        expected = upload.numbers(terms.contributions(moved, clip, trained=trained), seeds=seeds).sum(axis=0)
        np.testing.assert_array_equal(total - np.arange(upload.size), expected)
        alone = np.zeros(upload.size)
        add_contributions(terms, upload, moved[5:6], clip=clip, trained=trained[5:6], seeds=seeds[5:6], total=alone)
        assert int(np.square(alone).sum()) <= terms.blocks[0].grid.limit


@hypothesis.given(
    rows=strategies.integers(1, 4), size=strategies.integers(1, 70), seed=strategies.integers(0, 2**32),
    shift=strategies.integers(-100, 100),
)  # fmt: skip
def test_squares_are_added_in_the_stated_order(rows: int, size: int, seed: int, shift: int) -> None:
    values = np.random.default_rng(seed).normal(size=(rows, size)) * 2.0**shift
    for row, found in zip(values, row_squares(values), strict=True):
        lanes = [0.0] * LANES
        for place, value in enumerate(row.tolist()):
            lanes[place % LANES] += value * value
        total = lanes[0]
        for lane in lanes[1:]:
            total += lane
        assert total == found


def test_long_rows_are_added_in_the_same_order() -> None:
    values = np.random.default_rng(3).normal(size=(2, 5 * 2**15 + 7))
    lanes = np.zeros((2, LANES))
    padded = np.zeros((2, -(-values.shape[1] // LANES) * LANES))
    padded[:, : values.shape[1]] = values
    for start in range(0, padded.shape[1], LANES):
        lanes += np.square(padded[:, start : start + LANES])
    np.testing.assert_array_equal(row_squares(values), [sum(row) for row in lanes.tolist()])


def test_a_difference_that_is_not_finite_is_refused() -> None:
    terms = terms_of(5, quantile=None)
    upload, moved = terms.upload(0), np.zeros((2, terms.model.size), dtype=np.float32)
    for wrong in (np.nan, np.inf):
        moved[1, 3] = wrong
        with pytest.raises(DataError, match="not finite"):
            add_contributions(
                terms, upload, moved, clip=0.5, trained=np.ones(2, dtype=bool), seeds=np.zeros(2, np.uint64),
                total=np.zeros(upload.size),
            )  # fmt: skip

"""Vectors on a grid: the bound holds in integers whatever is given, and rounding is fair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dense.grid import NUMBER, Entries, Grid, encode, quantise
from odp.algorithms.dense.query import DenseQuery
from odp.errors import ConfigurationError, DataError

SEEDS = np.array([7], dtype=np.uint64)


def grid(size: int = 8, *, clip: float = 1.0, noise_std: float = 4.0, maximum: int = 1000) -> Grid:
    return Grid.chosen(size=size, clip=clip, noise_std=noise_std, maximum=maximum)


def one_user(values: list[float]) -> Entries:
    return Entries(
        np.zeros(len(values), dtype=np.int64), np.arange(len(values)), np.array(values, dtype=np.float64)
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40),
    clip=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**64 - 1),
)
def test_whatever_a_device_holds_its_payload_keeps_the_bound(values: list[float], clip: float, seed: int) -> None:
    made = grid(len(values), clip=clip, noise_std=4.0 * clip)
    seeds = np.array([seed], dtype=np.uint64)
    payload = encode(made, quantise(made, one_user(values), round=0, seeds=seeds))
    DenseQuery("sum", made).check(payload)
    numbers = [int(number) for number in np.frombuffer(payload, dtype=NUMBER)]
    assert sum(number * number for number in numbers) <= made.limit
    # Within a step of the scaled vector in every place, or two where truncation came on top.
    length = math.hypot(*values) if max(map(abs, values)) < 1e150 else math.inf
    if length <= 0.9 * clip:
        assert all(abs(n * made.step - v) <= 2 * made.step for n, v in zip(numbers, values, strict=True))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), bits=st.integers(0, 2**32 - 1))
def test_a_vector_at_the_bound_loses_less_than_one_percent(size: int, bits: int) -> None:
    made = grid(size)
    values = np.random.default_rng(bits).standard_normal(size)
    values *= 1.0 / np.linalg.norm(values)
    steps = quantise(made, one_user(values.tolist()), round=0, seeds=SEEDS).value
    assert 0.99 * made.units <= math.sqrt(float(steps @ steps)) <= made.units


def test_rounding_is_without_bias() -> None:
    """The mean of 2^16 roundings of .3 steps; false alarm below 1e-8 (6 standard errors)."""
    made = grid(1)
    seeds = np.arange(2**16, dtype=np.uint64)
    values = np.full(len(seeds), 0.3 * made.step)
    entries = Entries(np.arange(len(seeds)), np.zeros(len(seeds), dtype=np.int64), values)
    steps = quantise(made, entries, round=0, seeds=seeds).value
    assert set(np.unique(steps)) == {0, 1}
    assert abs(steps.mean() - 0.3) < 6 * math.sqrt(0.21 / len(seeds))


def test_numbers_on_the_grid_are_not_moved_and_zeros_stay() -> None:
    made = grid(4)
    values = [0.0, -0.5, 0.25, 3 * made.step]
    steps = quantise(made, one_user(values), round=3, seeds=SEEDS).value
    assert (steps * made.step).tolist() == values


def test_a_user_rounds_alike_alone_and_among_others_and_differently_in_another_round() -> None:
    made = grid(50)
    values = np.random.default_rng(2).uniform(-0.1, 0.1, size=150)
    user, place = np.repeat(np.arange(3), 50), np.tile(np.arange(50), 3)
    seeds = np.array([5, 6, 7], dtype=np.uint64)
    together = quantise(made, Entries(user, place, values), round=1, seeds=seeds).value
    for number in range(3):
        mine = slice(50 * number, 50 * number + 50)
        alone = quantise(made, one_user(values[mine].tolist()), round=1, seeds=seeds[number : number + 1]).value
        np.testing.assert_array_equal(alone, together[mine])
    other = quantise(made, Entries(user, place, values), round=2, seeds=seeds).value
    assert (other != together).any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_and_not_shown(value: float) -> None:
    with pytest.raises(DataError, match=r"^1 numbers of a contribution are not finite"):
        quantise(grid(3), one_user([0.1, value, 0.2]), round=0, seeds=SEEDS)


def test_the_chosen_grid_is_the_finest_whose_sums_fit_32_bits() -> None:
    for maximum in (1, 100, 10_000, 1_000_000):
        made = grid(24, maximum=maximum)
        assert (maximum + 14 * 4.0) * made.units < 2**31
        finer = {"size": 24, "clip": 1.0, "noise_std": 4.0, "maximum": maximum, "bits": made.bits + 1}
        with pytest.raises(ConfigurationError, match=r"fit 32 bits|from 1 to 20"):
            Grid(**finer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "at least 64 steps"),
        ({"size": 2**20, "bits": 12}, "5 sqrt"),
        ({"maximum": 2**20}, "fit 32 bits"),
        ({"bits": 21}, "grid_bits=21"),
        ({"clip": math.nan}, "clip"),
        ({"noise_std": 0.0}, "noise_std"),
        ({"size": 0}, "size=0"),
    ],
)
def test_a_grid_that_breaks_a_rule_is_refused(changes: dict[str, float], message: str) -> None:
    valid = {"size": 8, "clip": 1.0, "bits": 14, "noise_std": 4.0, "maximum": 1000}
    Grid(**valid)
    with pytest.raises(ConfigurationError, match=message):
        Grid(**{**valid, **changes})


def test_too_many_contributions_for_so_many_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lower the cohort's goal"):
        grid(1_000_000, maximum=2_000_000)

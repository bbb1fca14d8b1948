"""The discrete Gaussian: its exact law, its sums, and the shares that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odp.errors import PrivacyError
from odp.privacy.mechanisms import DiscreteGaussian
from odp.privacy.mechanisms.discrete_gaussian import _table, largest


class Seeded:
    """A source of noise that repeats itself."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._rng.bytes(count)


class Fixed:
    """A source that gives the prepared words, eight bytes each."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def random_bytes(self, count: int) -> bytes:
        return b"".join(self.words.pop(0).to_bytes(8, "little") for _ in range(count // 8))


def pmf(std: float, numbers: np.ndarray) -> np.ndarray:
    top = math.ceil(20 * std)
    total = math.fsum(math.exp(-(n**2) / (2 * std**2)) for n in range(-top, top + 1))
    return np.exp(-(numbers.astype(float) ** 2) / (2 * std**2)) / total


@pytest.mark.parametrize("std", [4.0, 4.7, 33.3, 1000.0])
def test_the_table_holds_the_exact_probabilities(std: float) -> None:
    high, low, first = _table(std)
    cumulative = np.array([(int(upper) * 2**64 + lower) / 2**128 for upper, lower in zip(high, low, strict=True)])
    found = np.diff(np.concatenate([[0.0], cumulative, [1.0]]))
    expected = pmf(std, np.arange(first, -first + 1))
    # Differences of numbers near 1 carry 53 bits.
    assert np.abs(found - expected).max() < 1e-15
    near = np.abs(np.arange(first, -first + 1)) < 3 * std
    assert np.abs(found / expected - 1)[near].max() < 1e-10


@pytest.mark.parametrize("std", [4.0, 21.5])
def test_drawn_numbers_have_the_law_by_chi_square(std: float) -> None:
    """Cells of expected count above 50; false alarm 1e-6 by the normal approximation of chi-square (4.9 sigma)."""
    drawn = DiscreteGaussian(std).draw(400_000, Seeded(5))
    top = math.ceil(3.2 * std)
    inside = np.arange(-top, top + 1)
    observed = np.bincount(np.clip(drawn, -top - 1, top + 1) + top + 1, minlength=2 * top + 3)
    expected = np.concatenate([[0.0], pmf(std, inside), [0.0]])
    expected[0] = expected[-1] = (1 - expected.sum()) / 2
    expected *= len(drawn)
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 4.9 * math.sqrt(2 * freedom)


def test_a_sum_of_shares_has_the_variance_that_is_charged() -> None:
    """50 shares of std 5: the variance of 20,000 sums within 5.5 of its standard errors (false alarm 4e-8)."""
    sums = DiscreteGaussian(5.0).draw(1_000_000, Seeded(6)).reshape(50, -1).sum(axis=0)
    assert abs(sums.var() / (50 * 25.0) - 1) < 5.5 * math.sqrt(2 / 20_000)


def test_a_tie_of_the_high_words_is_settled_by_the_low_ones() -> None:
    high, low, first = _table(4.0)
    middle = len(high) // 2
    gaussian = DiscreteGaussian(4.0)
    below, above = low[middle] - 1, low[middle]
    assert gaussian.draw(1, Fixed(int(high[middle]), below)).tolist() == [middle + first]
    assert gaussian.draw(1, Fixed(int(high[middle]), above)).tolist() == [middle + first + 1]


def test_the_extremes_of_the_source_give_the_largest_numbers() -> None:
    gaussian = DiscreteGaussian(4.0)
    assert gaussian.draw(1, Fixed(2**64 - 1, 2**64 - 1)).tolist() == [largest(4.0)]
    assert gaussian.draw(2, Seeded(1)).dtype == np.int64
    assert gaussian.draw(0, Seeded(1)).shape == (0,)


@pytest.mark.parametrize("std", [0.0, 3.99, -5.0, math.nan, math.inf, 2.0**15])
def test_shares_that_would_not_add_up_to_a_gaussian_are_refused(std: float) -> None:
    with pytest.raises(PrivacyError, match="grid"):
        DiscreteGaussian(std)


def test_a_sum_that_needs_a_finer_grid_says_so() -> None:
    with pytest.raises(PrivacyError, match="choose a finer grid"):
        DiscreteGaussian(30.0 / math.sqrt(100))

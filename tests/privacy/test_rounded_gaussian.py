"""The sampler against the exact law. Statistical tests have a false-alarm rate of 1e-6 each, on fixed seeds."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
from mpmath.ctx_mp import MPContext
from scipy import stats
from scipy.special import ndtr

from odp.errors import ConfigurationError, PrivacyError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms import ADDED_DELTA, GaussianNoise, OperatingSystemNoise, RoundedGaussian, rounded_gaussian

# Laws of noise, by samples: most of their time is that of draws.
pytestmark = pytest.mark.slow


FALSE_ALARM = 1e-6
HIGH = MPContext()
HIGH.prec = 420


def normal_cdf(x):
    return HIGH.erfc(-x / HIGH.sqrt(2)) / 2


def exact_probability(number: int, ratio: float):
    """P[round(G) = number], by the tails on the number's own side of zero."""
    low, high = (HIGH.mpf(2 * abs(number) + sign) / 2 / HIGH.mpf(ratio) for sign in (-1, 1))
    return normal_cdf(-low) - normal_cdf(-high)


def law(numbers: np.ndarray, ratio: float) -> np.ndarray:
    """The same in double precision, enough for counting tests; by symmetry on the negative side."""
    away = -np.abs(numbers)
    return ndtr((away + 0.5) / ratio) - ndtr((away - 0.5) / ratio)


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Bins that expect fewer than 10 are merged into one with the rest of the line."""
    total = counts.sum()
    use = probabilities * total >= 10
    observed = np.append(counts[use], total - counts[use].sum())
    expected = np.append(probabilities[use], 1 - probabilities[use].sum()) * total
    if expected[-1] < 10:
        observed, expected = observed[:-1], expected[:-1]
        expected = expected * observed.sum() / expected.sum()
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(observed) - 1))


def per_integer_p(sample: np.ndarray, ratio: float) -> float:
    reach = int(9 * ratio) + 2
    inside = sample[np.abs(sample) <= reach]
    counts = np.bincount(inside + reach, minlength=2 * reach + 1).astype(float)
    counts[0] += len(sample) - len(inside)
    return chi_square_p(counts, law(np.arange(-reach, reach + 1), ratio))


def position_z(sample: np.ndarray, ratio: float) -> float:
    """Mean position inside the cells of the sampler, counted outwards, in standard errors from the exact law's."""
    cell = rounded_gaussian._cell_size(ratio)
    step = np.where(sample >= 0, sample, -sample - 1) % cell
    reach = int(9 * ratio / cell) * cell
    folded = (law(np.arange(reach), ratio) + law(np.arange(1, reach + 1), ratio)).reshape(-1, cell).sum(axis=0)
    positions = np.arange(cell)
    mean = folded @ positions
    return float((step.mean() - mean) / np.sqrt((folded @ positions**2 - mean**2) / len(sample)))


@pytest.mark.parametrize("ratio", [1.0, 4.0, 64.0, 300.0, 5000.0])
def test_every_integer_has_its_exact_frequency(ratio):
    """Chi-square over single integers, false alarm 1e-6."""
    assert per_integer_p(RoundedGaussian(ratio).sample(2_000_000, SeededNoise(1)), ratio) > FALSE_ALARM


@pytest.mark.parametrize("ratio", [5000.0, 1e6, 1e10, 1e12])
def test_large_ratios_follow_the_normal_law_in_a_thousand_bins(ratio):
    """Chi-square over bins of a normal sample, false alarm 1e-6; rounding moves a bin by less than 1e-4 of its mass."""
    sample = RoundedGaussian(ratio).sample(1_000_000, SeededNoise(2))
    edges = np.floor(stats.norm.ppf(np.arange(1, 1000) / 1000) * ratio) + 0.5
    probabilities = np.diff(np.concatenate([[0.0], ndtr(edges / ratio), [1.0]]))
    counts = np.bincount(np.searchsorted(edges, sample), minlength=1000).astype(float)
    assert chi_square_p(counts, probabilities) > FALSE_ALARM


@pytest.mark.parametrize("ratio", [1e10, 1e12])
def test_the_low_bits_of_huge_numbers_are_uniform(ratio):
    """Chi-square over the residues modulo 256, false alarm 1e-6; the exact law is uniform there to 1e-16."""
    sample = RoundedGaussian(ratio).sample(1_000_000, SeededNoise(3))
    assert chi_square_p(np.bincount(sample % 256).astype(float), np.full(256, 1 / 256)) > FALSE_ALARM


@pytest.mark.parametrize("ratio", [260.0, 5000.0])
@pytest.mark.slow
def test_positions_within_a_cell_follow_the_exact_law_and_uniform_ones_are_noticed(ratio, monkeypatch):
    """Two-sided z-test, false alarm 1e-6; the same test rejects a sampler that skips the acceptance step."""
    sampler = RoundedGaussian(ratio)
    assert abs(position_z(sampler.sample(6_000_000, SeededNoise(4)), ratio)) < 4.9
    monkeypatch.setattr(rounded_gaussian, "_relative_probability", lambda ratio, nearest, step: np.ones(len(step)))
    assert position_z(sampler.sample(6_000_000, SeededNoise(4)), ratio) > 4.9


def test_the_counting_test_notices_two_per_cent_too_little_noise():
    """Power of the chi-square above: the sample of another ratio is rejected."""
    assert per_integer_p(RoundedGaussian(63.0).sample(2_000_000, SeededNoise(1)), 64.0) < FALSE_ALARM


@pytest.mark.parametrize("ratio", [1.0, 4.0, 100.0, 300.0, 777.7, 1e6, 1e12])
def test_mean_variance_and_sign_are_those_of_the_law(ratio):
    """Three z-tests, false alarm 1e-6 each (4.9 standard deviations)."""
    count = 1_000_000
    sample = RoundedGaussian(ratio).sample(count, SeededNoise(5)).astype(float)
    variance = ratio**2 + 1 / 12  # of a rounded Gaussian, to 1e-8 from ratio 1 on
    assert abs(sample.mean()) < 4.9 * np.sqrt(variance / count)
    assert abs(np.mean(sample**2) / variance - 1) < 4.9 * np.sqrt(2 / count)
    assert abs(np.sum(sample > 0) - np.sum(sample < 0)) < 4.9 * np.sqrt(count)


@pytest.mark.parametrize("ratio", [64.0, 1000.0, 1e6])
def test_the_tail_beyond_four_standard_deviations_has_its_mass(ratio):
    """Exact binomial test of each tail, false alarm 1e-6."""
    count, limit = 4_000_000, int(4 * ratio)
    sample = RoundedGaussian(ratio).sample(count, SeededNoise(6))
    mass = float(ndtr(-(limit - 0.5) / ratio))
    for tail in (sample >= limit, sample <= -limit):
        assert stats.binomtest(int(tail.sum()), count, mass).pvalue > FALSE_ALARM


@pytest.mark.parametrize("ratio", [1.0, 4.0, 64.0, 255.5])
def test_the_table_is_within_two_to_the_minus_116_of_the_exact_law(ratio):
    table = rounded_gaussian._build(ratio)
    scale = HIGH.mpf(2) ** 128
    exact = [
        normal_cdf((HIGH.mpf(table.lowest + 1 + k) - HIGH.mpf(1) / 2) / HIGH.mpf(ratio))
        for k in range(len(table.exact))
    ]
    for built, boundary in zip(table.exact, exact, strict=True):
        assert abs(built - boundary * scale) <= HIGH.mpf(1) / 2
    built_cells = np.diff([0, *table.exact, 2**128])
    exact_cells = np.diff([0, *exact, 1])
    distance = sum(abs(HIGH.mpf(int(b)) / scale - e) for b, e in zip(built_cells, exact_cells, strict=True)) / 2
    assert distance < HIGH.mpf(2) ** -116


@pytest.mark.parametrize("ratio", [256.0, 300.0, 1000.0, 1e10])
def test_some_boundaries_of_coarse_cells_are_exact_to_the_last_bit(ratio):
    table = rounded_gaussian._build(ratio)
    for k in range(0, len(table.exact), max(1, len(table.exact) // 25)):
        cell = table.lowest + 1 + k
        boundary = normal_cdf(HIGH.mpf(2 * cell * table.cell - 1) / 2 / HIGH.mpf(ratio))
        assert abs(table.exact[k] - boundary * HIGH.mpf(2) ** 128) <= HIGH.mpf(1) / 2


@pytest.mark.parametrize("ratio", [256.0, 257.3, 511.99, 1000.0, 5000.0, 1e10, 2.0**40])
def test_acceptance_is_a_factor_of_two_to_the_minus_50_from_the_exact_law_out_to_the_last_cell(ratio):
    """The premise of the added delta: within a cell no probability is off by more than a factor exp(2^-49.2)."""
    generator = np.random.default_rng(7)
    cell = rounded_gaussian._cell_size(ratio)
    for number in generator.integers(0, int(13 * ratio / cell), 40).tolist():
        nearest = number * cell + int(generator.integers(0, 2))
        steps = np.unique(np.append(generator.integers(0, cell, 3), cell - 1))
        chance = rounded_gaussian._relative_probability(ratio, np.full(len(steps), nearest), steps)
        accepted = np.ceil(chance * 2.0**53) / 2.0**53
        largest = exact_probability(nearest, ratio)
        for step, probability in zip(steps.tolist(), accepted.tolist(), strict=True):
            error = HIGH.mpf(probability) * largest / exact_probability(nearest + step, ratio) - 1
            assert abs(error) < HIGH.mpf(2) ** -50.3


@pytest.mark.parametrize("ratio", [256.0, 1000.0, 1e12])
def test_the_shortcut_accepts_only_what_the_full_formula_accepts(ratio):
    table = rounded_gaussian._build(ratio)
    cells = np.arange(len(table.exact) + 1) + table.lowest
    nearest = np.where(cells < 0, (-cells - 1) * table.cell + 1, cells * table.cell)
    for step in (0, 1, table.cell // 2, table.cell - 1):
        chance = rounded_gaussian._relative_probability(ratio, nearest, np.full(len(cells), step))
        assert np.all(table.surely <= chance * 2.0**53)
    assert table.surely.min() > 0.75 * 2**53


class FixedWords:
    """Gives out the listed 64-bit words, then fails."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def random_bytes(self, count: int) -> bytes:
        taken, self.words = self.words[: count // 8], self.words[count // 8 :]
        return b"".join(word.to_bytes(8, "little") for word in taken)


def test_a_tie_with_a_boundary_is_decided_by_64_more_bits():
    sampler = RoundedGaussian(4.0)
    table = sampler._table
    for number in range(len(table.exact)):
        upper, lower = divmod(table.exact[number], 2**64)
        at = sampler.sample(1, FixedWords(upper, lower))[0]
        assert at == table.lowest + number + 1
        if lower:
            assert sampler.sample(1, FixedWords(upper, lower - 1))[0] == at - 1


@pytest.mark.parametrize(("word", "sign"), [(0, -1), (2**64 - 1, 1)])
def test_the_most_extreme_draws_lie_at_thirteen_standard_deviations(word, sign):
    for ratio in (4.0, 64.0):
        value = int(RoundedGaussian(ratio).sample(1, FixedWords(word, word))[0])
        assert 12.9 * ratio < sign * value < 13.2 * ratio


class AtOnce:
    """A seeded source that makes its bytes when they are asked for, one request after the other."""

    def __init__(self, seed: int) -> None:
        self.random_bytes = SeededNoise(seed).random_bytes


@pytest.mark.parametrize("ratio", [4.0, 1000.0, 1e10])
@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_do_not_depend_on_which_threads_make_the_bytes(ratio, compiled):
    count = rounded_gaussian._GROUP + 3 * rounded_gaussian._CHUNK + 17
    law = RoundedGaussian(ratio)
    numbers = law.sample(count, SeededNoise(4), compiled=compiled)
    np.testing.assert_array_equal(numbers, law.sample(count, AtOnce(4), compiled=compiled))


def test_a_source_that_gives_too_little_in_a_thread_is_refused():
    class Short(AtOnce):
        def later(self, count):
            return lambda: bytes(count - 1)

    with pytest.raises(PrivacyError, match="no noise was drawn"):
        RoundedGaussian(64.0).sample(10, Short(1))


def test_the_sampler_reads_from_the_given_source_only(monkeypatch):
    def forbidden(count: int) -> bytes:
        raise AssertionError("read from the operating system")

    monkeypatch.setattr(os, "urandom", forbidden)
    for ratio in (64.0, 1000.0, 1e10):
        noise = [GaussianNoise(SeededNoise(8)).sample(ratio, 1000) for _ in range(2)]
        np.testing.assert_array_equal(*noise)
        assert not np.array_equal(noise[0], GaussianNoise(SeededNoise(9)).sample(ratio, 1000))
    with pytest.raises(AssertionError):
        GaussianNoise(OperatingSystemNoise()).sample(64.0, 1)


def test_a_source_that_runs_dry_stops_the_sampler():
    with pytest.raises(PrivacyError, match="0 bytes instead of 8"):
        RoundedGaussian(64.0).sample(1, FixedWords())


def test_samples_are_int64_of_the_asked_length():
    for count in (0, 1, 40_000):
        sample = RoundedGaussian(1000.0).sample(count, OperatingSystemNoise())
        assert sample.dtype == np.int64
        assert sample.shape == (count,)


@pytest.mark.parametrize("ratio", [0.0, 0.99, -4.0, float("nan"), float("inf"), 2.0**41, True])
def test_ratios_without_a_table_are_refused(ratio):
    with pytest.raises(ConfigurationError, match="ratio="):
        RoundedGaussian(ratio)


def test_added_delta_covers_the_measured_distances():
    """Factor exp(+-2^-49.2) on both neighbouring laws, and (1 + e^40) times the variation of the table."""
    assert 2 * Fraction(2) ** -50 * Fraction(2**0.8) * (1 + Fraction(1, 10**9)) + Fraction(2) ** -58 < Fraction(
        ADDED_DELTA
    )
    assert (1 + np.exp(40.0)) * 2.0**-116 <= 2.0**-58
    assert RoundedGaussian(1000.0).added_delta(10) == 10 * ADDED_DELTA
    assert RoundedGaussian(64.0).added_delta(10) == 10 * 2.0**-58


@pytest.mark.parametrize("ratio", [1.0, 100.0, 300.0, 5000.0, 1e10])
def test_machine_code_draws_the_same_numbers_from_the_same_bytes(ratio, monkeypatch):
    """Over more than one group of redraws, and whatever the threads; the source then stands at the same place."""
    pytest.importorskip("numba")
    count = 2**18 + 2**16 + 77
    one, two, three = (SeededNoise(12) for _ in range(3))
    plain = RoundedGaussian(ratio).sample(count, one)
    np.testing.assert_array_equal(RoundedGaussian(ratio).sample(count, two, compiled=True), plain)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    np.testing.assert_array_equal(RoundedGaussian(ratio).sample(count, three, compiled=True), plain)
    assert one.random_bytes(8) == two.random_bytes(8) == three.random_bytes(8)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("ratios", [[500.0] * 3, [9000.0, 64.0, 9000.0, 9000.0, 300.0]])
def test_noise_is_added_in_place_as_it_is_drawn_column_by_column(ratios, compiled, monkeypatch):
    """The same numbers from the same bytes, over more than one group of redraws, and whatever the threads."""
    ratios, rows = np.array(ratios), 2**17 + 5
    kept = np.arange(rows * len(ratios)).reshape(rows, len(ratios)) - 10**5
    drawn, source = np.empty_like(kept), GaussianNoise(SeededNoise(3))
    for ratio in np.unique(ratios):
        columns = np.flatnonzero(ratios == ratio)
        drawn[:, columns] = source.sample(float(ratio), rows * len(columns)).reshape(rows, -1)
    for processors in ({0, 1, 2}, {0}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, all=processors: all, raising=False)
        sums = kept.copy()
        found = GaussianNoise(SeededNoise(3), compiled=compiled).added(sums, ratios, 0.25)
        assert np.shares_memory(found, sums)
        np.testing.assert_array_equal(found, (kept + drawn) * 0.25)


@pytest.mark.parametrize("ratio", [4.0, 1000.0])
def test_machine_code_finds_the_cell_beside_every_boundary_and_tells_ties(ratio):
    """Upper words just below, at and just above each boundary's; a tie is told even where numpy's answer would do."""
    code = pytest.importorskip("odp.privacy.mechanisms.rounded_gaussian_kernels", reason="needs numba")
    table = RoundedGaussian(ratio)._table
    inner = table.high[(table.high > 0) & (table.high < 2**64 - 1)]
    words = np.concatenate((inner - np.uint64(1), inner, inner + np.uint64(1)))
    given = np.concatenate([words] * table.words)
    out = np.empty((2, len(words)), dtype=np.int64)
    plain = rounded_gaussian._first_tries(table, given, out[0])
    compiled = code.first_tries(table, given, out[1])
    np.testing.assert_array_equal(out[0], out[1])
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(one, other)
    assert plain.tied.sum() >= len(inner)

"""Random numbers of local randomizers: their laws, exact thresholds, and streams that never repeat.

Statistical checks have fixed seeds; each would fail with probability below 1e-6 on a fresh one.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading

import numpy as np
import pytest
from scipy import stats

from odp.errors import ConfigurationError, PrivacyError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import LARGEST_SCALE, WHOLE, RandomSource


def seeded(seed: int = 1) -> RandomSource:
    return RandomSource(SeededNoise(seed))


class Words:
    """A source whose stream is overridden by known words."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def __call__(self, count: int) -> np.ndarray:
        taken, self.words = self.words[:count], self.words[count:]
        return np.array(taken, dtype=np.uint64)


def test_words_repeat_for_a_seed_alone_and_do_not_depend_on_how_requests_are_cut() -> None:
    whole = seeded().words(5000)
    source = seeded()
    np.testing.assert_array_equal(np.concatenate([source.words(n) for n in (1, 0, 511, 600, 3000, 888)]), whole)
    assert len(np.unique(whole)) == 5000
    assert not np.isin(RandomSource().words(1000), whole).any()
    assert not np.isin(seeded(2).words(1000), whole).any()


def test_a_forked_process_draws_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source, twin = seeded(), seeded()
    np.testing.assert_array_equal(source.words(3), twin.words(3))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not np.isin(source.words(100), seeded().words(1000)).any()


def test_r396_threads_that_share_a_source_never_draw_from_the_same_key() -> None:
    """A thread is in the middle of a draw while another one draws: what is left of the buffer is given out once."""

    class Interrupted(RandomSource):
        def _stream_words(self, count: int) -> np.ndarray:
            fresh = super()._stream_words(count)
            if threading.current_thread() is main and not others:
                other = threading.Thread(target=lambda: others.append(self.words(1000)))
                other.start()
                other.join()
            return fresh

    main, others = threading.current_thread(), [np.empty(0, dtype=np.uint64)]
    source = Interrupted()
    first = source.words(500)
    others.clear()
    second = source.words(1000)
    drawn = np.concatenate([first, second, *others])
    assert len(others) == 1
    assert len(np.unique(drawn)) == len(drawn) == 2500


def test_a_source_is_not_copied_and_a_short_key_is_refused() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="same numbers"):
            copied(seeded())

    class Short:
        def random_bytes(self, count: int) -> bytes:
            return bytes(count - 1)

    with pytest.raises(PrivacyError, match="31 bytes"):
        RandomSource(Short())


@pytest.mark.parametrize("high", [1, 2, 3, 10, 2**62 + 1, 2**63])
def test_integers_are_uniform_below_any_number(high: int) -> None:
    drawn = seeded(high).below(high, 20_000)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    cells = min(high, 10)
    counts = np.bincount((drawn.astype(object) * cells // high).astype(np.int64), minlength=cells)
    assert drawn.max() < high
    assert stats.chisquare(counts).pvalue > 1e-6 if cells > 1 else counts[0] == 20_000


def test_integers_outside_whole_ranges_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = seeded()
    monkeypatch.setattr(source, "words", Words([WHOLE - 1, 7, WHOLE - 2, WHOLE - 1, 8, 4]))
    assert source.below(10, 3).tolist() == [4, 7, 8]  # 2^64 mod 10 is 6: the last six words are refused
    assert WHOLE % 10 == 6


def test_coins_compare_64_bit_integers_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    source, chance = seeded(), (3 << 48) + 7
    # Four coins of 16 bits, 2, 3, 4 and 3; the two ties by 48 further bits: 6 and 7 of them.
    monkeypatch.setattr(source, "words", Words([2 | 3 << 16 | 4 << 32 | 3 << 48, 6 << 16, 7 << 16 | 0xFFFF, 5, 5]))
    assert source.coins(chance, 4).tolist() == [True, True, False, False]
    assert source.coins(np.array([5, 6], dtype=np.uint64), 2).tolist() == [False, True]
    assert source.coins(WHOLE, 3).tolist() == [True, True, True]
    assert not seeded().coins(0, 1000).any()
    assert seeded().coins(WHOLE - 1, 1000).all()
    for chance in (WHOLE // 4, WHOLE // 4 + 12345):
        assert seeded().coins(chance, 40_001).mean() == pytest.approx(0.25, abs=5 * math.sqrt(3 / 16 / 40_000))


def test_a_stream_is_a_source_of_bytes() -> None:
    data = seeded().random_bytes(5) + b""
    assert data == seeded().words(1).tobytes()[:5]
    assert RandomSource(seeded()).random_bytes(3) != RandomSource(seeded(2)).random_bytes(3)


def test_uniforms_are_within_the_open_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = seeded().uniforms(20_000)
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6
    source = seeded()
    monkeypatch.setattr(source, "words", Words([0, WHOLE - 1]))
    assert source.uniforms(2).tolist() == [2.0**-53, 1 - 2.0**-53]


def test_normals_have_the_normal_law_in_the_middle_and_in_the_tails() -> None:
    drawn = seeded().normals(1_000_000)
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    for edge in (2.0, 3.0, 3.654152885361009, 4.0):
        expected = len(drawn) * stats.norm.sf(edge)
        for side in (drawn, -drawn):
            assert abs((side > edge).sum() - expected) < 5.5 * math.sqrt(expected)
    tail = drawn[drawn > 3.7] - 3.7
    assert stats.kstest(tail, lambda x: 1 - stats.norm.sf(x + 3.7) / stats.norm.sf(3.7)).pvalue > 1e-6


@pytest.mark.parametrize("scale", [1, 2, 7, 3000])
def test_discrete_laplace_has_its_law(scale: int) -> None:
    drawn = seeded(scale).discrete_laplace(scale, 100_000)
    ratio = math.exp(-1 / scale)
    edges = np.unique(np.round(np.array([-4, -2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 4]) * scale))
    law = stats.dlaplace(1 / scale)
    cells = np.diff([0.0, *law.cdf(edges), 1.0])
    counts = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=len(cells))
    assert stats.chisquare(counts, cells * len(drawn)).pvalue > 1e-6
    variance = 2 * ratio / (1 - ratio) ** 2
    assert drawn.var() == pytest.approx(variance, rel=5 * math.sqrt(5 / len(drawn)))


def test_discrete_laplace_has_no_largest_number_and_no_second_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    source = seeded()
    found: list[list[int]] = []
    # place 0 of the scale (its coin is certain), then 300 whole scales, then the sign.
    monkeypatch.setattr(source, "words", Words([0, 0, *[0] * 300, WHOLE - 1, WHOLE - 1]))
    found.append(source._laplace_candidates(5, 1).tolist())
    monkeypatch.setattr(source, "words", Words([0, 0, WHOLE - 1, WHOLE - 1]))
    found.append(source._laplace_candidates(5, 1).tolist())
    assert found == [[-1500], []]


def test_bad_arguments_are_named() -> None:
    source = seeded()
    for call, message in (
        (lambda: source.words(-1), "count=-1"),
        (lambda: source.below(0, 1), "high_of_range=0"),
        (lambda: source.coins(WHOLE + 1, 1), "chance="),
        (lambda: source.discrete_laplace(0, 1), "scale=0"),
        (lambda: source.discrete_laplace(LARGEST_SCALE + 1, 1), "scale="),
        (lambda: source.normals(-1), "count=-1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()

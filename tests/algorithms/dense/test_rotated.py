"""Vectors in few bits: unbiased, within an exact bound, and refused otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dense.rotated import RotatedGrid, encode, quantise, to_values
from odp.algorithms.dense.uploads import RotatedQuery
from odp.errors import ConfigurationError, DataError


def grid(size: int = 300, *, clip: float = 1.0, width: int = 8, noise: float = 4.0, maximum: int = 1000):
    return RotatedGrid(size=size, clip=clip, width=width, noise_multiplier=noise, maximum=maximum)


def quantised(grid: RotatedGrid, vectors: np.ndarray, *, seed: int = 0, round: int = 0) -> np.ndarray:
    seeds = np.arange(seed, seed + len(vectors), dtype=np.uint64)
    return quantise(grid, vectors, rotation=grid.rotation(1, round), round=round, seeds=seeds)


def summed(grid: RotatedGrid, *payloads: bytes) -> dict[str, np.ndarray]:
    query = RotatedQuery("sum", grid)
    assert query.refusals(payloads) == [None] * len(payloads)
    total = query.new_sum()
    total.add(payloads)
    return total.totals()


@given(st.data())
@settings(max_examples=80)
def test_whatever_a_device_holds_what_it_sends_is_within_the_exact_bound(data):
    size, width = data.draw(st.integers(1, 200)), data.draw(st.integers(8, 16))
    asked = grid(size, width=width, clip=data.draw(st.floats(1e-3, 1e3)), noise=100.0, maximum=10)
    scale = data.draw(st.sampled_from([0.0, 1e-300, 1e-3, 0.999, 1.0, 10.0, 1e100]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = random.normal(size=(2, size)) * scale * asked.clip
    if data.draw(st.booleans()):
        vectors[:, 1:] = 0.0
    for row in quantised(asked, vectors):
        assert np.abs(row).max() <= asked.largest
        assert int(row @ row) <= asked.limit
        assert np.linalg.norm(row * asked.step) <= asked.sensitivity
        payload = encode(asked, row)
        assert len(payload) == asked.payload_bytes == -(-size * width // 8)
        (total,) = summed(asked, payload).values()
        assert np.array_equal(total, row)


@pytest.mark.parametrize(("width", "size"), [(8, 300), (8, 256), (12, 40)])
def test_rounding_is_unbiased(width, size):
    """Largest of ``size`` z-scores below 6: a false alarm of 2e-9 for each number, under 1e-6 for all here."""
    asked = grid(size, width=width)
    vector = np.random.default_rng(3).normal(size=size)
    vector *= 0.9 * asked.clip / np.linalg.norm(vector)
    times = 4000
    rotation = asked.rotation(1, 0)
    seeds = np.arange(times, dtype=np.uint64)
    rows = quantise(asked, np.tile(vector, (times, 1)), rotation=rotation, round=0, seeds=seeds)
    mean = to_values(asked, rows.sum(axis=0) * asked.step, rotation=rotation) / times
    # A rounded number has variance at most step^2 / 4, and rotations keep the covariance's bound.
    assert np.abs(mean - vector).max() <= 6.0 * 0.5 * asked.step / math.sqrt(times)
    assert np.abs(rows).max() < asked.largest  # nothing was cut


def test_sums_rotate_back_to_sums_of_vectors():
    asked = grid(77, width=16, maximum=100)
    vectors = np.random.default_rng(0).normal(size=(20, 77)) * 0.05
    rotation = asked.rotation(1, 0)
    total = to_values(asked, quantised(asked, vectors).sum(axis=0) * asked.step, rotation=rotation)
    assert np.allclose(total, vectors.sum(axis=0), atol=5 * asked.step * math.sqrt(20))


def test_long_vectors_are_scaled_to_the_clip_norm_and_short_ones_stay():
    asked = grid(128, width=16)
    direction = np.random.default_rng(0).normal(size=128)
    direction /= np.linalg.norm(direction)
    for length, expected in ((1e-3, 1e-3), (1.0, 1.0), (10.0, 1.0), (1e150, 1.0)):
        row = quantised(asked, (direction * length)[None, :])[0]
        value = to_values(asked, row * asked.step, rotation=asked.rotation(1, 0))
        assert np.linalg.norm(value - direction * expected) <= asked.step * math.sqrt(128)


@pytest.mark.parametrize(
    ("size", "width", "most"), [(2**20, 8, 1.001), (531_400, 8, 1.001), (300, 8, 1.02), (1, 16, 1.001)]
)
def test_the_bound_is_close_to_the_clip_norm(size, width, most):
    asked = grid(size, width=width, noise=64.0)
    assert 1.0 < asked.sensitivity <= most
    assert asked.payload_bytes == -(-size * width // 8)


def test_rounding_makes_hardly_any_vector_too_long():
    """A million times less than one in a million here: deterministic."""
    asked = grid(200, width=8)
    vectors = np.random.default_rng(1).normal(size=(500, 200))
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    squares = np.square(quantised(asked, vectors)).sum(axis=1)
    assert squares.max() <= asked.limit
    assert squares.mean() > 0.95 * (asked.clip / asked.step) ** 2


def test_a_user_rounds_alone_and_by_its_seed():
    asked = grid()
    vectors = np.random.default_rng(0).normal(size=(3, 300)) * 0.02
    together = quantised(asked, vectors, seed=5)
    for user in range(3):
        assert np.array_equal(quantised(asked, vectors[user : user + 1], seed=5 + user)[0], together[user])
    assert not np.array_equal(quantised(asked, vectors, seed=6), together)


def test_values_that_are_not_finite_are_refused_before_they_are_rounded():
    for wrong in (np.nan, np.inf, -np.inf):
        vectors = np.zeros((2, 300))
        vectors[1, 7] = wrong
        with pytest.raises(DataError, match="not finite"):
            quantised(grid(), vectors)


def test_numbers_beyond_the_range_are_not_encoded():
    for wrong in (np.full(300, 128), np.full(300, -128.0), np.full(300, np.nan), np.zeros(299)):
        with pytest.raises(DataError, match="within 127"):
            encode(grid(), wrong)


def test_grids_that_are_too_coarse_or_overflow_are_refused():
    with pytest.raises(ConfigurationError, match="take more bits"):
        grid(2, width=8, noise=0.1)
    with pytest.raises(ConfigurationError, match="2\\^53"):
        grid(300, width=16, noise=1e12)
    for wrong in ({"width": 7}, {"width": 17}, {"size": 0}, {"clip": 0.0}):
        with pytest.raises(ConfigurationError):
            RotatedGrid(**{"size": 3, "clip": 1.0, "width": 16, "noise_multiplier": 1.0, "maximum": 1, **wrong})

"""Rotations: orthogonal at every size, undone exactly up to rounding, and spreading whatever they are given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.linalg import hadamard

from odp.algorithms.dense.rotated import Rotation, largest_power, transform
from odp.errors import ConfigurationError, DataError


@pytest.mark.parametrize("bits", range(11))
def test_the_transform_is_the_product_with_a_hadamard_matrix(bits):
    size = 2**bits
    vectors = np.random.default_rng(bits).normal(size=(3, size))
    before = vectors.copy()
    assert np.allclose(transform(vectors), vectors @ hadamard(size), rtol=1e-12, atol=1e-10)
    assert np.array_equal(vectors, before)
    narrow = transform(vectors.astype(np.float32))
    assert narrow.dtype == np.float32
    assert np.allclose(narrow, vectors @ hadamard(size), rtol=1e-3, atol=1e-3)


@given(size=st.integers(1, 300), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_rotation_keeps_norms_and_products_and_is_undone(size, seed):
    vectors = np.random.default_rng(seed).normal(size=(3, size))
    rotation = Rotation(size, seed)
    rotated = rotation.apply(vectors)
    assert np.allclose(rotated @ rotated.T, vectors @ vectors.T, rtol=1e-10, atol=1e-10)
    assert np.allclose(rotation.undo(rotated), vectors, rtol=1e-10, atol=1e-10)
    assert np.array_equal(Rotation(size, seed).apply(vectors), rotated)


@pytest.mark.parametrize("size", [1024, 1025, 1500, 2047])
def test_no_rotated_number_is_far_beyond_an_equal_share(size):
    """Hoeffding's bound at 6.5: 2 exp(-21) per number, so 1e-5 false alarms for all numbers here."""
    power = largest_power(size)
    spikes = np.zeros((3, size))
    spikes[0, 0] = spikes[1, -1] = spikes[2, size // 2] = 1.0
    flat = np.full((1, size), size**-0.5)
    for vectors in (spikes, flat):
        for seed in range(4):
            assert np.abs(Rotation(size, seed).apply(vectors)).max() <= 6.5 / np.sqrt(power)


def test_other_seeds_give_other_signs_and_half_of_them_are_negative():
    ones = np.eye(1, 4096)
    first, second = (Rotation(4096, 7, round).apply(ones) for round in (0, 1))
    assert np.abs(first).max() == np.abs(first).min()
    flat = np.ones((1, 4096))
    signs = [np.sign(transform(Rotation(4096, 7, round).apply(flat))) for round in (0, 1)]
    for row in signs:  # five standard errors: a false alarm of 6e-7 each
        assert abs(row.sum()) <= 5 * 64
    assert abs((signs[0] * signs[1]).sum()) <= 5 * 64
    assert second.shape == first.shape


def test_vectors_of_another_size_are_refused():
    with pytest.raises(DataError, match="power of two"):
        transform(np.ones((1, 6)))
    with pytest.raises(DataError, match="5 numbers"):
        Rotation(5).apply(np.ones((1, 6)))
    for wrong in (0, 2**26 + 1):
        with pytest.raises(ConfigurationError, match="size"):
            largest_power(wrong)

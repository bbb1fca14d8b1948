"""Empirical Bayes estimates: calibrated where the model holds, harmless where noise drowns everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpam import estimation, features
from odp.algorithms.factorization.popularity import popularity


def true_counts(generator: np.random.Generator, items: int) -> np.ndarray:
    return np.maximum(np.exp(generator.normal(3.5, 1.3, items)), 1.0)


@pytest.mark.parametrize("noise_std", [5.0, 60.0])
def test_denoised_counts_are_positive_and_closer_to_the_truth(noise_std: float) -> None:
    generator = np.random.default_rng(1)
    counts = true_counts(generator, 2000)
    noisy = counts + generator.normal(size=2000) * noise_std
    known = popularity(noisy, noise_std=noise_std)
    np.testing.assert_allclose(known.posterior.sum(axis=1), 1.0)
    assert known.mean.min() >= 1.0
    assert np.square(known.mean - counts).mean() < np.square(np.maximum(noisy, 1) - counts).mean()


def test_masses_use_both_the_count_and_the_noisy_mass() -> None:
    generator = np.random.default_rng(2)
    counts = true_counts(generator, 2000)
    known = popularity(counts + generator.normal(size=2000) * 30, noise_std=30.0)
    mass = 0.7 * counts * known.mean**-0.5 * generator.uniform(0.8, 1.2, 2000)
    noisy = mass + generator.normal(size=2000) * 4.0
    estimate, refined = estimation.masses(noisy, known, known.mean, 0.5, noise_std=4.0)
    assert estimate.mean.min() > 0
    error = np.square(estimate.mean - mass).mean()
    assert error < np.square(noisy - mass).mean()
    assert estimate.variance.mean() == pytest.approx(error, rel=0.5)
    # What masses tell of the counts is not thrown away.
    logarithms = [np.square(np.log(one.mean / counts)).mean() for one in (refined, known)]
    assert logarithms[0] < 0.8 * logarithms[1]


@pytest.mark.parametrize("noise_std", [0.5, 10.0, 300.0])
def test_biases_are_no_worse_than_the_best_constant_and_claim_the_right_error(noise_std: float) -> None:
    generator = np.random.default_rng(3)
    counts = true_counts(generator, 3000)
    bias = 0.2 * (np.log(counts) - 3.5) + 0.3 * generator.normal(size=3000)
    sums = counts * bias + generator.normal(size=3000) * np.sqrt(noise_std**2 + 0.8 * counts)
    mass = estimation.Estimate(counts, np.zeros(3000))
    estimate = estimation.biases(sums, mass, counts, noise_std=noise_std, residual_variance=0.8)
    error = np.square(estimate.mean - bias).mean()
    assert error < bias.var() * 1.02
    assert estimate.variance.mean() == pytest.approx(error, rel=0.5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 6))
def test_projection_gives_the_nearest_positive_semidefinite_matrix(seed: int, width: int) -> None:
    generator = np.random.default_rng(seed)
    packed = generator.normal(size=(5, width * (width + 1) // 2))
    symmetric = estimation.unpacked(packed, width)
    np.testing.assert_array_equal(symmetric, symmetric.transpose(0, 2, 1))
    first, second = np.triu_indices(width)
    np.testing.assert_array_equal(symmetric[:, first, second], packed)
    projected = estimation.nearest_psd(symmetric)
    assert np.linalg.eigvalsh(projected).min() > -1e-9
    np.testing.assert_allclose(estimation.nearest_psd(projected), projected, atol=1e-9)
    # The residual is orthogonal to the projection: the mark of a projection on a cone.
    np.testing.assert_allclose(((symmetric - projected) * projected).sum(axis=(1, 2)), 0.0, atol=1e-9)


def factor_problem(noise_std: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(rows, mass, packed Gram matrices with noise, targets with noise) of 800 items and two factors."""
    generator = np.random.default_rng(seed)
    rows = np.concatenate((np.zeros((800, 1)), 0.3 * generator.normal(size=(800, 2))), axis=1)
    mass = np.exp(generator.normal(4.0, 1.0, 800))
    gram = mass[:, None, None] * np.diag([1.0, 1.0, 0.5])
    sampling = generator.normal(size=(800, 3)) * np.sqrt(0.8 * np.diagonal(gram, axis1=1, axis2=2))
    targets = (gram @ rows[:, :, None])[:, :, 0] + sampling + generator.normal(size=(800, 3)) * noise_std
    first, second = np.triu_indices(3)
    noise = generator.normal(size=(800, 6)) * noise_std / np.where(first == second, 1.0, np.sqrt(2.0))
    return rows, mass, gram[:, first, second] + noise, targets


@pytest.mark.parametrize("noise_std", [0.0, 5.0, 30.0, 1000.0])
def test_rows_are_never_much_worse_than_none_and_good_without_noise(noise_std: float) -> None:
    rows, mass, packed, targets = factor_problem(noise_std, seed=4)
    gram = estimation.grams(packed, mass, width=3, noise_std=noise_std)
    assert np.linalg.eigvalsh(gram.matrices).min() > -1e-6
    found = features.posterior_rows(
        targets,
        gram,
        np.ones(800),
        np.zeros((800, 3)),
        np.full(800, 1e-3),
        noise_std=noise_std,
        residual_variance=0.8,
        ridge=0.1,
    )
    error = np.square(found.mean[:, 1:] - rows[:, 1:]).mean()
    assert error < 1.05 * np.square(rows[:, 1:]).mean()
    if noise_std == 0.0:
        assert error < 0.4 * np.square(rows[:, 1:]).mean()
    assert found.variance[:, 1:].mean() == pytest.approx(error, rel=0.5, abs=0.01)


def test_gram_matrices_drowned_in_noise_take_the_common_shape() -> None:
    _, mass, packed, _ = factor_problem(500.0, seed=5)
    gram = estimation.grams(packed, mass, width=3, noise_std=500.0)
    np.testing.assert_allclose(np.diag(gram.common), [1.0, 1.0, 0.5], atol=0.5)
    wanted = mass[:, None, None] * np.diag([1.0, 1.0, 0.5])
    noisy = estimation.unpacked(packed, 3)
    assert np.square(gram.matrices - wanted).mean() < 0.1 * np.square(noisy - wanted).mean()


def test_the_stretch_undoes_a_clip_of_normal_residuals() -> None:
    generator = np.random.default_rng(6)
    shifted = generator.normal(0.1, np.sqrt(0.8), 2_000_000)
    stretch = estimation.unclipped(1.2, 0.8)
    assert stretch * np.clip(shifted, -1.2, 1.2).mean() == pytest.approx(0.1, abs=0.004)

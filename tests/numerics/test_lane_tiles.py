"""Matrices in the lanes of vector registers are solved as numpy solves each of them, whatever stands in the others."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
lane_tiles = pytest.importorskip("odp.numerics.lane_tiles", reason="needs numba")

LANES = lane_tiles.LANES


def eliminated(matrices: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([U | U^-T R | U^-T] of each lane [LANES, n, width], which are good [LANES], solutions [LANES, n])."""
    size = matrices.shape[1]
    identity = np.broadcast_to(np.eye(size), matrices.shape)
    given = np.concatenate((np.triu(matrices), right[:, :, None], identity), axis=2)
    width = given.shape[2] + 3  # columns of the identity are read up to the end of a block
    system = np.zeros((size, width, LANES))
    system[:, :-3] = given.transpose(1, 2, 0)
    good = np.empty(LANES)
    lane_tiles.eliminate(system.reshape(-1), width, size, 1, True, np.empty(16 * LANES), good)
    eliminated = system[:, :-3].transpose(2, 0, 1)
    solution = np.linalg.solve(np.triu(eliminated[:, :, :size]), eliminated[:, :, size : size + 1])[:, :, 0]
    return eliminated, good, solution


@pytest.mark.parametrize("size", [1, 3, 4, 9, 33])
def test_each_lane_is_factorised_inverted_and_solved(size: int) -> None:
    generator = np.random.default_rng(size)
    factors, right = generator.normal(size=(LANES, size, size + 3)), generator.normal(size=(LANES, size))
    matrices = factors @ factors.transpose(0, 2, 1)
    found, good, solution = eliminated(matrices, right)
    upper = np.linalg.cholesky(matrices).transpose(0, 2, 1)
    np.testing.assert_array_equal(good, 1.0)
    np.testing.assert_allclose(np.triu(found[:, :, :size]), upper, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[:, :, size + 1 :], np.linalg.inv(upper.transpose(0, 2, 1)), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(solution, np.linalg.solve(matrices, right[:, :, None])[:, :, 0], rtol=1e-6, atol=1e-6)


def test_a_matrix_that_is_not_positive_definite_is_told_and_leaves_the_other_lanes_alone() -> None:
    generator = np.random.default_rng(2)
    factors, right = generator.normal(size=(LANES, 9, 12)), generator.normal(size=(LANES, 9))
    matrices = factors @ factors.transpose(0, 2, 1)
    wanted = eliminated(matrices, right)
    matrices[1] -= 3.0 * np.linalg.eigvalsh(matrices[1])[0] * np.eye(9)
    found = eliminated(matrices, right)
    others = np.arange(LANES) != 1
    np.testing.assert_array_equal(found[1], np.where(others, 1.0, 0.0))
    np.testing.assert_array_equal(found[0][others], wanted[0][others])
    np.testing.assert_array_equal(found[2][others], wanted[2][others])

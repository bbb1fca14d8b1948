"""The DPAM benchmark's data have the promised shape, and its sweep is the simulator's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.dpam_data import Shape, made, made_in_folder, plain_items, plain_sums
from odp.datasets.ratings import Ratings

SHAPE = Shape("tiny", 300, 90, 4_000, 3)


def test_made_data_have_exactly_the_shape_and_repeat() -> None:
    ratings = made(SHAPE)
    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (300, 90, 4_000)
    assert ratings.counts().max() > 2 * ratings.counts().mean()
    np.testing.assert_array_equal(ratings.items, made(SHAPE).items)
    assert made(SHAPE, ratings=2_000).n_ratings == 2_000


def test_data_written_block_by_block_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.dpam_data._ENTRIES", 500)
    ratings = made(SHAPE)
    made_in_folder(SHAPE, tmp_path)
    opened = Ratings.open_folder(tmp_path)
    for field in ("offsets", "items", "values"):
        np.testing.assert_array_equal(getattr(opened, field), getattr(ratings, field))


def test_the_plain_loop_sums_what_it_says() -> None:
    ratings = made(SHAPE)
    factors = np.random.default_rng(1).normal(size=(90, 3))
    grams, targets = plain_sums(ratings, factors, ridge=1.0)
    dense, mask = np.zeros((300, 90)), np.zeros((300, 90))
    dense[ratings.users(), ratings.items], mask[ratings.users(), ratings.items] = ratings.values - 3.5, 1.0
    systems = np.einsum("ui,id,ie->ude", mask, factors, factors) + np.eye(3)
    rows = np.linalg.solve(systems, (dense @ factors)[:, :, None])[:, :, 0]
    np.testing.assert_allclose(grams, np.einsum("ui,ud,ue->ide", mask, rows, rows), atol=1e-9)
    np.testing.assert_allclose(targets, dense.T @ rows, atol=1e-9)


def test_a_sweep_reports_times_and_the_flops_of_the_formula() -> None:
    pytest.importorskip("numba")
    from benchmarks import dpam

    ratings = made(SHAPE)
    found = dpam.sweep(ratings, 3)
    assert min(found.users, found.noise, found.items, found.product) > 0
    assert found.flops == 4 * 4_000 * (6 + 3) + 300 * 27 / 3 + 10 * 90 * 27


def test_the_plain_loop_solves_items_from_positive_matrices() -> None:
    generator = np.random.default_rng(1)
    roots = generator.normal(size=(5, 3, 4))
    grams, rows = roots @ roots.transpose(0, 2, 1), generator.normal(size=(5, 3))
    targets = np.einsum("ijk,ik->ij", grams + np.eye(3), rows)
    assert np.allclose(plain_items(grams, targets, noise=0.0, ridge=1.0), rows)

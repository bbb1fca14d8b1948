"""Sums of weighted outer products in 16-bit pieces are exact, up to the largest numbers that are allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
tiles = pytest.importorskip("odp.numerics.integer_tiles", reason="needs numba")


@numba.njit
def summed(rows: Any, weights: Any, targets: Any, width: int, high: Any, low: Any) -> None:
    """All rows int16 [n, rank], chunk by chunk, into one pair of accumulators."""
    flat, rank = rows.reshape(-1), rows.shape[1]
    points, pieces = np.zeros(32 * (width + 4), np.int32), np.zeros(64 * width, np.int32)
    some_weights, some_targets = np.zeros(64, np.int32), np.zeros(64, np.int32)
    for start in range(0, len(rows), 64):
        size = min(64, len(rows) - start)
        some_weights[:], some_targets[:] = 0, 0
        some_weights[:size], some_targets[:size] = weights[start : start + size], targets[start : start + size]
        for pair in range((size + 1) // 2):
            one, two = start + 2 * pair, start + min(2 * pair + 1, size - 1)
            given = flat, rank, one * rank, two * rank, some_weights, some_targets
            tiles.pack_pair(*given, pair, width, points, pieces)
        tiles.add_weighted(points, pieces, width, high, low, (size + 1) // 2)


@pytest.mark.parametrize(("rank", "entries"), [(1, 1), (19, 130), (33, tiles.MOST)])
@pytest.mark.parametrize("largest", [False, True])
def test_sums_are_those_of_whole_numbers(rank: int, entries: int, largest: bool) -> None:
    """``largest``: every number at its bound, and of one sign, so that nothing cancels."""
    generator = np.random.default_rng(rank)
    rows = generator.integers(-(2**11), 2**11, (entries, rank), endpoint=True).astype(np.int16)
    weights = generator.integers(0, 2**10, entries, endpoint=True).astype(np.int32)
    targets = generator.integers(-(2**9), 2**9, entries, endpoint=True).astype(np.int32)
    if largest:
        rows[:], weights[:], targets[:] = -(2**11), 2**10, -(2**9)
    width = -(-rank // tiles.COLUMNS) * tiles.COLUMNS
    high, low = np.zeros(((width + 2) * width), np.int32), np.zeros(((width + 2) * width), np.int32)
    summed(rows, weights, targets, width, high, low)
    found = ((high.astype(np.int64) << 11) + low).reshape(width + 2, width)
    whole, weighted = rows.astype(np.int64), rows.astype(np.int64) * weights[:, None]
    np.testing.assert_array_equal(np.triu(found[:rank, :rank]), np.triu(whole.T @ weighted))
    np.testing.assert_array_equal(found[width:, :rank], [weighted.sum(axis=0), targets @ weighted])
    total = np.ones(rank, dtype=np.int64)
    tiles.add_totals(high, low, width * width, rank, 3, total, 0)
    np.testing.assert_array_equal(total, 1 + 3 * weighted.sum(axis=0))


def test_processors_without_the_instruction_compute_the_same() -> None:
    """Pairs of 16-bit numbers from bound to bound."""
    generator = np.random.default_rng(1)
    points = generator.integers(-(2**11), 2**11, (5, 4, 2), endpoint=True).astype(np.int16).reshape(-1).view(np.int32)
    pieces = generator.integers(-(2**10), 2**10, (5, 2, 8, 2), endpoint=True).astype(np.int16).reshape(-1)
    found = []
    for tile in (tiles._tile(4), tiles._tile(4, instruction=False)):

        @numba.njit
        def add(x: Any, p: Any, high: Any, low: Any, tile: Any = tile) -> None:
            tile(x, 0, p, 0, high, low, 0, 8, 5)

        high, low = np.ones(32, np.int32), np.zeros(32, np.int32)
        add(points, pieces.view(np.int32), high, low)
        found.append((high, low))
    np.testing.assert_array_equal(found[0], found[1])
    shorts, parts = points.view(np.int16).reshape(5, 4, 2).astype(np.int64), pieces.reshape(5, 2, 8, 2).astype(np.int64)
    wanted = np.einsum("krt,kpst->prs", shorts, parts)
    np.testing.assert_array_equal(np.reshape(found[0], (2, 4, 8)), wanted + np.array([1, 0])[:, None, None])

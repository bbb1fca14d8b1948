"""DPAM's inner loops in machine code: sampling, users' solves and contributions, exact sums per item.

The same arithmetic as ``userside.py`` and ``query.Accumulator``, one user or item at a time. A user's result depends on
nothing but the user's own entries, and sums are of integers below 2^53, so results do not depend on blocks or threads.
Import needs numba; nothing imports this module at the top. All functions release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.codec import TARGET_UNITS
from odp.algorithms.dpam.userside import JITTER, LENGTH, MOST_CENTRES, ROW_SHARE, SAME, SQUARINGS
from odp.algorithms.factorization.codec import WEIGHT_UNITS
from odp.numerics import tiles
from odp.numerics.hash_kernels import splitmix64

_FUSED = {"contract", "nsz"}
_GUARD = 1e-6  # as in ``userside.py``
_LARGEST = np.uint64(2**64 - 1)

#: What an entry is used for.
UNUSED, SOLVED, CONTRIBUTED = 0, 1, 2


@numba.njit(nogil=True, cache=True)
def choose(offsets: Any, items: Any, seeds: Any, round: int, fetched: int, sent: int, use: Any) -> None:
    """Marks each user's entries: the ``sent`` of smallest hash CONTRIBUTED, up to ``fetched`` SOLVED, else UNUSED.

    ``offsets`` int64 [n + 1] count from the first of ``items``; ``use`` uint8 is filled. Source: ``slices.py``.
    """
    for user in range(len(offsets) - 1):
        first, last = offsets[user], offsets[user + 1]
        size = last - first
        if size <= sent:
            use[first:last] = CONTRIBUTED
            continue
        stream = splitmix64(splitmix64(seeds[user]) ^ np.uint64(round))
        hashes = np.empty(size, np.uint64)
        for place in range(size):
            hashes[place] = splitmix64(stream ^ splitmix64(np.uint64(items[first + place])))
        # A user's hashes are distinct: so many are at or below a bound.
        bound = _LARGEST
        fetched_hashes = hashes
        if size > fetched:
            fetched_hashes = np.partition(hashes, fetched - 1)[:fetched]
            bound = fetched_hashes[fetched - 1]
        inner = np.partition(fetched_hashes, sent - 1)[sent - 1]
        for place in range(size):
            entry = CONTRIBUTED if hashes[place] <= inner else SOLVED if hashes[place] <= bound else UNUSED
            use[first + place] = entry


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def solve(
    offsets: Any,
    items: Any,
    values: Any,
    use: Any,
    factors: Any,
    rank: int,
    base: Any,
    trust: Any,
    row_ridge: float,
    bias_ridge: float,
    bias_out: Any,
    row_out: Any,
) -> None:
    """Each user's bias and row by weighted ridge regression, in closed form; see ``userside.solve``.

    Args:
      offsets: int64 [n + 1], from the first of ``items``.
      items, values, use: entries of the users; those UNUSED take no part.
      factors: float64 [m, rank].
      rank: of the rows; 0 solves the bias alone.
      base: centre plus item bias, float64 [m].
      trust: of the items, float64 [m].
      row_ridge, bias_ridge: ridges.
      bias_out, row_out: float64 [n] and [n, rank] to fill.
    """
    # The sum of weighted outer products of (row, 1, target) is the system and its right-hand side.
    height = tiles.even(rank + 2)
    points, weights = tiles.columns_of(height), np.empty(tiles.CHUNK)
    points[rank] = 1.0
    system, solution = np.empty((height, height)), np.empty(rank + 1)
    for user in range(len(offsets) - 1):
        system[:] = 0.0
        filled = 0
        for entry in range(offsets[user], offsets[user + 1]):
            if use[entry] == UNUSED:
                continue
            item = items[entry]
            for column in range(rank):
                points[column, filled] = factors[item, column]
            points[rank + 1, filled], weights[filled] = values[entry] - base[item], trust[item]
            filled += 1
            if filled == tiles.CHUNK:
                tiles.add_outer(points, weights, system, filled)
                filled = 0
        tiles.add_outer(points, weights, system, filled)
        for row in range(rank):
            system[row, row] += row_ridge
        system[rank, rank] += bias_ridge
        tiles.solve(system, rank + 1, solution)
        bias_out[user], row_out[user] = solution[rank], solution[:rank]


@numba.njit(nogil=True, cache=True)
def quantise_rows(row: Any, scale: float, limit: int, out: Any) -> None:
    """Rows float64 [n, rank] to integer units, int16; see ``userside.quantised_rows``."""
    root = np.sqrt(limit)
    for user in range(len(row)):
        norm = 0.0
        for value in row[user]:
            norm += (value * scale) * (value * scale)
        shrink = min(1.0, root / max(np.sqrt(norm), 1.0))
        squares = 0
        for place, value in enumerate(row[user]):
            integer = int(np.rint(value * scale * shrink))
            out[user, place] = integer
            squares += integer * integer
        if squares > limit:
            shrink = np.sqrt(limit / squares)
            for place in range(row.shape[1]):
                out[user, place] = int(np.trunc(out[user, place] * shrink))


@numba.njit(nogil=True, cache=True)
def quantise_entries(
    offsets: Any,
    items: Any,
    values: Any,
    use: Any,
    bias: Any,
    base: Any,
    raw: Any,
    fixed: int,
    clip: float,
    limit: int,
    weight_out: Any,
    target_out: Any,
) -> None:
    """Weights and targets of CONTRIBUTED entries in integer units, 0 for the others; see ``userside.contributions``.

    Args:
      offsets, items, values, use: as in :func:`solve`.
      bias: of the users, float64 [n].
      base: centre plus item bias, float64 [m].
      raw: items' weights before scaling, float64 [m]; unused where ``fixed`` is positive.
      fixed: the weight of every entry, or 0 for adaptive ones.
      clip: bound of the absolute target.
      limit: of a user's sum of (weight target)^2, in integer units.
      weight_out, target_out: int16 per entry, to fill.
    """
    for user in range(len(offsets) - 1):
        squares = 0.0
        if fixed == 0:
            for entry in range(offsets[user], offsets[user + 1]):
                if use[entry] == CONTRIBUTED:
                    squares += raw[items[entry]] * raw[items[entry]]
        scale = WEIGHT_UNITS / np.sqrt(squares) if squares > 0 else 0.0
        reached = np.int64(0)
        for entry in range(offsets[user], offsets[user + 1]):
            weight_out[entry] = 0
            target_out[entry] = 0
            if use[entry] != CONTRIBUTED:
                continue
            item = items[entry]
            residual = values[entry] - base[item] - bias[user]
            target_out[entry] = int(np.rint(min(max(residual / clip, -1.0), 1.0) * TARGET_UNITS))
            weight_out[entry] = fixed if fixed else int(np.floor(raw[item] * scale + _GUARD))
            product = np.int64(weight_out[entry]) * np.int64(target_out[entry])
            reached += product * product
        if reached > limit:
            shrink = np.sqrt(limit / reached)
            for entry in range(offsets[user], offsets[user + 1]):
                target_out[entry] = int(np.trunc(target_out[entry] * shrink))


@numba.njit(nogil=True, cache=True)
def count_items(items: Any, weight: Any, counts: Any) -> None:
    """Adds to int64 [m] how many entries with a weight each item has."""
    for entry in range(len(items)):
        counts[items[entry]] += weight[entry] != 0


@numba.njit(nogil=True, cache=True)
def group(
    offsets: Any, items: Any, weight: Any, target: Any, user: int, place: Any, users: Any, weights: Any, targets: Any
) -> None:
    """Copies users' entries with a weight to where their item's entries stand.

    Args:
      offsets: int64 [n + 1], from the first of ``items``.
      items, weight, target: of the entries.
      user: number of the first user.
      place: int64 [m], where the next entry of an item goes; moved on.
      users, weights, targets: int32, int16 and int16, to fill.
    """
    for local_user in range(len(offsets) - 1):
        for entry in range(offsets[local_user], offsets[local_user + 1]):
            if weight[entry] != 0:
                here = place[items[entry]]
                place[items[entry]] = here + 1
                users[here] = user + local_user
                weights[here] = weight[entry]
                targets[here] = target[entry]


@numba.njit(nogil=True, cache=True)
def add_entries(items: Any, weight: Any, target: Any, squares: Any, products: Any) -> None:
    """Adds weights and weighted targets to int64 [m] totals: the rounds of counts and biases."""
    for entry in range(len(items)):
        squares[items[entry]] += weight[entry]
        products[items[entry]] += np.int64(weight[entry]) * np.int64(target[entry])


@numba.njit(nogil=True, cache=True)
def add_items(
    first: int,
    last: int,
    starts: Any,
    users: Any,
    weights: Any,
    targets: Any,
    rows: Any,
    constant: int,
    squares: Any,
    products: Any,
) -> None:
    """Adds, for items ``first`` to ``last``, sums of w x x' and w y x with x = (constant, row); all exact.

    Args:
      first, last: range of items.
      starts: int64 [m + 1]; item ``i`` owns the entries ``starts[i] : starts[i + 1]``, at most 2^20.
      users, weights, targets: int32, int16 and int16 per entry, as of :func:`group`.
      rows: int16 [n, rank].
      constant: in front of every row.
      squares: int64 [m, (rank + 1) (rank + 2) / 2], packed upper triangles, added to.
      products: int64 [m, rank + 1], added to.
    """
    rank = rows.shape[1]
    height = tiles.even(rank + 2)
    points, weight = tiles.columns_of(height), np.empty(tiles.CHUNK)
    points[rank] = 1.0
    sums = np.empty((height, height))
    for item in range(first, last):
        sums[:] = 0.0
        for start in range(starts[item], starts[item + 1], tiles.CHUNK):
            filled = min(tiles.CHUNK, starts[item + 1] - start)
            for k in range(filled):
                row = rows[users[start + k]]
                for column in range(rank):
                    points[column, k] = row[column]
                points[rank + 1, k], weight[k] = targets[start + k], weights[start + k]
            tiles.add_outer(points, weight, sums, filled)
        packed, product = squares[item], products[item]
        packed[0] += constant * constant * np.int64(sums[rank, rank])
        product[0] += constant * np.int64(sums[rank, rank + 1])
        place = 1 + rank
        for factor in range(rank):
            packed[1 + factor] += constant * np.int64(sums[factor, rank])
            product[1 + factor] += np.int64(sums[factor, rank + 1])
            for column in range(factor, rank):
                packed[place] += np.int64(sums[factor, column])
                place += 1


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def predict(offsets: Any, items: Any, bias: Any, row: Any, factors: Any, base: Any, out: Any) -> None:
    """Fills ``out`` float64 [entries] with base plus bias plus inner product; arguments as in :func:`solve`."""
    for user in range(len(offsets) - 1):
        for entry in range(offsets[user], offsets[user + 1]):
            item = items[entry]
            total = 0.0
            for column in range(row.shape[1]):
                total += row[user, column] * factors[item, column]
            out[entry] = base[item] + bias[user] + total


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def predict_smooth(
    offsets: Any,
    items: Any,
    values: Any,
    wanted_offsets: Any,
    wanted: Any,
    factors: Any,
    rank: int,
    base: Any,
    trust: Any,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
    out: Any,
) -> None:
    """Fills ``out`` float64 [len(wanted)] with predictions.

    Args:
      offsets: int64 [n + 1], from the first of ``items``; ``wanted_offsets`` the same of ``wanted``.
      items, values: own entries of the users, a user's in ascending order of the items.
      wanted: items to predict.
      factors: float64 [m, C], C >= ``rank``.
      base, trust: of the items, float64 [m].
      row_ridge, bias_ridge, variance: as in ``userside.predictions``.
    """
    most = rank + MOST_CENTRES
    space, points, weights = np.empty(tiles.even(most + 2) ** 2), tiles.columns_of(most + 2), np.empty(tiles.CHUNK)
    centre_kernel, solution = np.empty((MOST_CENTRES, MOST_CENTRES)), np.empty(most + 1)
    for user in range(len(offsets) - 1):
        first, last = offsets[user], offsets[user + 1]
        begin, end = wanted_offsets[user], wanted_offsets[user + 1]
        if begin == end:
            continue
        step = max(1, (last - first + MOST_CENTRES - 1) // MOST_CENTRES)
        middle, scale = _centres(items[first:last:step], factors, rank)
        count = middle.shape[1]
        size = rank + count
        height = tiles.even(size + 2)
        system = space[: height * height].reshape(height, height)
        system[:] = 0.0
        points[size] = 1.0
        for start in range(first, last, tiles.CHUNK):
            filled = min(tiles.CHUNK, last - start)
            for place in range(filled):
                item = items[start + place]
                for column in range(rank):
                    points[column, place] = factors[item, column]
                points[size + 1, place], weights[place] = values[start + place] - base[item], trust[item]
            _fill_kernels(points, rank, middle, scale, filled)
            for place in range((first - start) % step, filled, step):
                centre_kernel[(start + place - first) // step, :count] = points[rank:size, place]
            tiles.add_outer(points, weights, system, filled)
        for row in range(size):
            if row < rank:
                system[row, row] += row_ridge / ROW_SHARE
            else:
                system[row, row] += JITTER / variance
                for column in range(row, size):
                    system[row, column] += centre_kernel[row - rank, column - rank] / variance
        system[size, size] += bias_ridge
        tiles.solve(system, size + 1, solution)
        for start in range(begin, end, tiles.CHUNK):
            filled = min(tiles.CHUNK, end - start)
            for place in range(filled):
                item = wanted[start + place]
                for column in range(rank):
                    points[column, place] = factors[item, column]
                out[start + place] = base[item] + solution[size]
            _fill_kernels(points, rank, middle, scale, filled)
            for column in range(size):
                for place in range(filled):
                    out[start + place] += points[column, place] * solution[column]


@numba.njit(nogil=True, cache=True)
def _centres(items: Any, factors: Any, rank: int) -> Any:
    """(rows of ``items`` [rank, count], what distances are multiplied by); none where all rows are the same."""
    middle = np.empty((rank, len(items)))
    spread, squares = 0.0, 0.0
    for column in range(rank):
        mean = 0.0
        for centre, item in enumerate(items):
            middle[column, centre] = factors[item, column]
            mean += middle[column, centre]
            squares += middle[column, centre] ** 2
        mean /= max(len(items), 1)
        for centre in range(len(items)):
            spread += (middle[column, centre] - mean) ** 2
    if spread > SAME * squares:
        return middle, 0.5 / (2**SQUARINGS * LENGTH * spread / (len(items) - 1))
    return np.empty((rank, 0)), 0.0


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _fill_kernels(points: Any, rank: int, middle: Any, scale: float, filled: int) -> None:
    """Fills the rows behind the first ``rank`` of ``points``: the kernels of ``filled`` vectors with each centre."""
    for centre in range(middle.shape[1]):
        kernels = points[rank + centre]
        kernels[:filled] = 0.0
        for column in range(rank):
            vectors, value = points[column], middle[column, centre]
            for place in range(filled):
                off = vectors[place] - value
                kernels[place] += off * off
        for place in range(filled):
            kernel = 1.0 / (1.0 + scale * kernels[place])
            for _ in range(SQUARINGS):
                kernel *= kernel
            kernels[place] = kernel

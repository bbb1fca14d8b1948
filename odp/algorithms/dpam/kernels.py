"""DPAM's inner loops in machine code: sampling, users' solves and contributions, exact sums per item.

The same arithmetic as ``userside.py`` and ``query.Accumulator``, one user or item at a time. A user's result depends on
nothing but the user's own entries, and sums are of integers below 2^53, so results do not depend on blocks or threads.
Import needs numba; nothing imports this module at the top. All functions release the interpreter lock.

``userside.predictions`` for many users at once, in machine code.

Import needs numba; releases the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.codec import TARGET_UNITS
from odp.algorithms.dpam.userside import JITTER, LENGTH, MOST_CENTRES, ROW_SHARE, SAME, SQUARINGS
from odp.algorithms.factorization.codec import WEIGHT_UNITS
from odp.numerics import integer_tiles, lane_tiles
from odp.numerics.hash_kernels import splitmix64
from odp.numerics.tiles import CHUNK, LANES, TILE_ROWS, add_outer, add_pairs, eliminate, fetch_ahead, padded, substitute

_FUSED = {"contract", "nsz"}
_GUARD = 1e-6  # as in ``userside.py``
_LARGEST = np.uint64(2**64 - 1)

_LEAST_FOR_INTEGERS = 16  # columns; below, packing takes longer than sums in float64

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
      factors: float64 [m, C], C = ``padded(rank)``, zeros on the right.
      rank: of the rows; 0 solves the bias alone.
      base: centre plus item bias, float64 [m].
      trust: of the items, float64 [m].
      row_ridge, bias_ridge: ridges.
      bias_out, row_out: float64 [n] and [n, rank] to fill.
    """
    columns = factors.shape[1]
    points = factors.reshape(-1)
    places, weights, pairs = np.empty(CHUNK, np.int64), np.empty(CHUNK), np.empty(2 * CHUNK)
    size = rank + 1
    width = (size + 1 + LANES - 1) // LANES * LANES
    height = max(size, columns) + TILE_ROWS
    step = height * width
    # The systems of as many users as there are lanes are summed up one by one, and solved at once.
    all_flat, sums = np.zeros(LANES * step), np.empty(2 * columns)
    starts, many = np.arange(LANES) * step, lane_tiles.systems(size, size + 1)
    factors_of, good, solution = np.empty(16 * LANES), np.empty(LANES), np.empty(size * LANES)
    users = len(offsets) - 1
    for first in range(0, users, LANES):
        lanes = min(LANES, users - first)
        all_flat[: lanes * step] = 0.0
        for lane in range(lanes):
            user, flat = first + lane, all_flat[lane * step : (lane + 1) * step]
            system = flat.reshape(height, width)
            sums[:] = 0.0
            weight_sum, target_sum = 0.0, 0.0
            filled = 0
            for entry in range(offsets[user], offsets[user + 1]):
                if use[entry] == UNUSED:
                    continue
                item = items[entry]
                weight = trust[item]
                target = weight * (values[entry] - base[item])
                weight_sum += weight
                target_sum += target
                places[filled] = item * columns
                fetch_ahead(points, places[filled], columns, 8)
                weights[filled] = weight
                pairs[2 * filled], pairs[2 * filled + 1] = weight, target
                filled += 1
                if filled == CHUNK:
                    add_outer(points, places, weights, columns, flat, width, filled)
                    add_pairs(points, places, pairs, columns, sums, filled)
                    filled = 0
            add_outer(points, places, weights, columns, flat, width, filled)
            add_pairs(points, places, pairs, columns, sums, filled)
            for row in range(rank):
                system[row, row] += row_ridge
                system[row, rank] = sums[row]
                system[row, size] = sums[columns + row]
            system[rank, rank] = weight_sum + bias_ridge
            system[rank, size] = target_sum
        # Lanes without a user solve what is left there of users before, or zeros.
        for row in range(size):
            place = row * width + row
            lane_tiles.gather(all_flat, starts, place, size + 1 - row, many, row * (size + 1) + row)  # type: ignore[call-arg]
        lane_tiles.eliminate(many, size + 1, size, 1, False, factors_of, good)
        lane_tiles.substitute(many, size + 1, size, solution)
        for lane in range(lanes):
            bias_out[first + lane] = solution[rank * LANES + lane]
            for column in range(rank):
                row_out[first + lane, column] = solution[column * LANES + lane]


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
    if not integer_tiles.AVAILABLE or rows.shape[1] < _LEAST_FOR_INTEGERS:
        add_items_in_reals(first, last, starts, users, weights, targets, rows, constant, squares, products)
        return
    rank, flat = rows.shape[1], rows.reshape(-1)
    width = (rank + integer_tiles.COLUMNS - 1) // integer_tiles.COLUMNS * integer_tiles.COLUMNS
    chunk = integer_tiles.CHUNK
    points = np.zeros(chunk // 2 * (width + 4), np.int32)
    pieces = np.zeros(chunk * width, np.int32)
    some_weights, some_targets = np.zeros(chunk, np.int32), np.zeros(chunk, np.int32)
    high, low = np.zeros((width + 2) * width, np.int32), np.zeros((width + 2) * width, np.int32)
    for item in range(first, last):
        packed, product = squares[item], products[item]
        start, end = starts[item], starts[item + 1]
        weight_sum, target_sum, filled = np.int64(0), np.int64(0), 0
        while start < end:
            size = min(chunk, end - start)
            for k in range(size):
                if start + chunk + k < end:
                    fetch_ahead(flat, users[start + chunk + k] * rank, rank, 32)
                w, target = np.int64(weights[start + k]), np.int64(targets[start + k])
                weight_sum += w
                target_sum += w * target
                some_weights[k], some_targets[k] = w, target
            if size & 1:
                some_weights[size], some_targets[size] = 0, 0
            pairs = (size + 1) // 2
            for pair in range(pairs):
                left, right = users[start + 2 * pair], users[start + min(2 * pair + 1, size - 1)]
                integer_tiles.pack_pair(
                    flat, rank, left * rank, right * rank, some_weights, some_targets, pair, width, points, pieces
                )
            integer_tiles.add_weighted(points, pieces, width, high, low, pairs)
            start += size
            filled += size
            if start == end or filled + chunk > integer_tiles.MOST:
                filled, place = 0, 1 + rank
                integer_tiles.add_totals(high, low, width * width, rank, constant, packed, 1)
                integer_tiles.add_totals(high, low, (width + 1) * width, rank, 1, product, 1)
                for row in range(rank):
                    integer_tiles.add_totals(high, low, row * width + row, rank - row, 1, packed, place)
                    place += rank - row
                high[:] = 0
                low[:] = 0
        packed[0] += constant * constant * weight_sum
        product[0] += constant * target_sum


@numba.njit(nogil=True, cache=True)
def add_items_in_reals(
    first: int, last: int, starts: Any, users: Any, weights: Any, targets: Any, rows: Any, constant: int,
    squares: Any, products: Any,
) -> None:  # fmt: skip
    """The same as :func:`add_items` in float64, for short rows and for processors without 16-bit multiply-adds."""
    rank = rows.shape[1]
    columns = (rank + LANES - 1) // LANES * LANES
    points, places = np.zeros(CHUNK * columns), np.arange(CHUNK) * columns
    reals, pairs, flat = np.empty(CHUNK), np.empty(2 * CHUNK), rows.reshape(-1)
    sums, twice = np.empty(columns * columns), np.empty(2 * columns)
    for item in range(first, last):
        if starts[item] == starts[item + 1]:
            continue
        sums[:] = 0.0
        twice[:] = 0.0
        weight_sum, target_sum = np.int64(0), np.int64(0)
        for start in range(starts[item], starts[item + 1], CHUNK):
            filled = min(CHUNK, starts[item + 1] - start)
            ahead = min(start + CHUNK, starts[item + 1])
            for k in range(filled):
                if ahead + k < starts[item + 1]:
                    fetch_ahead(flat, users[ahead + k] * rank, rank, 32)
                w = np.int64(weights[start + k])
                wy = w * np.int64(targets[start + k])
                weight_sum += w
                target_sum += wy
                reals[k] = w
                pairs[2 * k], pairs[2 * k + 1] = w, wy
                row = rows[users[start + k]]
                point = points[k * columns : k * columns + rank]
                for column in range(rank):
                    point[column] = row[column]
            add_outer(points, places, reals, columns, sums, columns, filled)
            add_pairs(points, places, pairs, columns, twice, filled)
        packed, product = squares[item], products[item]
        packed[0] += constant * constant * weight_sum
        product[0] += constant * target_sum
        place = 1 + rank
        for factor in range(rank):
            packed[1 + factor] += constant * np.int64(twice[factor])
            product[1 + factor] += np.int64(twice[columns + factor])
            for column in range(factor, rank):
                packed[place] += np.int64(sums[factor * columns + column])
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


def table(rows: Any, rank: int) -> Any:
    """Factors float64 [m, ``padded(rank)``] of item rows [m, rank], zeros on the right."""
    wide = np.zeros((len(rows), padded(rank) if rank else 0))
    wide[:, :rank] = rows[:, :rank]
    return wide


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
    widest = _padded(most)
    system = np.empty((max(most + 1, widest) + TILE_ROWS) * _padded(most + 2))
    points, places = np.empty(CHUNK * widest), np.empty(CHUNK, np.int64)
    weights, pairs, sums = np.empty(CHUNK), np.empty(2 * CHUNK), np.empty(2 * widest)
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
        columns, width = _padded(size), _padded(size + 2)
        flat = system[: (max(size + 1, columns) + TILE_ROWS) * width]
        table = points[: CHUNK * columns].reshape(CHUNK, columns)
        flat[:] = 0.0
        sums[:] = 0.0
        table[:] = 0.0
        weight_sum, target_sum = 0.0, 0.0
        filled = 0
        for entry in range(first, last):
            item = items[entry]
            weight = trust[item]
            target = weight * (values[entry] - base[item])
            weight_sum += weight
            target_sum += target
            _fill(factors[item], rank, middle, scale, table[filled])
            if count and (entry - first) % step == 0:
                centre_kernel[(entry - first) // step, :count] = table[filled, rank:size]
            places[filled] = filled * columns
            weights[filled] = weight
            pairs[2 * filled], pairs[2 * filled + 1] = weight, target
            filled += 1
            if filled == CHUNK:
                add_outer(points, places, weights, columns, flat, width, filled)
                add_pairs(points, places, pairs, columns, sums, filled)
                filled = 0
        add_outer(points, places, weights, columns, flat, width, filled)
        add_pairs(points, places, pairs, columns, sums, filled)
        rows = flat.reshape(-1, width)
        for row in range(size):
            if row < rank:
                rows[row, row] += row_ridge / ROW_SHARE
            else:
                rows[row, row] += JITTER / variance
                for column in range(row, size):
                    rows[row, column] += centre_kernel[row - rank, column - rank] / variance
            rows[row, size] = sums[row]
            rows[row, size + 1] = sums[columns + row]
        rows[size, size] = weight_sum + bias_ridge
        rows[size, size + 1] = target_sum
        eliminate(flat, width, size + 1, np.full(size + 1, width, dtype=np.int64))
        substitute(flat, width, size + 1, solution)
        for place in range(begin, end):
            _fill(factors[wanted[place]], rank, middle, scale, table[0])
            total = base[wanted[place]] + solution[size]
            for column in range(size):
                total += table[0, column] * solution[column]
            out[place] = total


@numba.njit(nogil=True, cache=True)
def _padded(size: int) -> int:
    return (size + LANES - 1) // LANES * LANES


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
def _fill(row: Any, rank: int, middle: Any, scale: float, out: Any) -> None:
    out[:rank] = row[:rank]
    kernels = out[rank : rank + middle.shape[1]]
    kernels[:] = 0.0
    for column in range(rank):
        for centre in range(len(kernels)):
            off = row[column] - middle[column, centre]
            kernels[centre] += off * off
    for centre in range(len(kernels)):
        kernel = 1.0 / (1.0 + scale * kernels[centre])
        for _ in range(SQUARINGS):
            kernel *= kernel
        kernels[centre] = kernel

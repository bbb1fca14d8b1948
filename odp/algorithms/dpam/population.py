"""DPAM's client for many users at once: the same arithmetic, in machine code where numba is installed.

Users come in blocks of bounded memory, so ratings may be mapped from disk; only the item sums are held as a whole.
A user's contribution depends on nothing but the user's data, seed and the broadcast, and sums are of integers: so the
results depend on neither blocks nor threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import codec, gradient_codec, gradient_userside, uncertainty, userside
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.gradient_query import GradientSum
from odp.algorithms.dpam.placed import placed_in
from odp.algorithms.dpam.query import Accumulator, query_of
from odp.algorithms.dpam.terms import (
    BIAS_COLUMN,
    COUNT_COLUMN,
    COUNTS_ROUND,
    FACTOR_COLUMNS,
    FIRST_FACTOR_ROUND,
    GLOBALS_TABLE,
    RIDGES,
    TRUST_COLUMN,
    Terms,
)
from odp.algorithms.factorization import laid_out
from odp.algorithms.factorization.codec import ROW_UNITS
from odp.algorithms.factorization.whole_vectors import RELEASE, WholeVector, whole_vector
from odp.crypto.keyed_hash import round_hashes
from odp.errors import DataError
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array, Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

Progress = Callable[[int], None]

_BLOCK_ENTRIES = 2**23  # ratings per block: some 120 MB of work space
_BLOCK_NUMBERS = 2**23  # of all users' rows in a block
_BLOCK_USERS = 2**20  # float64 sums over more users would not be exact
_PART_ENTRIES = 2**16  # ratings per piece of work of one thread
_CELLS = 2**18  # padded entries per batch without numba: some 20 MB at rank 8


class DpamPopulation:
    """``odp.algorithms.seam.Population`` of one task.

    Args:
      definition: the task.
      threads: None for all processors; decides the time and nothing else.
      block: most ratings per block; decides memory and nothing else.
      compiled: False does without numba even where it is installed.

    Raises:
      ConfigurationError: the definition is no valid DPAM task.
    """

    def __init__(
        self,
        definition: common_pb2.TaskDefinition,
        *,
        threads: int | None = None,
        block: int = _BLOCK_ENTRIES,
        compiled: bool = True,
    ) -> None:
        self._terms, self._definition = Terms.of(definition), definition
        self._threads = parallel.processors(threads)
        self._block = block
        self._kernels = machine_code() if compiled else None

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Progress | None = None,
    ) -> Mapping[str, Int64Array]:
        """The exact sums of every user's contribution to ``round``, in grid units, by release name.

        ``progress`` is called after each block with the number of users that are done.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(ratings, seeds)
        broadcast = userside.usable(self._terms, broadcast)
        query = query_of(self._terms, round)
        if (vector := whole_vector(query, self._definition)) is not None:
            return self._vectors(vector, broadcast, ratings, round=round, seeds=seeds, progress=progress)
        if self._terms.gradient:
            return self._gradients(broadcast, ratings, round=round, seeds=seeds, progress=progress)
        total = Accumulator(self._terms, round)
        if self._kernels is None:
            for _, contributions in self.contributions(broadcast, ratings, round=round, seeds=seeds):
                total.add_decoded(contributions)
                if progress is not None:
                    progress(total.count)
            return total.final()
        model = _Model.of(self._terms, self._kernels, broadcast, round, self._terms.rank_of(round))
        for block in self._blocks(ratings, model.rank):
            self._add_block(total, model, block, round, seeds[block.users])
            if progress is not None:
                progress(total.count)
        return total.final()

    def _vectors(
        self,
        vector: WholeVector,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Progress | None,
    ) -> Mapping[str, Int64Array]:
        """``contribute`` of whole vectors, never in machine code: only what is not 0 is ever laid out."""
        total, done = np.zeros(vector.grid.size, dtype=np.int64), 0
        make = self.gradient_contributions if self._terms.gradient else self.contributions
        for users, contributions in make(broadcast, ratings, round=round, seeds=seeds):
            placed = placed_in(self._terms, round, contributions)
            laid_out.add(vector, total, placed, round=round, seeds=seeds[users])
            done += len(users)
            if progress is not None:
                progress(done)
        return {RELEASE: total}

    def _gradients(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Progress | None,
    ) -> Mapping[str, Int64Array]:
        """``contribute`` of gradient steps, whose masses are quick without machine code."""
        total = GradientSum(self._terms, round, oblivious=False)
        if self._kernels is None or round == COUNTS_ROUND:
            for _, contributions in self.gradient_contributions(broadcast, ratings, round=round, seeds=seeds):
                total.add_decoded(contributions)
                if progress is not None:
                    progress(total.count)
            return total.totals()
        model = _GradientModel.of(self._terms, broadcast)
        for block in self._blocks(ratings, self._terms.rank):
            self._add_gradients(total, model, block, round, seeds[block.users])
            if progress is not None:
                progress(total.count)
        return total.totals()

    def gradient_contributions(
        self, broadcast: ModelVersion, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, gradient_codec.Contributions]]:
        """As ``contributions``, of gradient steps."""
        terms = self._terms
        for users, batch in self._in_batches(broadcast, ratings, round=round, seeds=seeds):
            if round == COUNTS_ROUND:
                yield users, gradient_userside.masses(terms, batch)
            else:
                solved = gradient_userside.solve(terms, batch, uncertainty.read(terms, broadcast.dense))
                yield users, gradient_userside.contributions(terms, batch, solved)

    def contributions(
        self, broadcast: ModelVersion, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, Contributions]]:
        """(users int64 [n], what they send) in batches; every user is in one of them. Never in machine code.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(ratings, seeds)
        broadcast = userside.usable(self._terms, broadcast)
        rank = self._terms.rank_of(round)
        for users, batch in self._in_batches(broadcast, ratings, round=round, seeds=seeds):
            if round == COUNTS_ROUND:
                yield users, userside.counted(self._terms, batch.items, batch.mask)
                continue
            local = userside.solve(self._terms, batch, _ridges(broadcast), rank=rank)
            yield users, userside.contributions(self._terms, batch, local, round=round)

    def _in_batches(
        self, broadcast: ModelVersion, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, userside.Batch]]:
        """(users int64 [n], what they use in a round) in batches."""
        terms = self._terms
        limit = terms.max_items if round == COUNTS_ROUND else terms.slices_per_device
        cells = max(_CELLS // terms.learned**2, 1) if terms.gradient else _CELLS
        for block in self._blocks(ratings, terms.rank_of(round)):
            entries = _in_order_of_use(block, seeds[block.users].astype(np.uint64), round, limit)
            for users, batch in _batches(entries, broadcast, cells):
                yield users + block.users.start, batch

    def predict(self, broadcast: ModelVersion, history: Ratings, targets: Ratings) -> Float64Array:
        """Predictions float64 [targets.n_ratings], personalised on all of ``history``; not clamped.

        Raises:
          DataError: sizes do not fit the task, or the two data sets have different users.
        """
        broadcast, rank = self._usable_for(broadcast, history, targets)
        predicted = np.empty(targets.n_ratings)
        kernels = self._kernels
        model = None if kernels is None else _Model.of(self._terms, kernels, broadcast, broadcast.version, rank)
        for block in self._blocks(history, rank):
            wanted = self._block_of(targets, block.users.start, block.users.stop)
            here = slice(int(targets.offsets[block.users.start]), int(targets.offsets[block.users.stop]))
            if rank and self._terms.kernel_variance:
                self._predict_smoothly(broadcast, model, block, wanted, predicted[here])
                continue
            if model is not None and kernels is not None:
                local = self._solved(model, block, np.full(len(block.items), kernels.SOLVED, dtype=np.uint8))
                args = wanted.offsets, wanted.items, local.bias, local.row, model.factors, model.base
                kernels.predict(*args, predicted[here])
                continue
            bias, row = np.zeros(block.n_users), np.zeros((block.n_users, rank))
            entries = _Entries(
                block.items.astype(np.int64),
                block.values.astype(np.float64),
                block.offsets[:-1],
                np.diff(block.offsets),
            )
            for users, batch in _batches(entries, broadcast):
                part = userside.solve(self._terms, batch, _ridges(broadcast), rank=rank)
                bias[users], row[users] = part.bias, part.row
            everyone = userside.LocalParameters(bias=bias, row=row)
            user = np.repeat(np.arange(block.n_users), np.diff(wanted.offsets))
            for start in range(0, len(user), _CELLS):
                cut = slice(start, start + _CELLS)
                rows = broadcast.keyed.rows[wanted.items[cut]].astype(np.float64)
                predicted[here][cut] = userside.predict(self._terms, everyone, user[cut], rows)
        return predicted

    def half_widths(
        self, broadcast: ModelVersion, history: Ratings, targets: Ratings, *, levels: Float64Array
    ) -> Float64Array:
        """Half widths float64 [levels, targets.n_ratings] of the ranges around ``predict``; see ``userside.py``.

        Each user has a system of equations of their own, and its inverse is most of the work: some milliseconds each,
        so that a simulation takes some of the users.

        Raises:
          DataError: as ``predict``.
        """
        broadcast, rank = self._usable_for(broadcast, history, targets)
        table, out = broadcast.keyed.rows, np.empty((len(levels), targets.n_ratings))
        for block in self._blocks(history, rank):
            wanted = self._block_of(targets, block.users.start, block.users.stop)
            here = out[:, int(targets.offsets[block.users.start]) : int(targets.offsets[block.users.stop])]

            def user(number: int, block: _Block = block, wanted: _Block = wanted, here: Float64Array = here) -> None:
                batch, (_, place) = block.alone(number, table), wanted.part(number, number + 1)
                if place.start < place.stop:
                    rows = table[wanted.items[place]].astype(np.float64)
                    ridges = _ridges(broadcast)
                    here[:, place] = userside.half_widths(self._terms, batch, ridges, rows, levels, rank=rank)

            with parallel.one_blas_thread():
                parallel.each(user, range(block.n_users), threads=self._threads)
        return out

    def target_bounds(self, sizes: Int64Array) -> tuple[float, Float64Array]:
        """(bound of one target of the last round, those of the root mean squares of users with ``sizes`` [n] items)."""
        terms, last = self._terms, self._terms.rounds - 1
        if terms.gradient:
            return math.inf, terms.factor_vector_clip / np.sqrt(np.maximum(sizes, 1))
        return terms.target_clip(last), np.full(len(sizes), terms.vector_clip(last))

    def _predict_smoothly(
        self, broadcast: ModelVersion, model: _Model | None, block: _Block, wanted: _Block, out: Float64Array
    ) -> None:
        """Fills ``out`` with what the block's users predict of ``wanted``; see ``userside.predictions``."""
        terms, ridges, variance = self._terms, _ridges(broadcast), self._terms.kernel_variance
        if model is not None:
            from odp.algorithms.dpam import kernels

            rank, row_ridge, bias_ridge = model.rank, float(ridges[0]), float(ridges[1])

            def users(part: tuple[int, int]) -> None:
                (history_offsets, cut), (others, place) = block.part(*part), wanted.part(*part)
                kernels.predict_smooth(
                    history_offsets, block.items[cut], block.values[cut].astype(np.float64), others,
                    wanted.items[place],
                    model.factors, rank, model.base, model.trust, row_ridge, bias_ridge, variance, out[place],
                )  # fmt: skip

            parallel.each(users, block.parts(), threads=self._threads)
            return
        table = broadcast.keyed.rows
        for user in range(block.n_users):  # without machine code: each user has a system of their own
            _, place = wanted.part(user, user + 1)
            rows = table[wanted.items[place]].astype(np.float64)
            out[place] = userside.smooth_predictions(terms, block.alone(user, table), ridges, rows)

    def _usable_for(self, broadcast: ModelVersion, history: Ratings, targets: Ratings) -> tuple[ModelVersion, int]:
        """(the model, columns of its factors) to predict ``targets`` with; 0 before there are factors."""
        self._check(history)
        self._check(targets)
        if history.n_users != targets.n_users:
            raise DataError(f"Expected as many users in history as in targets: {history.n_users} and {targets.n_users}")
        usable = userside.usable(self._terms, broadcast)
        return usable, self._terms.rank if usable.version >= FIRST_FACTOR_ROUND else 0

    def _check(self, ratings: Ratings, seeds: npt.NDArray[np.uint64] | None = None) -> None:
        if ratings.n_items != self._terms.items:
            where = f"data set {ratings.name!r}"
            raise DataError(f"Expected {self._terms.items} items in {where}, as in the model (got {ratings.n_items})")
        if seeds is not None:
            require_seeds(seeds, users=ratings.n_users)

    def _blocks(self, ratings: Ratings, rank: int) -> Iterator[_Block]:
        most = min(_BLOCK_USERS, _BLOCK_NUMBERS // (1 + rank))
        for start, end in parallel.ranges(ratings.offsets, self._block):
            for first in range(start, end, most):
                yield self._block_of(ratings, first, min(first + most, end))

    def _block_of(self, ratings: Ratings, start: int, end: int) -> _Block:
        offsets = ratings.offsets[start : end + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        items, values = np.asarray(ratings.items[here]), np.asarray(ratings.values[here])
        low, high = self._terms.low, self._terms.high
        if len(values) and not low <= values.min() <= values.max() <= high:
            values = np.clip(values.astype(np.float64), low, high)
        return _Block(slice(start, end), np.asarray(offsets - offsets[0]), items, values)

    def _add_block(
        self, total: Accumulator, model: _Model, block: _Block, round: int, seeds: npt.NDArray[np.uint64]
    ) -> None:
        """The users' side of a block, then the items' side."""
        terms, kernels = self._terms, model.kernels
        use = np.empty(len(block.items), dtype=np.uint8)
        sent = terms.max_items
        fetched = sent if round == COUNTS_ROUND else terms.slices_per_device
        weight, target = np.zeros(len(use), dtype=np.int16), np.zeros(len(use), dtype=np.int16)
        rows = np.empty((block.n_users, model.rank), dtype=np.int16)
        scale, limit = ROW_UNITS / terms.full_row_bound, codec.row_limit(terms)
        seeds = np.ascontiguousarray(seeds, dtype=np.uint64)

        def users(part: tuple[int, int]) -> None:
            first, last = part
            offsets, cut = block.part(first, last)
            kernels.choose(offsets, block.items[cut], seeds[first:last], round, fetched, sent, use[cut])
            if round == COUNTS_ROUND:
                weight[cut] = use[cut] == kernels.CONTRIBUTED
                return
            local = model.solve(offsets, block.items[cut], block.values[cut], use[cut])
            if model.rank:
                kernels.quantise_rows(local.row, scale, limit, rows[first:last])
            entries = offsets, block.items[cut], block.values[cut], use[cut]
            clips, fixed = (terms.target_clip(round), codec.vector_limit(terms, round)), model.fixed_weight
            out = weight[cut], target[cut]
            kernels.quantise_entries(*entries, local.bias, model.base, model.raw_weight, fixed, *clips, *out)

        parallel.each(users, block.parts(), threads=self._threads)
        total.add_entries(kernels, block.offsets, block.items, weight, target, rows, threads=self._threads)

    def _add_gradients(
        self, total: GradientSum, model: _GradientModel, block: _Block, round: int, seeds: npt.NDArray[np.uint64]
    ) -> None:
        """A block's gradients, in machine code."""
        from odp.algorithms.dpam import gradient_kernels, kernels

        terms = self._terms
        parts = list(parallel.ranges(block.offsets, int(block.offsets[-1]) // self._threads + 1))
        seeds = np.ascontiguousarray(seeds, dtype=np.uint64)

        def users(part: tuple[int, int]) -> tuple[Int64Array, Int64Array]:
            offsets, cut = block.part(*part)
            use = np.empty(cut.stop - cut.start, dtype=np.uint8)
            chosen = seeds[slice(*part)], round, terms.slices_per_device, terms.max_items
            kernels.choose(offsets, block.items[cut], *chosen, use)
            gradients, moments = np.zeros_like(total.columns), np.zeros_like(total.vector)
            entries = offsets, block.items[cut], block.values[cut].astype(np.float64), use
            gradient_kernels.add_gradients(*entries, model.arrays, model.limits, gradients, moments)
            return gradients, moments

        for gradients, moments in parallel.each(users, parts, threads=self._threads):
            total.columns += gradients
            total.vector += moments
        total.count += block.n_users

    def _solved(self, model: _Model, block: _Block, use: npt.NDArray[np.uint8]) -> userside.LocalParameters:
        def solved(part: tuple[int, int]) -> userside.LocalParameters:
            offsets, cut = block.part(*part)
            return model.solve(offsets, block.items[cut], block.values[cut], use[cut])

        parts = parallel.each(solved, block.parts(), threads=self._threads)
        return userside.LocalParameters(
            bias=np.concatenate([part.bias for part in parts]), row=np.concatenate([part.row for part in parts])
        )


@dataclass(frozen=True)
class _Block:
    """Users ``users.start`` to ``users.stop``, their entries in memory; offsets int64 [n + 1] from 0.

    ``values`` are within the task's range, as on a device.
    """

    users: slice
    offsets: Int64Array
    items: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating]

    @property
    def n_users(self) -> int:
        return len(self.offsets) - 1

    def part(self, first: int, last: int) -> tuple[Int64Array, slice]:
        """(offsets from 0, where the entries are) of the users ``first`` to ``last`` of the block."""
        offsets = self.offsets[first : last + 1]
        return offsets - offsets[0], slice(int(offsets[0]), int(offsets[-1]))

    def alone(self, user: int, table: npt.NDArray[np.float32]) -> userside.Batch:
        """The entries of one user of the block, with rows of ``table``."""
        _, cut = self.part(user, user + 1)
        items = self.items[cut].astype(np.int64)[None]
        return userside.Batch(
            items=items,
            values=self.values[cut].astype(np.float64)[None],
            mask=np.ones(items.shape, dtype=np.bool_),
            rows=table[items].astype(np.float64),
        )

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of users for single pieces of work."""
        return list(parallel.ranges(self.offsets + np.arange(len(self.offsets)), _PART_ENTRIES))


@dataclass(frozen=True)
class _Model:
    """A usable model as the kernels want it: float64 per item."""

    kernels: ModuleType
    rank: int
    ridges: Float64Array
    base: Float64Array
    trust: Float64Array
    factors: Float64Array
    raw_weight: Float64Array
    fixed_weight: int

    @classmethod
    def of(cls, terms: Terms, kernels: ModuleType, broadcast: ModelVersion, round: int, rank: int) -> _Model:
        table = broadcast.keyed.rows
        counts = table[:, COUNT_COLUMN].astype(np.float64)
        mask = np.ones((1, 1), dtype=np.bool_)
        fixed = 0 if terms.adaptive else int(userside.quantised_weights(terms, np.ones((1, 1)), mask)[0, 0])
        return cls(
            kernels=kernels,
            rank=rank,
            ridges=_ridges(broadcast),
            base=terms.centre + table[:, BIAS_COLUMN].astype(np.float64),
            trust=table[:, TRUST_COLUMN].astype(np.float64),
            factors=table[:, FACTOR_COLUMNS : FACTOR_COLUMNS + rank].astype(np.float64, order="C"),
            raw_weight=counts**-terms.weight_exponent,
            fixed_weight=fixed,
        )

    def solve(self, offsets: Int64Array, items: Any, values: Any, use: Any) -> userside.LocalParameters:
        n_users = len(offsets) - 1
        local = userside.LocalParameters(bias=np.empty(n_users), row=np.empty((n_users, self.rank)))
        row_ridge, bias_ridge = float(self.ridges[0]), float(self.ridges[1])
        model = self.factors, self.rank, self.base, self.trust, row_ridge, bias_ridge
        self.kernels.solve(offsets, items, values, use, *model, local.bias, local.row)
        return local


@dataclass(frozen=True)
class _GradientModel:
    """A usable model as the kernel of gradients wants it; see there."""

    arrays: tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]
    limits: tuple[float, float, float, float, float]

    @classmethod
    def of(cls, terms: Terms, broadcast: ModelVersion) -> _GradientModel:
        table, unit = broadcast.keyed.rows.astype(np.float64), math.sqrt(terms.residual_variance)
        of_items = uncertainty.read(terms, broadcast.dense)
        covariances = of_items.of(table[:, COUNT_COLUMN])
        trust = of_items.residual / (of_items.residual + covariances[:, 0, 0])
        first, second = np.triu_indices(terms.learned - 1)
        factors = table[:, FACTOR_COLUMNS : FACTOR_COLUMNS + terms.rank] / unit
        return cls(
            (
                np.concatenate((np.ones((len(table), 1)), factors), axis=1),
                terms.centre + table[:, BIAS_COLUMN],
                trust,
                trust[:, None] * covariances[:, 1 + first, 1 + second],
                gradient_userside.ridges(terms, of_items.residual),
            ),
            (
                unit,
                of_items.residual,
                terms.row_clip,
                gradient_codec.clip(terms),
                gradient_codec.curvature_unit(terms) * math.sqrt(terms.learned),
            ),
        )


@dataclass(frozen=True)
class _Entries:
    """Ratings of all users in the order of use: user ``i`` owns ``first[i] : first[i] + size[i]``."""

    items: Int64Array
    values: Float64Array
    first: Int64Array
    size: Int64Array


def _ridges(broadcast: ModelVersion) -> Float64Array:
    return np.asarray(broadcast.dense[GLOBALS_TABLE][0, :RIDGES], dtype=np.float64)


def _in_order_of_use(block: _Block, seeds: npt.NDArray[np.uint64], round: int, limit: int) -> _Entries:
    """Each user's entries sorted by hash, cut to the first ``limit``."""
    size = np.diff(block.offsets)
    user = np.repeat(np.arange(block.n_users), size)
    hashes = round_hashes(seeds[user], round, block.items.astype(np.int64))
    order = np.lexsort((hashes, user))
    return _Entries(
        items=block.items[order].astype(np.int64),
        values=block.values[order].astype(np.float64),
        first=block.offsets[:-1],
        size=np.minimum(size, limit),
    )


def _batches(
    entries: _Entries, broadcast: ModelVersion, cells: int = _CELLS
) -> Iterator[tuple[Int64Array, userside.Batch]]:
    """Users of about the same size, in batches of bounded memory.

    A user's padding depends on the user's own size alone (a power of two, or three quarters of one), so that rounding
    does not depend on who else is in the batch.
    """
    table = broadcast.keyed.rows
    power = 2 ** np.ceil(np.log2(np.maximum(entries.size, 1))).astype(np.int64)
    padded = np.where(entries.size <= power * 3 // 4, power * 3 // 4, power)
    padded = np.maximum(padded, entries.size)
    by_size = np.argsort(padded, kind="stable")
    edges = np.flatnonzero(np.diff(padded[by_size], prepend=-1, append=-1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        width = int(padded[by_size[first]])
        for start in range(first, last, max(cells // max(width, 1), 1)):
            users = by_size[start : min(start + max(cells // max(width, 1), 1), last)]
            yield users, _batch(entries, users, width, table)


def _batch(entries: _Entries, users: Int64Array, width: int, table: npt.NDArray[np.float32]) -> userside.Batch:
    place = np.arange(width)
    mask = place < entries.size[users][:, None]
    index = np.where(mask, entries.first[users][:, None] + place, 0)
    if not len(entries.items):
        items, values = np.zeros_like(index), np.zeros(index.shape)
    else:
        items, values = np.where(mask, entries.items[index], 0), np.where(mask, entries.values[index], 0.0)
    return userside.Batch(items=items, values=values, mask=mask, rows=table[items].astype(np.float64))


def machine_code() -> ModuleType | None:
    """``kernels``, or None where numba is not installed: numpy then does the same, several times slower."""
    try:
        from odp.algorithms.dpam import kernels
    except ImportError:
        return None
    return kernels

"""The declared queries of DPAM: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``DpamQuery.check`` accepts moves the stacked sums of a round by
at most the declared L2 sensitivities, because its items are pairwise distinct (its blocks are orthogonal) and

========  ===============  ==============================  ==========================  =================
release   shape            sum over users of               sensitivity                 noise std
========  ===============  ==============================  ==========================  =================
counts    [m]              1                               sqrt(K)                     count_noise_std
mass      [m]              w                               sqrt(K)                     bias_mass_noise
sums      [m]              w y                             sqrt(K) C                   bias_sum_noise C
gram      [m, p]           w x x', packed upper triangle   sqrt(K) F^2 (Frobenius)     gram_noise F^2
targets   [m, d + 1]       w y x                           sqrt(K) F C                 target_noise F C
========  ===============  ==============================  ==========================  =================

with K items per user, d the rank, p = (d + 1)(d + 2) / 2, sum of w^2 <= K, x = (1, u) the full row, of norm at most
F = sqrt(1 + row_clip^2), and C the vector clip of the round: sum of w^2 y^2 <= K C^2. The enclave itself puts the
constant 1 (rounded to the grid) in front of u. The Frobenius norm counts off-diagonals twice, so their noise in the
packed triangle has std / sqrt(2): the same mechanism as independent noise on all entries, symmetrised. Two releases of
one round reach their bounds together, so both are charged.

Source: Chien et al. 2021 (arXiv 2107.09802), Krichene et al. 2023 (arXiv 2302.07975); exact constants derived here.

Exact sums of contributions: weighted outer products and right-hand sides per item, in integers.

Products of one entry stay below 2^32 (row * row * weight) or 2^30 (row * weight * target) in units of ``codec.py``, so
float64 sums over at most 2^20 users are below 2^53 and exact whatever their order; blocks are added into int64.

Exact sums of DPAM's contributions at addresses that do not depend on them; see ``factorization/query.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dpam import codec
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.gradient_query import GradientQuery
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNTS_ROUND, FIRST_FACTOR_ROUND, Terms
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS
from odp.algorithms.factorization.query import (
    BLOCK,
    ContributionSum,
    FactorizationQuery,
    FactorSums,
    SortedSums,
    count_units,
    packed_release,
    plain_release,
)
from odp.algorithms.factorization.whole_vectors import whole_vector
from odp.algorithms.seam import Query
from odp.numerics import parallel
from odp.numerics.arrays import Int64Array
from odp.v1 import common_pb2

_LEAST_SORTED = 2**16  # entries per piece of work of one thread


class Accumulator(ContributionSum[Contributions]):
    """The running sums of one round, by release name, int64; ``add`` trusts that its input was checked."""

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._terms = terms
        self._round = round
        width = 1 + terms.rank_of(round)
        self._first, self._second = np.triu_indices(width)
        self._squares = np.zeros((terms.items, len(self._first)), dtype=np.int64)
        self._products = np.zeros((terms.items, width), dtype=np.int64)

    def add_decoded(self, contributions: Contributions) -> None:
        for start in range(0, len(contributions.items), BLOCK):
            block = slice(start, start + BLOCK)
            self._add_block(
                contributions.rows[block],
                contributions.items[block],
                contributions.weights[block],
                contributions.targets[block],
            )
        self.count += len(contributions.items)

    def add_entries(
        self,
        kernels: ModuleType,
        offsets: Int64Array,
        items: npt.NDArray[np.int32],
        weights: npt.NDArray[np.int16],
        targets: npt.NDArray[np.int16],
        rows: npt.NDArray[np.int16],
        *,
        threads: int,
    ) -> None:
        """Adds contributions of n <= 2^20 users as ragged entries, in machine code.

        Args:
          kernels: the module of that name; imported by simulators only.
          offsets: int64 [n + 1]; user ``i`` owns the entries ``offsets[i] : offsets[i + 1]``.
          items, weights, targets: of the entries; those of weight 0 are not sent.
          rows: [n, rank].
          threads: the sums do not depend on it.
        """
        if self._round < FIRST_FACTOR_ROUND:
            kernels.add_entries(items, weights, targets, self._squares[:, 0], self._products[:, 0])
        else:
            starts, *grouped = self._by_item(kernels, offsets, items, weights, targets, threads)
            constant = codec.constant_units(self._terms)

            def add(part: tuple[int, int]) -> None:
                kernels.add_items(*part, starts, *grouped, rows, constant, self._squares, self._products)

            most = max(int(starts[-1]) // (8 * threads), 1)
            parallel.each(add, list(parallel.ranges(starts, most)), threads=threads)
        self.count += len(offsets) - 1

    def totals(self) -> dict[str, Int64Array]:
        return {name: total.copy() for name, total in self.final().items()}

    def final(self) -> dict[str, Int64Array]:
        """The sums themselves, by release name: for callers that add nothing more."""
        if self._round == COUNTS_ROUND:
            return {"counts": self._squares[:, 0] * count_units(self._terms)}
        if self._round == BIASES_ROUND:
            return {"mass": self._squares[:, 0], "sums": self._products[:, 0]}
        return {"gram": self._squares, "targets": self._products}

    def _by_item(
        self,
        kernels: ModuleType,
        offsets: Int64Array,
        items: npt.NDArray[np.int32],
        weights: npt.NDArray[np.int16],
        targets: npt.NDArray[np.int16],
        threads: int,
    ) -> tuple[Int64Array, npt.NDArray[np.int32], npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """(starts int64 [m + 1], users, weights, targets) of the entries with a weight, grouped by item."""
        parts = list(parallel.ranges(offsets, max(int(offsets[-1]) // threads + 1, _LEAST_SORTED)))
        counts = np.zeros((len(parts), self._terms.items), dtype=np.int64)

        def cut(part: tuple[int, int]) -> slice:
            return slice(int(offsets[part[0]]), int(offsets[part[1]]))

        def count(number: int) -> None:
            here = cut(parts[number])
            kernels.count_items(items[here], weights[here], counts[number])

        parallel.each(count, range(len(parts)), threads=threads)
        ends = np.cumsum(counts.sum(axis=0))
        starts = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        places = starts[:-1] + np.cumsum(counts, axis=0) - counts
        users = np.empty(starts[-1], dtype=np.int32)
        sorted_weights, sorted_targets = (np.empty(starts[-1], dtype=np.int16) for _ in range(2))

        def group(number: int) -> None:
            (first, last), here = parts[number], cut(parts[number])
            entries = offsets[first : last + 1] - offsets[first], items[here], weights[here], targets[here]
            kernels.group(*entries, first, places[number], users, sorted_weights, sorted_targets)

        parallel.each(group, range(len(parts)), threads=threads)
        return starts, users, sorted_weights, sorted_targets

    def _add_block(self, rows: Int64Array, items: Int64Array, weights: Int64Array, targets: Int64Array) -> None:
        user, place = np.nonzero(weights)
        item, weight, target = items[user, place], weights[user, place], targets[user, place]
        if self._round < FIRST_FACTOR_ROUND:
            size = self._terms.items
            self._squares[:, 0] += np.bincount(item, weights=weight, minlength=size).astype(np.int64)
            self._products[:, 0] += np.bincount(item, weights=weight * target, minlength=size).astype(np.int64)
            return
        from scipy import sparse  # only enclaves and simulations sum

        shape = (self._terms.items, len(rows))
        rows = np.insert(rows, 0, codec.constant_units(self._terms), axis=1)
        outer = (rows[:, self._first] * rows[:, self._second]).astype(np.float64)
        weighting = sparse.csr_array((weight.astype(np.float64), (item, user)), shape=shape)
        self._squares += (weighting @ outer).astype(np.int64)
        weighting = sparse.csr_array(((weight * target).astype(np.float64), (item, user)), shape=shape)
        self._products += (weighting @ rows.astype(np.float64)).astype(np.int64)


class ObliviousAccumulator(ContributionSum[Contributions]):
    """``Accumulator`` without its access pattern: the same totals."""

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._terms = terms
        self._round = round
        width = 1 + terms.rank_of(round)
        self._first, self._second = np.triu_indices(width)
        self._sums: SortedSums | FactorSums
        if round < FIRST_FACTOR_ROUND:
            self._sums = SortedSums(terms.items)
        else:
            self._sums = FactorSums(terms.items, terms.max_items, (len(self._first), width))

    def add_decoded(self, contributions: Contributions) -> None:
        if isinstance(self._sums, SortedSums):
            self._sums.add(contributions.items, contributions.weights, contributions.targets)
        else:
            constant = np.full((len(contributions.rows), 1), codec.constant_units(self._terms), dtype=np.float64)
            rows = np.concatenate([constant, contributions.rows.astype(np.float64)], axis=1)
            outer = rows[:, self._first] * rows[:, self._second]
            self._sums.add(
                contributions.items,
                [contributions.weights, contributions.weights * contributions.targets],
                [outer, rows],
            )
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        if isinstance(self._sums, FactorSums):
            gram, targets = self._sums.totals()
            return {"gram": gram, "targets": targets}
        self._sums.fold()
        if self._round == COUNTS_ROUND:
            return {"counts": self._sums.weights * count_units(self._terms)}
        return {"mass": self._sums.weights.copy(), "sums": self._sums.products.copy()}


class DpamQuery(FactorizationQuery[Contributions]):
    """``odp.algorithms.seam.Query`` of one round: a function of the task definition and the round alone.

    Raises:
      ConfigurationError: the task has no such round.
    """

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(
            terms,
            round,
            releases=declared_releases(terms, round),
            empty_payload=codec.empty_payload(terms, round),
            row_limit=codec.row_limit(terms),
        )
        self._terms = terms
        self._vector_limit = codec.vector_limit(terms, round)

    def new_sum(self, *, oblivious: bool = False) -> Accumulator | ObliviousAccumulator:
        return ObliviousAccumulator(self._terms, self._round) if oblivious else Accumulator(self._terms, self._round)

    def _decode(self, payloads: Sequence[bytes]) -> Contributions:
        return codec.decode(self._terms, self._round, payloads)

    def _within_bounds(self, contributions: Contributions) -> npt.NDArray[np.bool_]:
        within = super()._within_bounds(contributions) & ~(np.abs(contributions.targets) > codec.TARGET_UNITS).any(
            axis=1
        )
        # Whoever is beyond a bound by now counts as zero, so that the products of all others stay below 2^39.
        products = contributions.weights * contributions.targets * within[:, None]
        within &= np.einsum("nk,nk->n", products, products) <= self._vector_limit
        return within


def query_of(terms: Terms, round: int) -> DpamQuery | GradientQuery:
    """The query of a round, by the task's steps."""
    return GradientQuery(terms, round) if terms.gradient else DpamQuery(terms, round)


def declared_query(definition: common_pb2.TaskDefinition, terms: Terms, round: int) -> Query:
    """What a round declares: of contributions that an enclave opens, or of whole vectors under masks."""
    query = query_of(terms, round)
    vector = whole_vector(query, definition)
    return query if vector is None else vector.query


def declared_releases(terms: Terms, round: int) -> tuple[GaussianSum, ...]:
    """The releases of one round; see the table of this module."""
    rank, items = terms.rank_of(round), terms.items
    weight_step = math.sqrt(terms.max_items) / WEIGHT_UNITS
    bound = math.sqrt(terms.max_items)
    if round == COUNTS_ROUND:
        return (plain_release("counts", (items,), 1.0 / count_units(terms), bound, terms.count_noise_std),)
    clip = terms.vector_clip(round)
    target_step = terms.target_clip(round) / codec.TARGET_UNITS
    if round == BIASES_ROUND:
        return (
            plain_release("mass", (items,), weight_step, bound, terms.bias_mass_noise),
            plain_release("sums", (items,), weight_step * target_step, bound * clip, terms.bias_sum_noise * clip),
        )
    row_step, square = terms.full_row_bound / ROW_UNITS, terms.full_row_bound**2
    step, noise_std = weight_step * row_step * row_step, terms.gram_noise * square
    gram = packed_release("gram", (items, terms.pairs), step, bound * square, noise_std)
    reach = terms.full_row_bound * clip
    step = weight_step * row_step * target_step
    return gram, plain_release("targets", (items, 1 + rank), step, bound * reach, terms.target_noise * reach)

"""The enclave's check of contributions to a factorization, and the releases that such rounds declare.

What every training of a factorization enforces is written here once: a user's used items are pairwise distinct items of
the model, the squares of its weights sum to 2^20 at most, and its row keeps its bound. A training adds what else it
sends. The declared sensitivities of ``dpam/query.py`` and ``implicit/query.py`` follow from these bounds.

Running sums of contributions, payload by payload: what the direct and the oblivious sums have in common.

Exact sums of contributions at addresses that do not depend on the contributions: what the enclave runs.

Whoever controls a machine can watch which pages or cache lines its enclave touches. A scatter-add touches row j for
every rating of item j: the trace is the list of everyone's items. Here, the sequence of operations and the addresses of
each depend on public numbers alone: users, places per user K, items m, rank. The sums equal those of ``dpam/query.py``,
bit for bit.

**Rounds of counts and of biases** (``SortedSums``): one word per place (item, weight, target) and one *marker* per item
are sorted by item with a network of fixed size; running totals are read off at the markers, which a compaction network
moves to the front; the difference of two neighbours is an item's sum. Words of unused places sort behind all markers.

**Rounds of factors** (``FactorSums``): the sum over users of w u u' for every item is a matrix product, weights [m, n]
times outer products [n, p], and a dense product reads everything. A user's dense weights come of the K places by a
product too: with item = 64 high + low, weights[high, low] = sum over places of [high = high_k] w_k [low = low_k], of
one-hot rows that an elementwise comparison makes. Per user 4 m K + 2 m (p + d + 1) operations, at the speed of a matrix
product. The other way, to sort records that carry u and to expand them afterwards, has to hide where each item ends, so
that (K + m / n) rows of width p move log(n K + m) times. By count (blocks of 512 users, 50 items each, 10 GB/s, 50
GFLOP/s) that takes ten times as long for 4,000 items and twice as long for 60,000: more than one release can hold.

What still shows: the lengths above, and which contributions were refused. Floating-point products are exact here
(integers below 2^53, see ``dpam/query.py``), and their time does not depend on the values on current processors.

Source: threat of Kato et al. 2023 (Olive, arXiv 2202.07165); networks: ``sorting_network.py``.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.factorization.codec import WEIGHT_UNITS, Contributions
from odp.algorithms.factorization.terms import CommonTerms
from odp.errors import ContributionRefused, Refusal
from odp.numerics import sorting_network
from odp.numerics.arrays import Float64Array, Int64Array

_Contributions = TypeVar("_Contributions", bound=Contributions)

#: Users decoded and summed at once: bounds memory, and is far below the 2^20 up to which float64 sums are exact.
BLOCK = 2**14


class ContributionSum(abc.ABC, Generic[_Contributions]):
    """``odp.algorithms.seam.Sum``: the running sums of one round; ``add`` trusts that its input was checked.

    Args:
      decode: contributions of payloads.
    """

    def __init__(self, decode: Callable[[Sequence[bytes]], _Contributions]) -> None:
        self.count = 0
        self._decode = decode

    def add(self, payloads: Sequence[bytes]) -> None:
        """Adds checked payloads."""
        for start in range(0, len(payloads), BLOCK):
            self.add_decoded(self._decode(payloads[start : start + BLOCK]))

    @abc.abstractmethod
    def add_decoded(self, contributions: _Contributions) -> None:
        """Adds contributions in integer units."""

    @abc.abstractmethod
    def totals(self) -> dict[str, Int64Array]:
        """Copies of the sums so far, int64, by release name."""


# A word: item, marker (1 bit), weight (16), target (16), both in two's complement; items have at most 24 bits.
_ITEM, _MARKER, _WEIGHT, _FIELD, _SIGN = 33, 32, 16, 2**16 - 1, 2**15
_FEWEST_WORDS = 2**15

_RADIX_BITS = 6
_RADIX = 1 << _RADIX_BITS
_LOW = np.arange(_RADIX, dtype=np.int32)
_TILE = 4096  # items per dense product; a multiple of the radix
_MOST_PLACES = 2**11  # places whose one-hot rows are held at once
_MOST_WEIGHTS = 2**20  # dense weights that are held at once: each product with them reads and writes all sums
_MOST_USERS = 2**19  # until then, float64 sums of entries below 2^32 are below 2^51
_ALL_PAIRS = 256
_PAIRS_AT_ONCE = 2**18


def distinct(items: Int64Array, used: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """bool [n]: whether the used ones of each user's items, [n, K] from 0 to 2^32 - 1, are pairwise distinct.

    Which are compared depends on n and K alone.
    """
    users, count = items.shape
    if count > _ALL_PAIRS:
        return np.array([_distinct_sorted(*user) for user in zip(items, used, strict=True)], dtype=np.bool_)
    # Unused places become distinct numbers beyond every item: then only a place and itself are the same.
    words = items * used + (2**33 + np.arange(count, dtype=np.int64)) * ~used
    pairs = np.empty(users, dtype=np.int64)
    block = max(1, _PAIRS_AT_ONCE // count**2)
    for start in range(0, users, block):
        some = words[start : start + block]
        same = some[:, :, None] == some[:, None, :]
        pairs[start : start + block] = same.reshape(len(some), -1).sum(axis=1, dtype=np.uint32)
    answers: npt.NDArray[np.bool_] = pairs == count
    return answers


def _distinct_sorted(items: Int64Array, used: npt.NDArray[np.bool_]) -> bool:
    count = len(items)
    places = np.arange(count, dtype=np.int64)
    words = np.full(sorting_network.padded_length(count), 2**63, dtype=np.uint64)
    words[:count] = items * used + (2**33 + places) * ~used
    words[count:] += np.arange(len(words) - count, dtype=np.uint64)
    sorting_network.sort(words)
    return int(np.count_nonzero(words[1:] == words[:-1])) == 0


class SortedSums:
    """Sums of weights, and of weights times targets, per item, by sorting.

    Args:
      items: m, at most 2^24.
      product: False sums the targets themselves.
    """

    def __init__(self, items: int, *, product: bool = True) -> None:
        self._product = product
        self.weights = np.zeros(items, dtype=np.int64)
        self.products = np.zeros(items, dtype=np.int64)
        self._items = items
        # As many places as markers, so that a sort of either is never mostly of the other.
        self._words = np.empty(sorting_network.padded_length(max(2 * items, _FEWEST_WORDS)), dtype=np.uint64)
        self._capacity = len(self._words) - items
        self._held = 0

    def add(
        self, items: Int64Array, weights: Int64Array, targets: Int64Array, *, used: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Adds places of any shape: items >= 0, |weights| and |targets| < 2^15.

        Places that are not ``used`` count for nothing; None where those have weight 0.
        """
        some = (weights > 0 if used is None else used).astype(np.int64)
        keys = items * some + self._items * (1 - some)
        words = (keys << _ITEM) + ((weights & _FIELD) << _WEIGHT) + (targets & _FIELD)
        words = words.reshape(-1).astype(np.uint64)
        start = 0
        while start < len(words):
            taken = min(len(words) - start, self._capacity - self._held)
            self._words[self._held : self._held + taken] = words[start : start + taken]
            self._held += taken
            start += taken
            if self._held == self._capacity:
                self.fold()

    def fold(self) -> None:
        """Brings what was added into ``weights`` and ``products``."""
        if not self._held:
            return
        words = self._words
        words[self._held : self._capacity] = self._items << _ITEM
        markers = np.arange(self._items, dtype=np.uint64) << np.uint64(_ITEM)
        words[self._capacity :] = markers + np.uint64(1 << _MARKER)
        sorting_network.sort(words)
        numbers = words.astype(np.int64)
        weights, targets = (((part & _FIELD) ^ _SIGN) - _SIGN for part in (numbers >> _WEIGHT, numbers))
        totals = np.stack(
            [np.add.accumulate(weights), np.add.accumulate(weights * targets if self._product else targets)]
        )
        sorting_network.compact((numbers >> _MARKER) & 1, totals)
        for target, total in ((self.weights, totals[0]), (self.products, totals[1])):
            target += total[: self._items]
            target[1:] -= total[: self._items - 1]
        self._held = 0


class FactorSums:
    """For each of several weightings v and matrices R: sums over users and places of v R[user], per item.

    Args:
      items: m.
      places: K.
      widths: of each matrix.
    """

    def __init__(self, items: int, places: int, widths: Sequence[int]) -> None:
        self._items = items
        # Items last: a matrix product with the long side last takes two thirds of the time.
        self._totals = [np.zeros((width, items), dtype=np.int64) for width in widths]
        self._running = [np.zeros((width, items), dtype=np.float64) for width in widths]
        self._users = 0
        # Buffers of one block, kept: memory that is new each time costs more than the arithmetic.
        self._few = max(1, _MOST_PLACES // places)
        rows, kinds = -(-min(items, _TILE) // _RADIX), len(widths)
        self._block = max(self._few, _MOST_WEIGHTS // (rows * _RADIX))
        self._high = np.empty((self._few, places, rows), dtype=np.float32)
        self._low = np.empty((self._few, places, kinds, _RADIX), dtype=np.float32)
        self._weights = np.empty((self._few, rows, kinds, _RADIX), dtype=np.float32)
        self._dense = np.empty((kinds, self._block, rows, _RADIX), dtype=np.float64)
        self._product = [np.empty((width, rows * _RADIX), dtype=np.float64) for width in widths]

    def add(self, items: Int64Array, weightings: Sequence[Int64Array], matrices: Sequence[Float64Array]) -> None:
        """Adds n users.

        Args:
          items: int64 [n, K]; those of a user that have a weight are distinct.
          weightings: per matrix, int64 [n, K], below 2^24; 0 for unused places.
          matrices: float64 [n, width], integers; entry times weight is below 2^32.
        """
        for start in range(0, len(items), self._block):
            part = slice(start, start + self._block)
            self._add_block(
                items[part], [weighting[part] for weighting in weightings], [matrix[part] for matrix in matrices]
            )
        self._users += len(items)
        if self._users >= _MOST_USERS:
            self._flush()

    def totals(self) -> list[Int64Array]:
        """The sums so far, int64 [m, width] each; copies."""
        self._flush()
        return [np.array(total.T, order="C") for total in self._totals]

    def _flush(self) -> None:
        for total, running in zip(self._totals, self._running, strict=True):
            total += running.astype(np.int64)
            running[...] = 0.0
        self._users = 0

    def _add_block(self, items: Int64Array, weightings: Sequence[Int64Array], matrices: Sequence[Float64Array]) -> None:
        users = len(items)
        for first in range(0, self._items, _TILE):
            size = min(_TILE, self._items - first)
            dense = self._dense[:, :users, : -(-size // _RADIX)]
            for start in range(0, users, self._few):
                some = slice(start, start + self._few)
                self._spread(
                    items[some], [weighting[some] for weighting in weightings], first // _RADIX, dense[:, some]
                )
            for running, product, spread, matrix in zip(self._running, self._product, dense, matrices, strict=True):
                totals = product[:, : spread[0].size]
                np.matmul(matrix.T, spread.reshape(users, -1), out=totals)
                running[:, first : first + size] += totals[:, :size]

    def _spread(self, items: Int64Array, weightings: Sequence[Int64Array], first: int, dense: Float64Array) -> None:
        """Writes weightings, [n, K] each, into dense [weightings, n, rows, radix], which begins with row ``first``."""
        kinds, users, rows, _ = dense.shape
        # Shifts: the time of a division depends on what is divided.
        high, low = (items >> _RADIX_BITS).astype(np.int32), (items & (_RADIX - 1)).astype(np.int32)
        left, right, weights = self._high[:users, :, :rows], self._low[:users], self._weights[:users, :rows]
        left[...] = high[:, :, None] == np.arange(first, first + rows, dtype=np.int32)
        right[...] = (low[:, :, None] == _LOW)[:, :, None]
        # Weights below 2^24 are exact in float32, and every sum over places has one term that is not zero.
        right *= np.stack(weightings, axis=2).astype(np.float32)[..., None]
        np.matmul(left.swapaxes(1, 2), right.reshape(users, -1, kinds * _RADIX), out=weights.reshape(users, rows, -1))
        dense[...] = weights.transpose(2, 0, 1, 3)


# Rule P16: the grid is at most a 64th of the noise. Only counts need care; the other grids are far finer.
_COUNT_RATIO = 64.0


class FactorizationQuery(abc.ABC, Generic[_Contributions]):
    """``odp.algorithms.seam.Query`` of one round: a function of the task's terms and the round alone.

    Args:
      terms: the task.
      round: which round.
      releases: what the round declares.
      empty_payload: what a device without data sends, as long as any.
      row_limit: largest sum of squares of a row in integer units.
    """

    # Products of three numbers of one user stay within 2^32, so sums of so many stay within 2^61.
    maximum = 2**29

    def __init__(
        self,
        terms: CommonTerms,
        round: int,
        *,
        releases: tuple[GaussianSum, ...],
        empty_payload: bytes,
        row_limit: int,
    ) -> None:
        self.releases = releases
        self.empty_payload = empty_payload
        self.payload_bytes = len(empty_payload)
        self._items = terms.items
        self._round = round
        self._row_limit = row_limit

    def check(self, payload: bytes) -> None:
        """Accepts a payload that keeps the declared sensitivities, in integer arithmetic.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for everything else.
        """
        (refusal,) = self.refusals([payload])
        if refusal is not None:
            raise ContributionRefused(refusal)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each.

        Which memory they make it touch depends on their number and lengths, and on the task, alone.
        """
        whole = [len(payload) == self.payload_bytes for payload in payloads]
        answers = [None if right else Refusal.MALFORMED for right in whole]
        if any(whole):
            accepted = iter(self._within_bounds(self._decode(list(itertools.compress(payloads, whole)))).tolist())
            for number in itertools.compress(range(len(payloads)), whole):
                answers[number] = None if next(accepted) else Refusal.OUT_OF_BOUNDS
        return answers

    @abc.abstractmethod
    def new_sum(self, *, oblivious: bool = False) -> ContributionSum[_Contributions]:
        """An empty exact sum; the oblivious one has the same totals."""

    @abc.abstractmethod
    def _decode(self, payloads: Sequence[bytes]) -> _Contributions:
        """Contributions of payloads of the declared length."""

    def _within_bounds(self, contributions: _Contributions) -> npt.NDArray[np.bool_]:
        """bool [n]."""
        rows, items, weights = contributions.rows, contributions.items, contributions.weights
        used = weights > 0
        within: npt.NDArray[np.bool_] = ~(used & (items >= self._items)).any(axis=1) & distinct(items, used)
        within &= np.einsum("nk,nk->n", weights, weights) <= WEIGHT_UNITS**2
        within &= np.einsum("nk,nk->n", rows, rows) <= self._row_limit
        return within


def count_units(terms: CommonTerms) -> int:
    """Grid steps per counted item: the smallest power of two that puts the noise at 64 steps or more."""
    if not 0 < terms.count_noise_std < _COUNT_RATIO:
        return 1
    return int(2 ** math.ceil(math.log2(_COUNT_RATIO / terms.count_noise_std)))


def plain_release(name: str, shape: tuple[int, ...], step: float, sensitivity: float, noise_std: float) -> GaussianSum:
    """A release whose entries all count once, so that all have the same noise."""
    return GaussianSum(name, shape, step, sensitivity, noise_std)


def packed_release(name: str, shape: tuple[int, ...], step: float, sensitivity: float, noise_std: float) -> GaussianSum:
    """A release of packed upper triangles of symmetric matrices; its norms are Frobenius norms."""
    return GaussianSum(name, shape, step, sensitivity, noise_std, packed=True)

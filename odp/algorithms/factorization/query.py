"""The enclave's check of contributions to a factorization, and the releases that such rounds declare.

What every training of a factorization enforces is written here once: a user's used items are pairwise distinct items of
the model, the squares of its weights sum to 2^20 at most, and its row keeps its bound. A training adds what else it
sends. The declared sensitivities of ``dpam/query.py`` and ``implicit/query.py`` follow from these bounds.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.factorization.codec import WEIGHT_UNITS, Contributions
from odp.algorithms.factorization.oblivious import distinct
from odp.algorithms.factorization.sums import ContributionSum
from odp.algorithms.factorization.terms import COUNTS_ROUND, CommonTerms
from odp.errors import ContributionRefused, Refusal

# Rule P16: the grid is at most a 64th of the noise. Only counts need care; the other grids are far finer.
_COUNT_RATIO = 64.0

_Contributions = TypeVar("_Contributions", bound=Contributions)


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
        if self._round != COUNTS_ROUND:
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

"""Running sums of contributions, payload by payload: what the direct and the oblivious sums have in common."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from odp.algorithms.factorization.codec import Contributions
from odp.numerics.arrays import Int64Array

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

"""``PrivateClient`` for many users at once: the sums of their reports, without the reports.

In a simulation the randomizers repeat: a block's numbers follow from the seeds of its users and from the round.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from odp.algorithms.federated.population import FederatedPopulation
from odp.algorithms.federated.terms import Terms
from odp.algorithms.private_fl.report import Reports
from odp.numerics.arrays import Float32Array
from odp.privacy.mechanisms.random_source import RandomSource


class PrivatePopulation(FederatedPopulation):
    """``odp.algorithms.seam.ProgramPopulation`` of one task."""

    def __init__(self, terms: Terms, reports: Reports) -> None:
        super().__init__(terms)
        self._reports = reports

    def _with(self, terms: Terms) -> PrivatePopulation:
        return PrivatePopulation(terms, self._reports)

    def _sent(self, moved: Float32Array, *, seeds: npt.NDArray[np.uint64], round: int) -> Float32Array:
        return self._reports.randomized(moved, source=RandomSource(_Repeated(seeds, round)))


class _Repeated:
    """``NoiseSource`` of simulated users: it protects nobody."""

    def __init__(self, seeds: npt.NDArray[np.uint64], round: int) -> None:
        self._bytes = hashlib.shake_256(b"odp simulated reports " + round.to_bytes(8, "little") + seeds.tobytes())
        self._used = 0

    def random_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        start, self._used = self._used, self._used + count
        return self._bytes.digest(self._used)[start:]

"""Private federated learning on one device: what federated training would send goes through the device's randomizers.

A device without examples, or whose training fails, sends a report, too: that of an update of zeros. So nobody who reads
reports learns who had data, and every report costs the same.
"""

from __future__ import annotations

import numpy as np

from odp.algorithms.federated.client import FederatedClient
from odp.algorithms.federated.terms import Terms
from odp.algorithms.private_fl.report import Reports
from odp.numerics.arrays import Float32Array
from odp.privacy.mechanisms.random_source import RandomSource


class PrivateClient(FederatedClient):
    """``odp.algorithms.seam.ProgramClient`` of one task.

    Args:
      terms: of the task.
      reports: its randomizers.
      source: their randomness; a test gives one that repeats.
    """

    def __init__(self, terms: Terms, reports: Reports, source: RandomSource | None = None) -> None:
        super().__init__(terms)
        self._reports, self._source = reports, source

    def empty(self, round: int) -> bytes:
        """The report of an update of zeros."""
        terms = self._terms
        moved = np.zeros(terms.model.size, dtype=np.float32)
        return self._payload(moved, clip=terms.clip, trained=False, round=round, seed=0)

    def _with(self, terms: Terms) -> PrivateClient:
        return PrivateClient(terms, self._reports, self._source)

    def _sent(self, moved: Float32Array) -> Float32Array:
        # A source of its own for each report: clients are shared by threads, and a source is not.
        source = self._source if self._source is not None else RandomSource()
        report: Float32Array = self._reports.randomized(moved[None], source=source)[0]
        return report

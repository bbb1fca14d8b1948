"""A Draw and Discard task as the platform sees it: the device's half, and the instances of the server.

Each member imports the module of its own party alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.computing_time import reading_cost
from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.local_seam import Judge, LocalReporter
from odp.algorithms.seam import LocalData, LocalTable
from odp.errors import ConfigurationError
from odp.models.computing_cost import VECTOR_BYTES, ComputingCost, Product
from odp.privacy.local_charge import LocalCharge
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.spherical_cap import LARGEST_DIMENSION

if TYPE_CHECKING:
    from odp.algorithms.draw_and_discard.model import LocalModel

_WEIGHT = np.dtype("<f8")
# Costs, as of ``odp.models.computing_cost``: of a number of an encoded row, and its memory; of a weight in the product
# with a row; and of a weight's noise.
_INPUT_SECONDS, _INPUT_BYTES, _PRODUCT_SECONDS, _NOISE_SECONDS = 1e-8, 32, 2e-9, 1e-6


class TaskAlgorithm(LocalReporter):
    """``odp.algorithms.local_seam.LocalReporter`` whose rows are the instances of a model.

    Raises, by every member:
      ConfigurationError, PrivacyError: as ``Terms.of``.
    """

    @functools.cached_property
    def _terms(self) -> Terms:
        return Terms.of(self.definition)

    def terms(self) -> Terms:
        """The definition, read and checked."""
        return self._terms

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return (self._terms.features.local_table(most_rows=self._terms.most_examples),)

    @property
    def computing_cost(self) -> ComputingCost:
        terms = self._terms
        row = _INPUT_SECONDS * terms.inputs + _PRODUCT_SECONDS * terms.weights
        return reading_cost(self.local_data, most_examples=terms.most_examples, row_seconds=row).plus(
            Product(_NOISE_SECONDS * terms.weights),
            memory=(Product(_INPUT_BYTES * terms.inputs, "most_examples"), Product(VECTOR_BYTES * terms.weights)),
        )

    @property
    def local_charge(self) -> LocalCharge:
        terms = self._terms
        return LocalCharge(
            parts=(("model", terms.model_epsilon),), most=terms.most_reports,
            dimension=terms.weights if 2 <= terms.weights <= LARGEST_DIMENSION else 0,
        )  # fmt: skip

    @property
    def report_bytes(self) -> int:
        return self._terms.report_bytes

    @property
    def row_bytes(self) -> int:
        return self._terms.report_bytes

    @property
    def seconds_between(self) -> int:
        return self._terms.seconds_between

    @property
    def most_updates(self) -> int:
        return self._terms.most_updates

    def report(self, drawn_row: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        from odp.algorithms.draw_and_discard.client import report

        return report(self._terms, drawn_row, data[self.local_data[0].name], source=source)

    def first_rows(self) -> list[bytes]:
        from odp.algorithms.draw_and_discard.server import first_instances

        return [self._terms.encode(instance) for instance in first_instances(self._terms)]

    def judge(self, rows: Sequence[bytes]) -> Judge:
        from odp.algorithms.draw_and_discard.server import InstanceJudge

        return InstanceJudge(self._terms, rows)

    def summary(self, rows: Sequence[bytes], reports: bytes) -> bytes:
        """The weights to predict with, and how much the instances differ: float64 [weights + 1]."""
        from odp.algorithms.draw_and_discard.server import deviation, model

        return np.append(model(self._terms, rows), deviation(self._terms, rows)).astype(_WEIGHT).tobytes()

    def answers_of_summary(self, summary: bytes, *, reports: int) -> LocalModel:
        from odp.algorithms.draw_and_discard.model import LocalModel

        if len(summary) != _WEIGHT.itemsize * (self._terms.weights + 1):
            raise ConfigurationError(f"Expected {self._terms.weights} weights, got {len(summary)} bytes")
        weights_and_deviation = np.frombuffer(summary, dtype=_WEIGHT).astype(np.float64)
        if not np.isfinite(weights_and_deviation).all():
            raise ConfigurationError("Expected finite weights")
        return LocalModel(self._terms, weights_and_deviation[:-1], reports, float(weights_and_deviation[-1]))

"""The measurements of one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from odp.algorithms.dense.grid import NUMBER, quantise_rows
from odp.algorithms.dense.records import ROUND, check_round
from odp.algorithms.federated.reading import ROWS
from odp.algorithms.model_evaluation.measures import vectors_of_users
from odp.algorithms.model_evaluation.terms import Terms
from odp.algorithms.seam import LocalData
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Int64Array, UInt64Array
from odp.protocol.wire.model import Slices

if TYPE_CHECKING:
    from odp.models.litert.trainer import ProgramTrainer
    from odp.models.trained import TrainedModel


class EvaluationClient:
    """``odp.algorithms.seam.ProgramClient`` of one task; it keeps no local parameters."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def run_by(self, trainer: ProgramTrainer | None) -> EvaluationClient:
        """This client, whose model has its program run by ``trainer``.

        Raises:
          ConfigurationError: the model has a program that cannot be run here.
        """
        model = self._terms.model.on_device(trainer, self._terms.device_work)
        return EvaluationClient(dataclasses.replace(self._terms, model=model))

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where parameters are missing, of another shape, or not finite."""
        self._terms.vectors(dense)

    def empty(self, round: int) -> bytes:
        """Zeros."""
        check_round(round)
        return bytes(self._terms.grid.payload_bytes)

    def keys(self, data: LocalData, *, round: int, seed: int) -> Int64Array:
        """None: int64 [0]."""
        return np.zeros(0, dtype=np.int64)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device without examples to test on contributes zeros.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        check_round(round)
        terms = self._terms
        features, targets = terms.read(data[ROWS])
        testable = terms.testable(targets)
        features, targets = features[testable], targets[testable]
        seeds, counts = np.array([seed], dtype=np.uint64), np.array([len(targets)], dtype=np.int64)
        values = vectors_of_users(
            terms, terms.vectors(slices.dense), lambda places: (features[places], targets[places]),
            terms.model.tested, self._train, counts=counts, seeds=seeds,
        )  # fmt: skip
        steps = quantise_rows(terms.grid, values, round=round, seeds=seeds)
        return steps[0].astype(NUMBER).tobytes(), b""

    def _train(
        self,
        start: Float32Array,
        examples: tuple[Float32Array, Float32Array],
        counts: Int64Array,
        seeds: UInt64Array,
        /,
    ) -> Float32Array:
        """``measures.Train`` of one user."""
        if self._terms.personal is None:
            raise ConfigurationError("Expected a task with personal models")
        training = self._terms.personal.training
        model = cast("TrainedModel", self._terms.model)  # ``Terms.of`` lets personal models be of no other
        return model.difference(start, *examples, training, seed=int(seeds[0]), round=ROUND)[None]

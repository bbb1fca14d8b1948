"""Federated training on one device: training from the published parameters, and the clipped difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.federated.predicting import PersonsExamples, is_personal, predicted, ranked_feature, scored
from odp.algorithms.federated.reading import ROWS, usable_rows
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.algorithms.seam import LocalData, ProgramClient
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import Slices

if TYPE_CHECKING:
    from odp.algorithms.predicting import ProgramPredictor
    from odp.models.examples import ExamplesTerms
    from odp.models.litert.trainer import ProgramTrainer


class FederatedClient(ProgramClient):
    """``odp.algorithms.seam.ProgramClient`` of one task; it keeps no local parameters."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def run_by(self, trainer: ProgramTrainer | None) -> FederatedClient:
        """This client, whose model has its program run by ``trainer``.

        Raises:
          ConfigurationError: the model has a program that cannot be run here.
        """
        terms = self._terms
        return self._with(dataclasses.replace(terms, model=terms.model.on_device(trainer, terms.local)))

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where parameters or clip norm are missing, of another shape, or out of range."""
        self._start(dense)
        self._terms.clip_of(dense)

    def empty(self, round: int) -> bytes:
        """Zeros."""
        upload = self._terms.upload(round)
        return upload.payload(np.zeros(upload.size))

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device without examples contributes zeros, and so does one whose training diverges.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        terms, rows = self._terms, data[ROWS].last(self._terms.local.most_rows)
        start = self._start(slices.dense)
        features, targets = usable_rows(terms.model, terms.examples, rows)
        moved = terms.model.difference(start, features, targets, terms.local, seed=seed, round=round)
        clip = terms.clip_of(slices.dense)
        return self._payload(moved, clip=clip, trained=len(targets) > 0, round=round, seed=seed), b""

    @property
    def examples(self) -> ExamplesTerms:
        """What the model reads."""
        return self._terms.examples

    @property
    def is_personal(self) -> bool:
        """Whether a prediction depends on the person's own examples."""
        return is_personal(self._terms.model)

    @property
    def ranked_feature(self) -> str | None:
        """As ``PredictingClient``."""
        return ranked_feature(self._terms.model, self._terms.examples)

    def scored(
        self, dense: Mapping[str, Float32Array], features: Float32Array, predictor: ProgramPredictor
    ) -> Float64Array:
        """As ``PredictingClient``."""
        return scored(self._terms.model, self._start(dense), features, predictor)

    def own_items(self, data: LocalData) -> Int64Array:
        """As ``PredictingClient``."""
        features, _ = usable_rows(self._terms.model, self._terms.examples, data[ROWS])
        return np.unique(features[:, -1].astype(np.int64))

    def require_predictor(self, trainer: ProgramTrainer | None) -> None:
        """As ``PredictingClient``."""
        self.run_by(trainer)

    def predicted(
        self, dense: Mapping[str, Float32Array], features: Float32Array, data: LocalData | None,
        predictor: ProgramPredictor | None,
    ) -> Float64Array:  # fmt: skip
        """As ``PredictingClient``."""
        terms, person = self._terms, None
        if data is not None:
            person = PersonsExamples(*usable_rows(terms.model, terms.examples, data[ROWS].last(terms.local.most_rows)))
        return predicted(
            terms.model, self._start(dense), features, predictor=predictor, training=terms.local, person=person
        )

    def _with(self, terms: Terms) -> FederatedClient:
        """This client with other terms."""
        return FederatedClient(terms)

    def _sent(self, moved: Float32Array) -> Float32Array:
        """What the device sends of its difference, float32 [size], before it is clipped and rounded."""
        return moved

    def _payload(self, moved: Float32Array, *, clip: float, trained: bool, round: int, seed: int) -> bytes:
        terms, upload = self._terms, self._terms.upload(round)
        values = terms.contributions(self._sent(moved)[None], clip, trained=np.array([trained]))
        return upload.payload(upload.numbers(values, seeds=np.array([seed], dtype=np.uint64))[0])

    def _start(self, dense: Mapping[str, Float32Array]) -> Float32Array:
        if PARAMETERS not in dense:
            raise ConfigurationError(f"Expected the model to have a table {PARAMETERS!r}")
        return self._terms.parameters(dense[PARAMETERS])

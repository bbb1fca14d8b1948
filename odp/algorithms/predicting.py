"""Models that predict of examples in named columns: the capability of their clients, and what an answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from odp.algorithms.seam import Client, LocalData
from odp.errors import DataError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array

if TYPE_CHECKING:
    from odp.models.examples import ExamplesTerms
    from odp.models.litert.program import Array, Program
    from odp.models.litert.trainer import LocalSteps, ProgramTrainer


@dataclass(frozen=True)
class Predictions:
    """What a model says of n examples.

    Attributes:
      values: float64 [n]: the predicted number, or of a model of classes the probability of the likeliest one.
      probabilities: float64 [n, classes], of a model of classes; None of a model of numbers.
      classes: the names of all classes in their order; their numbers as text where the task names none; () of a model
        of numbers.
      version: of the model.
      offline: why the model may be outdated; None if it is the newest.
    """

    values: Float64Array = field(repr=False)
    probabilities: Float64Array | None = field(repr=False)
    classes: tuple[str, ...]
    version: int
    offline: str | None = None

    @property
    def labels(self) -> list[str] | list[float]:
        """The likeliest class of each example, or its predicted number."""
        if self.probabilities is None:
            numbers: list[float] = self.values.tolist()
            return numbers
        return [self.classes[place] for place in self.probabilities.argmax(axis=1).tolist()]

    def rows(self) -> list[dict[str, Any]]:
        """Of each example ``prediction``, and of a model of classes ``probability`` and all ``probabilities``."""
        if self.probabilities is None:
            return [{"prediction": value} for value in self.labels]
        return [
            {"prediction": label, "probability": value, "probabilities": dict(zip(self.classes, each, strict=True))}
            for label, value, each in zip(self.labels, self.values.tolist(), self.probabilities.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class RankedItems:
    """The best items of n examples whose item is left open, by the scores of a model that ranks items.

    Attributes:
      items: int64 [n, k], best first.
      scores: float64 [n, k]; they only rank.
      names: of all items of the model; None where they are numbers.
      version, offline: as of ``Predictions``.
    """

    items: Int64Array = field(repr=False)
    scores: Float64Array = field(repr=False)
    names: tuple[str, ...] | None
    version: int
    offline: str | None = None

    @classmethod
    def best(
        cls, scores: Float64Array, *, count: int, without: Int64Array, names: tuple[str, ...] | None, version: int,
        offline: str | None,
    ) -> Self:  # fmt: skip
        """The ``count`` best of scores [n, items], but for the items ``without``; of equal ones the lower numbers."""
        scores = scores.copy()
        scores[:, without] = -np.inf
        count = min(count, scores.shape[1] - len(without))
        items = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        return cls(items, np.take_along_axis(scores, items, axis=1), names, version, offline)

    def rows(self) -> list[list[dict[str, Any]]]:
        """Of each example, ``item`` and ``score``, best first."""
        return [
            [
                {"item": item if self.names is None else self.names[item], "score": score}
                for item, score in zip(items, scores, strict=True)
            ]
            for items, scores in zip(self.items.tolist(), self.scores.tolist(), strict=True)
        ]


class ProgramPredictor(Protocol):
    """Runs a network's program for predictions; for one thread."""

    def predicted(
        self,
        program: Program,
        vector: Float32Array,
        features: Sequence[Array],
        local: tuple[Sequence[Array], Array, LocalSteps] | None,
        *,
        items: int = 0,
    ) -> Float32Array:
        """What the program says of each example, float32 [n, ..], as it declares; or with ``items`` [n, items].

        Args:
          program: what runs.
          vector: all parameters, float32 [size].
          features: one array [n, ..] per input.
          local: features, targets and steps that find the local parameters first, of a program that has some.
          items: number of items to score for each example; the last input is then ignored.

        Raises:
          OdpError: it failed, or what came back is something else.
        """


@runtime_checkable
class PredictingClient(Client, Protocol):
    """A client whose model predicts a number or a class of an example."""

    @property
    def examples(self) -> ExamplesTerms:
        """What the model reads."""

    @property
    def is_personal(self) -> bool:
        """Whether a prediction depends on the person's own examples, too."""

    @property
    def ranked_feature(self) -> str | None:
        """The feature that is an item, of a model that ranks all items; None of another one."""

    def scored(
        self, dense: Mapping[str, Float32Array], features: Float32Array, predictor: ProgramPredictor
    ) -> Float64Array:
        """``odp.algorithms.federated.predicting.scored``, float64 [n, items]."""

    def own_items(self, data: LocalData) -> Int64Array:
        """The items in the person's own rows, of a model that ranks items; int64."""

    def require_predictor(self, trainer: ProgramTrainer | None) -> None:
        """Returns if the model can be asked where ``trainer`` runs its program, if it has one.

        Raises:
          ConfigurationError: it cannot, whatever the examples are.
        """

    def predicted(
        self, dense: Mapping[str, Float32Array], features: Float32Array, data: LocalData | None,
        predictor: ProgramPredictor | None,
    ) -> Float64Array:  # fmt: skip
        """``odp.algorithms.federated.predicting.predicted`` of usable examples float32 [n, width].

        Args:
          dense: the tables of the model.
          features: of the examples.
          data: the person's own rows; None where they are not to be read.
          predictor: runs the program of a network.
        """


def rows_of(terms: ExamplesTerms, columns: Mapping[str, npt.NDArray[Any]]) -> Float32Array:
    """The numbers of examples in named columns [n, ..], float32 [n, width]; columns that the task lacks are ignored.

    Raises:
      DataError: a feature is missing or has another shape, or an example of it cannot be used.
    """
    if missing := [name for name in terms.features if name not in columns]:
        raise DataError(
            f"Expected columns {', '.join(map(repr, terms.features))}: {', '.join(map(repr, missing))} is missing"
        )
    examples = len(columns[next(iter(terms.features))])
    matrix, begin = terms.matrix(columns, examples=examples), 0
    for name, feature in terms.features.items():
        unusable = ~np.isfinite(matrix[:, begin : begin + feature.size]).all(axis=1)
        column = columns[name]
        if len(column) != examples or (column.dtype.kind != "U" and column.shape[1:] != tuple(feature.shape)):
            raise DataError(f"Expected {name!r} to be of shape {[examples, *feature.shape]} (got {list(column.shape)})")
        if unusable.any() and np.isfinite(np.delete(matrix, np.s_[begin : begin + feature.size], axis=1)).any():
            raise DataError(f"example {int(unusable.argmax())} cannot be used: its {name!r} {feature.unusable}")
        begin += feature.size
    if not np.isfinite(matrix).all():
        raise DataError(f"example {int((~np.isfinite(matrix)).any(axis=1).argmax())} cannot be used")
    return matrix

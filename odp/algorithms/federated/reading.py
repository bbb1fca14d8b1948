"""Labelled examples as a model reads them: those of a device, and a table that many users share.

Numbers are clamped and scaled as the task declares. What a model cannot use is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from odp.algorithms.seam import LocalRows
from odp.errors import DataError
from odp.models.examples import ExamplesTerms
from odp.models.trained import TestedModel
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples


def usable_rows(model: TestedModel, examples: ExamplesTerms, rows: LocalRows) -> tuple[Float32Array, Float32Array]:
    """Features float32 [n, width] and targets float32 [n] of one device's usable rows."""
    features = examples.matrix(rows.features, examples=len(rows.values))
    targets = examples.labels(rows.values, classes=model.classes_range is not None)
    usable = model.usable(features, targets)
    return features[usable], targets[usable]


@dataclass(frozen=True, eq=False)
class UsableTable:
    """A table of examples as the model reads it, made once for all rounds; ``keep`` bool [n] are the usable rows."""

    source: UsersExamples
    features: npt.NDArray[Any]
    targets: Float32Array
    scale: float
    keep: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, model: TestedModel, examples: ExamplesTerms, users: UsersExamples) -> Self:
        """Raises DataError: examples have another number of features."""
        width = examples.width
        if users.features.shape[1] != width:
            raise DataError(
                f"Expected examples of {width} numbers, as the task declares (got {users.features.shape[1]})"
            )
        features, scale = examples.clamped(users.features, scale=users.scale)
        targets = examples.labels(users.targets, classes=model.classes_range is not None)
        return cls(users, features, targets, scale, model.usable(features, targets))

    def is_of(self, users: UsersExamples) -> bool:
        """Whether ``users`` share the table that this one was made of."""
        own = self.source
        return users.features is own.features and users.targets is own.targets and users.scale == own.scale

    def usable(self, users: UsersExamples, *, most_rows: int | None = None) -> UsersExamples:
        """Their usable examples; of the last ``most_rows`` of each user, as a device reads them, where it is given."""
        keep = self.keep[users.rows]
        if most_rows is not None:
            ends = np.repeat(users.offsets[1:], np.diff(users.offsets))
            keep = keep & (ends - np.arange(len(ends)) <= most_rows)
        kept = np.concatenate(([0], np.cumsum(keep)))
        return replace(
            users, features=self.features, targets=self.targets, rows=users.rows[keep], offsets=kept[users.offsets],
            scale=self.scale,
        )  # fmt: skip

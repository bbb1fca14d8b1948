"""Which rows of a developer's own table Draw and Discard cannot use, and why. A device leaves them out silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from odp.algorithms.draw_and_discard.terms import Terms
from odp.errors import DataError
from odp.models.class_names import TakenLabels, is_missing
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array, Int64Array


@dataclass(frozen=True, eq=False)
class UsableRows:
    """The rows of a table as a model reads them.

    Attributes:
      numbers: float64 [n, inputs]; zeros of rows that cannot be used.
      targets: float64 [n].
      reason: uint8 [n], why a row is left out: a place in ``reasons``, 0 for a usable row.
    """

    numbers: Float64Array
    targets: Float64Array
    reason: npt.NDArray[np.uint8]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms, columns: Mapping[str, npt.NDArray[Any]], rows: Int64Array | None = None) -> Self:
        """The table of these columns, or the people's ``rows`` of it.

        Raises:
          DataError: a column is missing, or a label is none of the model's classes.
        """
        labels, features = labels_of(terms, columns), terms.features
        read = features.numbers(columns)
        numbers, _ = features.encode(read, len(labels))
        targets, taken = terms.targets(features.responses(labels))
        missing = is_missing(labels)
        other = ~taken & ~missing
        owned = slice(None) if rows is None else rows
        if terms.classes_range is not None and other[owned].any():
            accepted = TakenLabels(
                features.label, terms.classes_range, (0.0, 0.0), features.class_names, of="odp.DrawAndDiscard"
            )
            raise accepted.refusal(labels[owned], other=other[owned])
        reasons = [
            "", f"without a label {features.label!r}",
            f"whose label {features.label!r} is not from {features.label_low:g} to {features.label_high:g}",
        ]  # fmt: skip
        reason = np.zeros(len(labels), dtype=np.uint8)
        for name, unusable in features.unusable(read, len(labels)):
            reason[unusable & (reason == 0)] = len(reasons)
            reasons.append(f"whose {name!r} cannot be used")
        reason[other], reason[missing] = 2, 1
        return cls(numbers, targets, reason, tuple(reasons))

    def left_out(self, rows: Int64Array | None = None) -> LeftOut:
        """How many of ``rows``, or of all, are left out, and why."""
        reason = self.reason if rows is None else self.reason[rows]
        counts = np.bincount(reason, minlength=len(self.reasons)).tolist()
        return LeftOut(
            len(reason), {why: count for why, count in zip(self.reasons[1:], counts[1:], strict=True) if count}
        )


def labels_of(terms: Terms, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The responses of rows [n]. Raises DataError where a column is missing, or they are text of no class."""
    wanted = (*terms.features.columns, terms.features.label)
    for name in wanted:
        if name not in columns:
            raise DataError(f"Expected a column {name!r}, as the task reads it (got {', '.join(columns)})")
    labels = columns[terms.features.label]
    if labels.ndim != 1 or (labels.dtype.kind == "U" and terms.classes_range is None):
        raise DataError(f"Expected one number per row in the column {terms.features.label!r} of labels")
    return labels

"""Labelled examples as a model reads them: those of a device, and a table that many users share.

Numbers are clamped and scaled as the task declares. What a model cannot use is left out:

===========================  =====================================  =============================================
of an example                a device                               a table of a developer, in a simulation
===========================  =====================================  =============================================
a feature is unusable        leaves it out: nobody learns how many  leaves it out, and counts it by its feature
the label is missing         leaves it out                          leaves it out, and counts it
the label is another one     leaves it out                          refuses the table, and names the labels
===========================  =====================================  =============================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from odp.algorithms.seam import LocalRows, LocalTable
from odp.errors import DataError
from odp.models.class_names import TakenLabels, is_missing
from odp.models.examples import ExamplesTerms
from odp.models.left_out import LeftOut
from odp.models.trained import TestedModel
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.datasets.ratings import Ratings

# Why a row is left out; features follow, in their order, and then what remains.
_USABLE, _NO_LABEL, _OTHER_LABEL, _FEATURES = 0, 1, 2, 3
_NO_ITEM = "whose item the model does not have"


#: The one table that devices read, by the name that clients get it under.
ROWS = "examples"


def examples_table(examples: ExamplesTerms, *, most_rows: int) -> LocalTable:
    """The table of a task that reads labelled examples."""
    return LocalTable(
        ROWS, examples.table, frozenset({examples.table}), None, most_rows, features=examples.features,
        label=examples.label, classes=examples.classes,
    )  # fmt: skip


def usable_rows(model: TestedModel, examples: ExamplesTerms, rows: LocalRows) -> tuple[Float32Array, Float32Array]:
    """Features float32 [n, width] and targets float32 [n] of one device's usable rows."""
    features = examples.cleaned(rows.features, examples=len(rows.values))
    targets = examples.labels(rows.values, classes=model.classes_range is not None)
    usable = model.usable(features, targets)
    return features[usable], targets[usable]


@dataclass(frozen=True, eq=False)
class UsableTable:
    """A table of examples as the model reads it, made once for all rounds.

    Attributes:
      reason: uint8 [n], why each row is left out: a place in ``reasons``; 0 for a usable row.
      reasons: what to say of such rows.
      taken: which labels the model takes, for messages.
    """

    source: UsersExamples
    features: npt.NDArray[Any]
    targets: Float32Array
    scale: float
    reason: npt.NDArray[np.uint8]
    reasons: tuple[str, ...]
    taken: TakenLabels

    @classmethod
    def of(cls, model: TestedModel, examples: ExamplesTerms, users: UsersExamples) -> Self:
        """Raises DataError: examples have another number of features."""
        width = examples.width
        if users.features.shape[1] != width:
            raise DataError(
                f"Expected examples of {width} numbers, as the task declares (got {users.features.shape[1]})"
            )
        features, scale = examples.clamped(users.features, scale=users.scale)
        targets = examples.targets(users.targets, classes=model.classes_range is not None)
        reason = np.zeros(len(targets), dtype=np.uint8)
        left = np.flatnonzero(~model.usable(features, targets))
        if len(left):
            reason[left] = _first_reasons(model, examples, features[left], targets[left], users.targets[left])
        named = tuple(f"whose {name!r} {feature.unusable}" for name, feature in examples.features.items())
        taken = TakenLabels(examples.label, model.classes_range, examples.label_range, examples.classes)
        return cls(
            users, features, targets, scale, reason, ("", f"without a label {taken.label!r}", "", *named, _NO_ITEM),
            taken,
        )  # fmt: skip

    @classmethod
    def of_ratings(cls, model: TestedModel, ratings: Ratings) -> Self:
        """Ratings as examples of a model of rated items: the item is the feature, the value is the label."""
        from odp.datasets.examples import UsersExamples

        examples = UsersExamples(
            ratings.items[:, None].astype(np.float32), np.asarray(ratings.values, dtype=np.float32),
            np.arange(ratings.n_ratings, dtype=np.int64), ratings.offsets,
        )  # fmt: skip
        reason = np.where(model.usable(examples.features, examples.targets), _USABLE, _FEATURES).astype(np.uint8)
        taken = TakenLabels("value", None, (0.0, 0.0), ())
        return cls(examples, examples.features, examples.targets, 1.0, reason, ("", "", "", _NO_ITEM), taken)

    def only(self, rows: npt.NDArray[np.bool_], *, otherwise: str) -> Self:
        """The same table without its usable rows that are none of ``rows``, bool [n]; ``otherwise`` says why."""
        reason = np.where((self.reason == _USABLE) & ~rows, len(self.reasons), self.reason).astype(np.uint8)
        return replace(self, reason=reason, reasons=(*self.reasons, otherwise))

    def is_of(self, users: UsersExamples) -> bool:
        """Whether ``users`` share the table that this one was made of."""
        source = self.source
        return users.features is source.features and users.targets is source.targets and users.scale == source.scale

    def usable(self, users: UsersExamples, *, most_rows: int | None = None) -> UsersExamples:
        """Their usable examples; of the last ``most_rows`` of each user, as a device reads them, where it is given.

        Raises:
          DataError: a label is none that the model takes.
        """
        keep = self._reasons_of(users) == _USABLE
        if most_rows is not None:
            keep &= _is_newest(users, most_rows)
        usable_before = np.concatenate(([0], np.cumsum(keep)))
        return replace(
            users, features=self.features, targets=self.targets, rows=users.rows[keep],
            offsets=usable_before[users.offsets],
            scale=self.scale,
        )  # fmt: skip

    def left_out(self, users: UsersExamples, *, what: str, most_rows: int | None = None) -> LeftOut:
        """How many of the users' examples ``usable`` leaves out, and why; ``what`` names the examples.

        Raises:
          DataError: a label is none that the model takes, or none of the examples can be used.
        """
        reason, counts = self._reasons_of(users), dict[str, int]()
        if most_rows is not None:
            newest = _is_newest(users, most_rows)
            counts[f"beyond the newest {most_rows:,} of a user, which a device reads"] = int((~newest).sum())
            reason = reason[newest]
        rows = np.bincount(reason, minlength=len(self.reasons)).tolist()
        counts |= dict(zip(self.reasons[1:], rows[1:], strict=True))
        left_out = LeftOut(len(users.rows), {why: count for why, count in counts.items() if count})
        if not left_out.used:
            raise DataError(f"none of the {left_out.total:,} {what} can be used; {left_out}")
        return left_out

    def _reasons_of(self, users: UsersExamples) -> npt.NDArray[np.uint8]:
        """Of each of the users' rows. Raises DataError for labels that the model does not take."""
        reason = self.reason[users.rows]
        if (reason == _OTHER_LABEL).any():
            raise self.taken.refusal(users.targets[users.rows], other=reason == _OTHER_LABEL)
        return reason


def _first_reasons(
    model: TestedModel,
    examples: ExamplesTerms,
    features: npt.NDArray[Any],
    targets: Float32Array,
    labels: npt.NDArray[Any],
) -> npt.NDArray[np.uint8]:
    """The first reason that applies to each of some unusable rows, uint8 [n]."""
    reasons = np.full(len(targets), _FEATURES + len(examples.features), dtype=np.uint8)
    end = features.shape[1]
    for place, feature in reversed(list(enumerate(examples.features.values()))):
        reasons[~np.isfinite(features[:, end - feature.size : end]).all(axis=1)] = _FEATURES + place
        end -= feature.size
    missing = is_missing(labels)
    reasons[~(model.takes(targets) | missing)] = _OTHER_LABEL
    reasons[missing] = _NO_LABEL
    return reasons


def _is_newest(users: UsersExamples, most_rows: int) -> npt.NDArray[np.bool_]:
    """Of each of the users' rows, whether it is among the last ``most_rows`` of its user."""
    ends = np.repeat(users.offsets[1:], np.diff(users.offsets))
    return np.asarray(ends - np.arange(len(ends)) <= most_rows)

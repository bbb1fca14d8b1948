"""The classes of a label by name, and the columns that hold them.

A column of labels holds names as ``odp.models.named_numbers`` lists them: text, or numbers whose text they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError
from odp.identity import normal
from odp.models.features import checked_texts
from odp.models.named_numbers import number_text

#: Different labels that a message counts one by one.
_SHOWN = 8


def checked_classes(classes: Sequence[str | float]) -> tuple[str, ...]:
    """The names of classes in their order, a number by its text; () for none.

    Raises:
      ConfigurationError: there is one class alone, or names are malformed or not distinct.
    """
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise ConfigurationError(
            f"Expected classes={classes!r} to be the names of the classes, such as ('no', 'yes') "
            f"(got {type(classes).__name__})"
        )
    if not classes:
        return ()
    numbers = (int, float, np.number)
    names = [number_text(label) if isinstance(label, numbers) else label for label in classes]
    return checked_texts([normal(name) if isinstance(name, str) else name for name in names], "classes", least=2)


def check_count(classes: Sequence[str], *, classes_range: tuple[float, float] | None) -> None:
    """Raises ConfigurationError where a model has another number of classes than those named, or numbers."""
    if classes and classes_range is None:
        raise ConfigurationError(
            f"Expected no classes={tuple(classes)!r}: the model predicts a number; an odp.Glm('logistic', ..) or "
            "odp.Glm('multinomial', ..) predicts classes"
        )
    if classes and classes_range is not None and len(classes) != int(classes_range[1]) + 1:
        raise ConfigurationError(
            f"Expected classes={tuple(classes)!r} to name the {int(classes_range[1]) + 1} classes of the model "
            f"(got {len(classes)})"
        )


def is_missing(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Of labels [n], which are missing, bool [n]."""
    if column.dtype.kind == "U":
        return np.asarray(column == "")
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=np.bool_)


def label_counts_in_words(column: npt.NDArray[Any]) -> str:
    """The different labels of some examples and how many have each, the most frequent first."""
    missing = is_missing(column)
    labels, counts = np.unique(column[~missing], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = [f"{_label_text(labels[place])} ({counts[place]:,})" for place in order[:_SHOWN]]
    others = int(counts.sum() - counts[order[:_SHOWN]].sum())
    shown += [f"{len(order) - _SHOWN:,} more ({others:,})"] * bool(others)
    return ", ".join([*shown, *[f"missing ({missing.sum():,})"] * bool(missing.any())])


def proposed_classes(column: npt.NDArray[Any], *, count: int) -> tuple[str, ...]:
    """The names that ``classes=`` could have for a column with ``count`` different labels; () for another number."""
    labels = np.unique(column[~is_missing(column)])
    if len(labels) != count:
        return ()
    return tuple(str(label) if labels.dtype.kind == "U" else number_text(label) for label in labels)


@dataclass(frozen=True)
class TakenLabels:
    """The labels that a model takes.

    Attributes:
      label: name of their column.
      classes_range: (first, last) of those that are classes; None where they are numbers.
      label_range: (least, largest) of those that are numbers.
      classes: names of the classes, or none.
      of: what has the argument ``classes=`` that names them.
    """

    label: str
    classes_range: tuple[float, float] | None
    label_range: tuple[float, float]
    classes: tuple[str, ...] = ()
    of: str = "odp.Examples"

    def refusal(self, labels: npt.NDArray[Any], *, other: npt.NDArray[np.bool_]) -> DataError:
        """What is wrong with ``labels`` [k], of which some are ``other`` ones than the model takes."""
        problem = (
            f"{other.sum():,} of {len(labels):,} examples have a label {self.label!r} that the model does not take; "
            f"the labels are {label_counts_in_words(labels)}, the model takes "
        )
        if self.classes:
            return DataError(f"{problem}{', '.join(map(repr, self.classes))}, as classes= of {self.of} names them")
        if self.classes_range is None:
            low, high = self.label_range
            return DataError(f"{problem}numbers from {low:g} to {high:g}; counts are at least 0")
        count = int(self.classes_range[1]) + 1
        taken = "0 and 1" if count == 2 else f"0 to {count - 1}"
        if names := proposed_classes(labels, count=count):
            return DataError(f"{problem}{taken}; classes={names!r} of {self.of} maps them in this order")
        return DataError(
            f"{problem}{taken}; correct them, or give a model of as many classes, and classes= of {self.of} names them"
        )


def _label_text(label: Any) -> str:
    return repr(str(label)) if isinstance(label, str) else number_text(label)

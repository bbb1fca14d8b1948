"""The classes of a label by name, and the columns that hold them.

A column of labels holds names of classes as text, or numbers whose text they are:

=====================  ========================================================================
in a column            the name of its class
=====================  ========================================================================
text                   as it is written, in Unicode normal form C: "007" is not "7", and "1.0" is not "1"
12, 12.0               "12": whole numbers of every type have the same text
0.5                    "0.5"
True                   "1"
"", NaN                none: the label is missing
=====================  ========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError
from odp.identity import normal
from odp.models.features import checked_texts
from odp.numerics.arrays import Float32Array

#: Different labels that a message counts one by one.
_SHOWN = 8


def number_text(number: Any) -> str:
    """A number as text: whole ones of every type alike, and others as short as their type allows."""
    return str(int(number)) if math.isfinite(number) and number == int(number) else str(number)


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
    names = [number_text(one) if isinstance(one, numbers) else one for one in classes]
    return checked_texts([normal(one) if isinstance(one, str) else one for one in names], "classes", least=2)


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


def class_numbers(column: npt.NDArray[Any], classes: Sequence[str]) -> Float32Array:
    """The number of each label's class, from 0, float32 [n]; not a number where it is none of ``classes``."""
    found = _places_of(column, classes)
    others = np.flatnonzero(np.isnan(found))
    if len(others) and column.dtype.kind == "U":
        # A name of another form is rare, and no array operation makes normal forms.
        found[others] = _places_of(np.array([normal(text) for text in column[others].tolist()]), classes)
    return found


def _places_of(column: npt.NDArray[Any], classes: Sequence[str]) -> Float32Array:
    values = column.astype(np.uint8) if column.dtype.kind == "b" else column
    names = [(name, number) for number, name in enumerate(classes)]
    pairs = names if values.dtype.kind == "U" else [(_typed(name, values.dtype), number) for name, number in names]
    known = sorted((value, number) for value, number in pairs if value is not None)
    found = np.full(len(values), np.nan, dtype=np.float32)
    if known:
        ordered = np.array([value for value, _ in known], dtype=None if values.dtype.kind == "U" else values.dtype)
        places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
        numbers = np.array([number for _, number in known], dtype=np.float32)
        same = ordered[places] == values
        found[same] = numbers[places[same]]
    return found


def told_labels(column: npt.NDArray[Any]) -> str:
    """The different labels of some examples and how many have each, the most frequent first."""
    missing = is_missing(column)
    labels, counts = np.unique(column[~missing], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = [f"{_told(labels[one])} ({counts[one]:,})" for one in order[:_SHOWN]]
    others = int(counts.sum() - counts[order[:_SHOWN]].sum())
    shown += [f"{len(order) - _SHOWN:,} more ({others:,})"] * bool(others)
    return ", ".join([*shown, *[f"missing ({missing.sum():,})"] * bool(missing.any())])


def proposed_classes(column: npt.NDArray[Any], *, count: int) -> tuple[str, ...]:
    """The names that ``classes=`` could have for a column with ``count`` different labels; () for another number."""
    labels = np.unique(column[~is_missing(column)])
    if len(labels) != count:
        return ()
    return tuple(str(one) if labels.dtype.kind == "U" else number_text(one) for one in labels)


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
        found = (
            f"{other.sum():,} of {len(labels):,} examples have a label {self.label!r} that the model does not take; "
            f"the labels are {told_labels(labels)}, the model takes "
        )
        if self.classes:
            return DataError(f"{found}{', '.join(map(repr, self.classes))}, as classes= of {self.of} names them")
        if self.classes_range is None:
            low, high = self.label_range
            return DataError(f"{found}numbers from {low:g} to {high:g}; counts are at least 0")
        count = int(self.classes_range[1]) + 1
        taken = "0 and 1" if count == 2 else f"0 to {count - 1}"
        names = proposed_classes(labels, count=count)
        if names:
            return DataError(f"{found}{taken}; classes={names!r} of {self.of} maps them in this order")
        return DataError(
            f"{found}{taken}; correct them, or give a model of as many classes, and classes= of {self.of} names them"
        )


def _told(label: Any) -> str:
    return repr(str(label)) if isinstance(label, str) else number_text(label)


def _typed(name: str, kind: np.dtype[Any]) -> Any:
    """The number of a type whose text is ``name``; None where no number of the type has it."""
    try:
        number = kind.type(int(name) if kind.kind in "iu" else name)
    except (ValueError, OverflowError):
        return None
    return number if number_text(number) == name else None

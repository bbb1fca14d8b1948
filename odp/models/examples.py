"""Labelled examples of one device: what a developer declares of them, and the arrays that a model is trained on.

Ranges are declared before any data are read, so no statistic of the data is needed to scale them:

=============================  ====================================================
of an example                  what happens
=============================  ====================================================
a number beyond its range      is clamped to it; infinities are
a number that is not a number  the example is left out
an unknown category            the example is left out
a class that the model lacks   the example is left out; a developer's own table is refused
a missing feature              all examples of that read are left out
=============================  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.models.class_names import check_count, checked_classes
from odp.models.features import MOST_NUMBERS, Category, Encoding, Feature, Tensor, Text, check_range, feature_of
from odp.models.named_numbers import places_of
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.v1 import common_pb2, federated_pb2

MOST_FEATURES = 64
#: The table of examples that a device was given; those of a service are ``examples.SERVICE``.
TABLE = "examples"
TABLE_PREFIX = f"{TABLE}."


@_validate.strict_keywords
@dataclass(frozen=True)
class Examples:
    """Labelled examples in a table of the devices' store.

    Attributes:
      features: what the model reads, by name; in this order.
      label: column of what the model predicts.
      label_low, label_high: range of a real label or a count, which is clamped to it; None for a label that is a
        class, whose range the model says.
      classes: names of the classes of a label, in the model's order: ("no", "yes"). The column then holds them as text,
        or as numbers whose text they are (``odp.models.class_names``). Without names, it holds the numbers of classes:
        0 and 1 of a logistic model, 0 to k - 1 of k classes.
      table: "examples", which a device was given when it was set up, or "examples.SERVICE", those that the app of a
        service added (a person may keep tasks from them by that name).

    Raises:
      ConfigurationError: a name or a number is out of range.
    """

    kind: ClassVar[str] = "examples"

    features: Mapping[str, Feature]
    label: str = "label"
    label_low: float | None = None
    label_high: float | None = None
    table: str = TABLE
    classes: Sequence[str | float] = ()

    def __post_init__(self) -> None:
        _validate.identifier(table=self.table, label=self.label)
        service_of(self.table)
        if not isinstance(self.features, Mapping):
            raise ConfigurationError("Expected features to be tensors, categories or texts by name")
        for name, feature in self.features.items():
            _validate.identifier(feature=name)
            if not isinstance(feature, (Tensor, Category, Text)):
                raise ConfigurationError(
                    f"Expected feature {name!r} to be an odp.Tensor, odp.Category or odp.Text, got "
                    f"{type(feature).__name__}"
                )
        if self.label in self.features:
            raise ConfigurationError(f"Expected label={self.label!r} to be no feature")
        object.__setattr__(self, "features", dict(self.features))
        if (self.label_low is None) != (self.label_high is None):
            raise ConfigurationError("Expected label_low and label_high together")
        if self.label_low is not None and self.label_high is not None:
            check_range(label_low=self.label_low, label_high=self.label_high)
        check_features(self.features)
        object.__setattr__(self, "classes", checked_classes(self.classes))
        if self.classes and self.label_range is not None:
            raise ConfigurationError("Expected classes, or label_low and label_high of a label that is a number")

    def check(self, ratings: Ratings) -> None:
        """Raises DataError: ratings have no features."""
        raise DataError(f"the data set {ratings.name!r} has ratings; a task of odp.Examples needs labelled examples")

    @property
    def label_range(self) -> tuple[float, float] | None:
        """(low, high) of a label that is a number; None of one that is a class."""
        return None if self.label_low is None or self.label_high is None else (self.label_low, self.label_high)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition; a training writes the range of classes."""
        from odp.v1 import federated_pb2

        low, high = self.label_range or (0.0, 0.0)
        data = federated_pb2.ExamplesData(
            table=self.table, label=self.label, label_low=low, label_high=high, classes=map(str, self.classes)
        )  # fmt: skip
        for name, feature in self.features.items():
            feature.write(data.features.add(name=name))
        definition.examples.CopyFrom(data)


@dataclass(frozen=True)
class ExamplesTerms:
    """An ``odp.v1.ExamplesData``, checked."""

    table: str
    features: Mapping[str, Feature]
    label: str
    label_range: tuple[float, float]
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: federated_pb2.ExamplesData) -> ExamplesTerms:
        """Raises ConfigurationError where a field is missing or out of range."""
        _validate.identifier(table=data.table, label=data.label)
        service_of(data.table)
        _validate.integer(low=1, high=MOST_FEATURES, features=len(data.features))
        features = {feature.name: feature_of(feature) for feature in data.features}
        if len(features) != len(data.features) or data.label in features:
            raise ConfigurationError("Expected distinct names of features and label")
        for name in features:
            _validate.identifier(feature=name)
        check_features(features)
        check_range(label_low=data.label_low, label_high=data.label_high)
        classes = checked_classes(tuple(data.classes))
        return cls(data.table, features, data.label, (data.label_low, data.label_high), classes)

    def check_label(self, classes_range: tuple[float, float] | None) -> None:
        """Raises ConfigurationError where the label is not that of a model whose targets are these classes, if any."""
        if self.label_range != (classes_range or self.label_range):
            raise ConfigurationError(f"Expected the label's range to be that of the classes, {classes_range}")
        check_count(self.classes, classes_range=classes_range)

    @property
    def width(self) -> int:
        """Numbers of one example, all features together."""
        return sum(feature.size for feature in self.features.values())

    @property
    def encoding(self) -> Encoding | None:
        """How a generalised linear model reads these numbers; None where it reads them as they are."""
        return Encoding.of(self.features.values())

    def matrix(self, columns: Mapping[str, npt.NDArray[Any]], *, examples: int) -> Float32Array:
        """The numbers of all features, float32 [examples, width]: clamped and scaled, or of categories and tokens.

        What is no number, no category or no token is not a number. All rows are where a feature is missing or has
        another shape than [examples, *shape].
        """
        read = {
            name: feature.numbers(columns[name]) if name in columns and len(columns[name]) == examples else None
            for name, feature in self.features.items()
        }
        return self.cleaned(read, examples=examples)

    def cleaned(self, read: Mapping[str, npt.NDArray[Any] | None], *, examples: int) -> Float32Array:
        """``matrix`` of columns that were read already, as a device reads them: of names and text, their numbers."""
        matrix = np.full((examples, self.width), np.nan, dtype=np.float32)
        start = 0
        for name, feature in self.features.items():
            numbers = read.get(name)
            if numbers is None or numbers.dtype.kind == "U" or numbers.shape != (examples, *feature.shape):
                matrix[:] = np.nan
                return matrix
            part = matrix[:, start : start + feature.size]
            part[:] = numbers.reshape(examples, feature.size)
            feature.clean(part)
            start += feature.size
        return matrix

    def clamped(self, features: npt.NDArray[Any], *, scale: float) -> tuple[npt.NDArray[Any], float]:
        """``matrix`` of rows [n, width] of all features' numbers, as (numbers, what to multiply them by).

        One tensor whose range has all of the numbers keeps them as they are, bytes as bytes; others are copied.
        """
        (first, *others) = self.features.values()
        if not others and features.size and isinstance(first, Tensor):
            least, most = float(features.min()) * scale, float(features.max()) * scale
            if first.low <= least <= most <= first.high:
                return features, scale * first.scale
        clamped = features.astype(np.float32)
        if scale != 1.0:
            clamped *= np.float32(scale)
        start = 0
        for feature in self.features.values():
            feature.clean(clamped[:, start : start + feature.size])
            start += feature.size
        return clamped, 1.0

    def targets(self, column: npt.NDArray[Any], *, classes: bool) -> Float32Array:
        """Labels [n] as their column holds them, as the model reads them, float32 [n]; no number for what is none."""
        if self.classes:
            return places_of(column, self.classes)
        if column.dtype.kind == "U":
            return np.full(len(column), np.nan, dtype=np.float32)
        return self.labels(column, classes=classes)

    def labels(self, values: npt.NDArray[Any], *, classes: bool) -> Float32Array:
        """Labels as the model reads them, float32 [n]; numbers are clamped to their range, ``classes`` stay."""
        labels = values.astype(np.float32)
        return labels if classes else np.clip(labels, np.float32(self.label_range[0]), np.float32(self.label_range[1]))


def service_of(table: str) -> str:
    """The service whose examples a table has; "" for those that a device was given.

    Raises:
      ConfigurationError: it is no table of examples.
    """
    if table == TABLE:
        return ""
    if (service := table.removeprefix(TABLE_PREFIX)) in (table, ""):
        raise ConfigurationError(f"Expected table={table!r} to be {TABLE!r} or '{TABLE_PREFIX}SERVICE'")
    _validate.identifier(service=service)
    return service


def check_features(features: Mapping[str, Feature]) -> None:
    """Raises ConfigurationError unless there are some, and not too many numbers in all."""
    _validate.integer(low=1, high=MOST_FEATURES, features=len(features))
    _validate.integer(low=1, high=MOST_NUMBERS, numbers=sum(feature.size for feature in features.values()))

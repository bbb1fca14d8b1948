"""How rows of a device's table become numbers within [0, 1]: declared by the developer, the same for every device.

=======================================  ============================  =============================================
feature                                  a row's column holds          numbers of the row
=======================================  ============================  =============================================
``Boolean()``                            0 or 1, false or true         1: the value
``Number(low, high)``                    ``size`` numbers              ``size``: low becomes 0, high becomes 1
``Category(n)``                          a number or a name            n - 1: a 1 for its category; the last one, the
                                                                       reference, has zeros
a cross of two features                  -                             the product of every two of their numbers
=======================================  ============================  =============================================

A row is left out where a column is missing, is not a number, is no declared category, or is outside of its range; with
``Number(clip=True)``, numbers outside are clipped to the range instead. What is declared is public, so nothing here
depends on the data of others. Device and simulation run this code.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section III.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.seam import LocalTable
from odp.errors import ConfigurationError
from odp.models.class_names import checked_classes
from odp.models.examples import TABLE, service_of
from odp.models.features import Category, Feature, Tensor, check_range
from odp.models.named_numbers import places_of
from odp.numerics.arrays import BoolArray, Float64Array
from odp.v1 import draw_and_discard_pb2

MOST_FEATURES, MOST_INPUTS = 64, 2**16


@dataclass(frozen=True)
class Boolean:
    """A column of 0 and 1, or of false and true."""

    kind: ClassVar[str] = "boolean"

    @property
    def size(self) -> int:
        """Numbers per row."""
        return 1

    @property
    def read(self) -> Feature:
        """How a device reads the column."""
        return Tensor(shape=(), low=0.0, high=1.0)

    def encode(self, column: npt.NDArray[Any]) -> tuple[Float64Array, BoolArray]:
        """(numbers [n, 1], rows that can be used) of numbers [n]."""
        values = np.asarray(column, dtype=np.float64)[:, None]
        return values, ((values == 0) | (values == 1))[:, 0]

    def write(self, message: draw_and_discard_pb2.LocalFeature) -> None:
        """Writes itself into a definition's feature."""
        message.boolean.SetInParent()


@_validate.strict_keywords
@dataclass(frozen=True)
class Number:
    """A column of numbers.

    Attributes:
      low, high: the range that becomes 0 to 1.
      clip: clip numbers outside of the range to it; otherwise their rows are left out.
      size: numbers per row, for a column of vectors.

    Raises:
      ConfigurationError: a number is out of range.
    """

    kind: ClassVar[str] = "number"

    low: float = 0.0
    high: float = 1.0
    clip: bool = False
    size: int = 1

    def __post_init__(self) -> None:
        check_range(low=self.low, high=self.high)
        _validate.integer(low=1, high=MOST_INPUTS, size=self.size)

    @property
    def read(self) -> Feature:
        """How a device reads the column; it does not clamp then."""
        return Tensor(shape=() if self.size == 1 else (self.size,), low=self.low, high=self.high)

    def encode(self, column: npt.NDArray[Any]) -> tuple[Float64Array, BoolArray]:
        """(numbers [n, size], rows that can be used) of numbers [n] or [n, size]."""
        values = np.asarray(column, dtype=np.float64).reshape(len(column), self.size)
        usable = np.isfinite(values) if self.clip else (values >= self.low) & (values <= self.high)
        clipped = np.clip(np.nan_to_num(values), self.low, self.high)
        return (clipped - self.low) / (self.high - self.low), np.logical_and.reduce(usable, axis=1)

    def write(self, message: draw_and_discard_pb2.LocalFeature) -> None:
        """Writes itself into a definition's feature."""
        message.number.low, message.number.high = self.low, self.high
        message.number.clip, message.number.size = self.clip, self.size


@dataclass(frozen=True)
class Levels:
    """A category with its last one as the reference."""

    category: Category

    @property
    def size(self) -> int:
        """Numbers per row."""
        return self.category.count - 1

    @property
    def read(self) -> Feature:
        """How a device reads the column."""
        return self.category

    def encode(self, column: npt.NDArray[Any]) -> tuple[Float64Array, BoolArray]:
        """(numbers [n, size], rows that can be used) of the numbers [n] of categories."""
        values = np.asarray(column, dtype=np.float64)
        usable = (values >= 0) & (values < self.category.count) & (values == np.floor(values))
        return (values[:, None] == np.arange(self.size)).astype(np.float64), usable

    def write(self, message: draw_and_discard_pb2.LocalFeature) -> None:
        """Writes itself into a definition's feature."""
        message.levels.count = self.category.count
        if not isinstance(self.category.classes, int):
            message.levels.names.extend(self.category.classes)


Column = Boolean | Number | Levels


@dataclass(frozen=True)
class LocalFeatures:
    """What a model reads of a row, and what it predicts.

    Attributes:
      columns: by name, in this order; an ``odp.Category`` too.
      crosses: pairs of names.
      label: column of the response.
      label_low, label_high: range of a response that is a number, which becomes 0 to 1; unused for classes.
      table: "examples", or "examples.SERVICE".
      intercept: whether the first number of each row is 1.
      classes: names of the classes of a response, in their order, as of ``odp.Examples``; none where it holds numbers.

    Raises:
      ConfigurationError: a name or a number is out of range, or a cross names no feature or one twice.
    """

    columns: Mapping[str, Column | Category]
    label: str = "label"
    crosses: Sequence[tuple[str, str]] = ()
    label_low: float = 0.0
    label_high: float = 1.0
    table: str = TABLE
    intercept: bool = True
    classes: Sequence[str | float] = ()
    _sizes: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _validate.identifier(table=self.table, label=self.label)
        service_of(self.table)
        if not isinstance(self.columns, Mapping):
            raise ConfigurationError("Expected features to be odp.Boolean, odp.Number or odp.Category by name")
        _validate.integer(low=1, high=MOST_FEATURES, features=len(self.columns))
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            _validate.identifier(feature=name)
            if isinstance(column, Category):
                column = Levels(column)
            if not isinstance(column, Boolean | Number | Levels):
                raise ConfigurationError(
                    f"Expected feature {name!r} to be an odp.Boolean, odp.Number or odp.Category "
                    f"(got {type(column).__name__})"
                )
            columns[name] = column
        if self.label in columns:
            raise ConfigurationError(f"Expected label={self.label!r} to be no feature")
        check_range(label_low=self.label_low, label_high=self.label_high)
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "classes", checked_classes(self.classes))
        object.__setattr__(self, "_sizes", {name: column.size for name, column in columns.items()})
        self._check_crosses()
        _validate.integer(low=1, high=MOST_INPUTS, inputs=self.inputs)

    def _check_crosses(self) -> None:
        crosses = tuple((str(first), str(second)) for first, second in self.crosses)
        for first, second in crosses:
            for name in (first, second):
                if name not in self.columns:
                    nearest = _validate.nearest(name, self.columns)
                    raise ConfigurationError(f"Expected a cross of declared features (got {name!r}){nearest}")
            if first == second:
                raise ConfigurationError(f"Expected a cross of two different features (got {first!r} twice)")
        if len({frozenset(cross) for cross in crosses}) != len(crosses):
            raise ConfigurationError("Expected each cross of two features once")
        object.__setattr__(self, "crosses", crosses)

    @property
    def inputs(self) -> int:
        """Numbers of an encoded row."""
        products = sum(self._sizes[first] * self._sizes[second] for first, second in self.crosses)
        return int(self.intercept) + sum(self._sizes.values()) + products

    @property
    def names(self) -> tuple[str, ...]:
        """What each input is, for people: ``intercept``, ``age``, ``kind=2``, ``age*kind=2``."""
        input_names = {name: self._names(name) for name in self.columns}
        all_names = ["intercept"] if self.intercept else []
        for names in input_names.values():
            all_names.extend(names)
        for first, second in self.crosses:
            all_names.extend(f"{name}*{other}" for name in input_names[first] for other in input_names[second])
        return tuple(all_names)

    def _names(self, name: str) -> list[str]:
        column = self.columns[name]
        if isinstance(column, Levels):
            classes = column.category.classes
            levels = range(classes) if isinstance(classes, int) else classes
            return [f"{name}={level}" for level in levels][:-1]
        return [name] if column.size == 1 else [f"{name}[{place}]" for place in range(column.size)]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of a response, as text."""
        return tuple(map(str, self.classes))

    def responses(self, column: npt.NDArray[Any]) -> Float64Array:
        """Responses [n] as numbers, those of classes with names too; not a number where one is missing or no class."""
        return places_of(column, self.class_names).astype(np.float64) if self.classes else column.astype(np.float64)

    def local_table(self, *, most_rows: int) -> LocalTable:
        """What a device reads."""
        reads = {name: column.read for name, column in self.columns.items() if not isinstance(column, Category)}
        return LocalTable(
            self.table, self.table, frozenset({self.table}), None, most_rows, reads, self.label, self.class_names
        )

    def numbers(self, columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Columns as a device reads them, names of categories as numbers; without those that it cannot read."""
        readable = {}
        for name, values in columns.items():
            column = self.columns.get(name)
            read = column.category.numbers(np.asarray(values)) if isinstance(column, Levels) else values
            if read is not None:
                readable[name] = read
        return readable

    def encode(self, columns: Mapping[str, npt.NDArray[Any]], rows: int) -> tuple[Float64Array, BoolArray]:
        """Of ``numbers``: (numbers within [0, 1], float64 [rows, inputs]; rows that can be used, bool [rows]).

        No row can be used where a column is missing or of another length or shape. Rows that cannot are zeros.
        """
        usable_rows = np.ones(rows, dtype=np.bool_)
        parts: dict[str, Float64Array] = {}
        for name, column in self.columns.items():
            values = columns.get(name)
            if isinstance(column, Category) or values is None or len(values) != rows or not _fits(column, values):
                return np.zeros((rows, self.inputs)), np.zeros(rows, dtype=np.bool_)
            parts[name], usable = column.encode(values)
            usable_rows &= usable
        blocks = [np.ones((rows, 1))] if self.intercept else []
        blocks.extend(parts.values())
        for first, second in self.crosses:
            crossed = parts[first][:, :, None] * parts[second][:, None, :]
            blocks.append(crossed.reshape(rows, crossed.shape[1] * crossed.shape[2]))
        inputs = np.concatenate(blocks, axis=1)
        inputs[~usable_rows] = 0.0
        return inputs, usable_rows

    def unusable(self, columns: Mapping[str, npt.NDArray[Any]], rows: int) -> Iterator[tuple[str, BoolArray]]:
        """Of each feature and ``numbers``, the rows that cannot be used for it, bool [rows]."""
        for name, column in self.columns.items():
            values = columns.get(name)
            if isinstance(column, Category) or values is None or len(values) != rows or not _fits(column, values):
                yield name, np.ones(rows, dtype=np.bool_)
            else:
                yield name, ~column.encode(values)[1]

    def to_proto(self) -> draw_and_discard_pb2.LocalFeatures:
        """The wire form."""
        message = draw_and_discard_pb2.LocalFeatures(
            table=self.table, label=self.label, label_low=self.label_low, label_high=self.label_high,
            intercept=self.intercept, classes=self.class_names,
            crosses=[draw_and_discard_pb2.FeatureCross(first=left, second=other) for left, other in self.crosses],
        )  # fmt: skip
        for name, column in self.columns.items():
            if not isinstance(column, Category):
                column.write(message.features.add(name=name))
        return message

    @classmethod
    def of(cls, message: draw_and_discard_pb2.LocalFeatures) -> Self:
        """Reads and checks the wire form. Raises ConfigurationError."""
        columns: dict[str, Column | Category] = {}
        for feature in message.features:
            if feature.name in columns:
                raise ConfigurationError(f"Expected distinct names of features (got {feature.name!r} twice)")
            columns[feature.name] = _column(feature)
        return cls(
            columns, message.label, [(cross.first, cross.second) for cross in message.crosses],
            message.label_low, message.label_high, message.table, message.intercept, tuple(message.classes),
        )  # fmt: skip


def _fits(column: Column, values: npt.NDArray[Any]) -> bool:
    """Whether a column holds numbers of the feature's shape."""
    if isinstance(column, Levels):
        return values.dtype.kind in "biuf" and values.shape[1:] == ()
    numbers = int(np.prod(values.shape[1:], dtype=np.int64))
    return values.dtype.kind in "biuf" and numbers == column.size


def _column(feature: draw_and_discard_pb2.LocalFeature) -> Column | Category:
    match feature.WhichOneof("kind"):
        case "boolean":
            return Boolean()
        case "number":
            number = feature.number
            return Number(number.low, number.high, number.clip, number.size)
        case "levels":
            levels = feature.levels
            if levels.names and len(levels.names) != levels.count:
                raise ConfigurationError(
                    f"Expected {levels.count} names of the categories of {feature.name!r} (got {len(levels.names)})"
                )
            return Category(tuple(levels.names) or levels.count)
        case _:
            raise ConfigurationError(
                f"Expected feature {feature.name!r} to be boolean, a number or levels; a newer kind needs a newer "
                "version of this program"
            )

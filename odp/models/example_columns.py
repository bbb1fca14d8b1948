"""Labelled examples of many users as named columns: what is written into the stores of devices.

A simulation takes ``UsersExamples``, all tensors of an example side by side; a device stores columns by name, so that
tasks with other features can read the same examples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.examples import UsersExamples, label_column, narrowed, of_one_kind, rows_of_users
from odp.datasets.ids import Ids, id_keys
from odp.errors import DataError
from odp.models.examples import Examples
from odp.models.features import MOST_AXES, Category, described
from odp.numerics.archives import arrays_of
from odp.numerics.arrays import Int64Array

MOST_COLUMNS = 128
#: Of a file, the array that says whose each example is.
USER = "user"

_NUMBERS, _TEXT, _OBJECTS = "biuf", "U", "OT"


def checked_columns(columns: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
    """Columns of examples [n, ..] as arrays of truth values, whole numbers, floats or text, in order of their names.

    Text has one string per example, also as objects; null characters at its end are dropped, and missing text is empty.
    Floats of 64 bits become float32, as which models read them; beyond its range they become infinite. A column of one
    number per example stays as it is where whole numbers would lose digits, since they may name classes.

    Raises:
      ConfigurationError: a column's name is no name.
      DataError: there is no column, or there are too many; one holds neither numbers nor text; or lengths differ.
    """
    if not isinstance(columns, Mapping):
        raise DataError(f"Expected the columns of examples by name, got a {type(columns).__name__}")
    if not 1 <= len(columns) <= MOST_COLUMNS:
        raise DataError(f"Expected examples to have 1 to {MOST_COLUMNS} columns (got {len(columns)})")
    checked: dict[str, npt.NDArray[Any]] = {}
    for name in columns:
        _validate.identifier(column=name)
    for name in sorted(columns):
        try:
            numbers = np.asarray(columns[name])
            if numbers.dtype.kind in _OBJECTS and numbers.ndim == 1 and any(cell is not None for cell in numbers.flat):
                numbers = of_one_kind(numbers)
        except (ValueError, DataError):  # rows of different lengths, or values of several kinds
            numbers = np.empty(0, dtype=object)
        axes = {**dict.fromkeys(_NUMBERS, MOST_AXES), _TEXT: 0}.get(numbers.dtype.kind)
        if axes is None or not 1 <= numbers.ndim <= axes + 1 or 0 in numbers.shape[1:]:
            raise DataError(
                f"Expected column {name!r} of the examples to be an array of numbers, with one entry per example and "
                f"at most {MOST_AXES} further axes, none of them empty; or a list of one text per example"
            )
        if numbers.dtype.kind == "f":
            numbers = narrowed(numbers.astype(np.float64)) if numbers.ndim == 1 else _as_float32(numbers)
        checked[name] = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<"))
    lengths = {name: len(numbers) for name, numbers in checked.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"Expected all columns of the examples to have the same length (got {lengths})")
    return checked


def _as_float32(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


@dataclass(frozen=True, eq=False, repr=False)
class ExampleColumns:
    """Labelled examples of many users; treat the arrays as read-only.

    Attributes:
      columns: numbers [n, ..] or text [n] by name: features and labels.
      rows: int64 [k], the examples of all users, one user after the other.
      offsets: int64 [users + 1], from 0 to k, never decreasing; user u has ``rows[offsets[u]:offsets[u + 1]]``.
      user_ids: what a table calls the users, from which seeds and coins follow; their numbers where it is None.
      name: what reports call the examples.
      notes: what their owner has to know of how they were read.
      times: when each example happened, numbers [n], for a cut in time; None where nobody asked for them.
      time_unit: what they count from 1970 on, where they were dates.

    Raises:
      ConfigurationError, DataError: as ``checked_columns``; or rows, offsets or times are of another shape or out of
        range.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    rows: Int64Array
    offsets: Int64Array
    user_ids: Ids | None = None
    name: str = "examples"
    notes: tuple[str, ...] = ()
    times: npt.NDArray[Any] | None = None
    time_unit: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_columns(self.columns))
        ends = self.offsets
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or ends[-1] != len(self.rows) or (np.diff(ends) < 0).any():
            raise DataError(f"Expected offsets to go from 0 to {len(self.rows)} without decreasing")
        length = len(next(iter(self.columns.values())))
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < length:
            raise DataError(f"Expected rows from 0 to {length - 1}")
        if self.times is not None and self.times.shape != (length,):
            raise DataError(f"Expected times [{length}] (got {list(self.times.shape)})")
        if self.user_ids is not None and len(self.user_ids) != self.n_users:
            raise DataError(f"Expected user_ids of {self.n_users} users (got {len(self.user_ids)})")

    def __repr__(self) -> str:
        """Names and sizes only: what a person has stays out of logs and tracebacks."""
        return f"ExampleColumns({len(self.offsets) - 1} users, {len(self.rows)} examples: {', '.join(self.columns)})"

    @classmethod
    def of_users(cls, columns: Mapping[str, npt.ArrayLike], users: npt.ArrayLike) -> Self:
        """Examples of which each belongs to one user: ``users`` int [n], from 0. Rows keep their order within a user.

        Raises:
          ConfigurationError, DataError: as the class, or a user is no whole number from 0.
        """
        numbers = checked_columns(columns)
        return cls(numbers, *rows_of_users(users, len(next(iter(numbers.values())))))

    @classmethod
    def of(cls, users: UsersExamples, data: Examples) -> Self:
        """The examples of a simulation, cut into the features that a task declares and its label, as it is.

        Text is a column of its numbers. Categories are columns of their numbers, or of names where numbers are names.
        Bytes stay bytes where ``users.scale`` is 1.

        Raises:
          DataError: an example has another number of features than ``data``.
        """
        width = sum(feature.size for feature in data.features.values())
        if users.features.shape[1] != width:
            raise DataError(f"Expected examples of {width} numbers, as the task declares (got {users.features.shape})")
        numbers: npt.NDArray[Any] = users.features
        if users.scale != 1.0:
            numbers = numbers.astype(np.float32) * np.float32(users.scale)
        columns, start = {data.label: users.targets}, 0
        for name, feature in data.features.items():
            column = numbers[:, start : start + feature.size].reshape(-1, *feature.shape)
            columns[name] = feature.column(column) if isinstance(feature, Category) else column
            start += feature.size
        return cls(columns, users.rows, users.offsets)

    def users_examples(self, data: Examples) -> UsersExamples:
        """The examples of a simulation of a task that reads ``data``: the numbers of all features side by side.

        Raises:
          DataError: a column is missing, or is not of the shape and kind of its feature.
        """
        for name in (*data.features, data.label):
            if name not in self.columns:
                raise DataError(f"Expected a column {name!r}, as the task reads it (got {', '.join(self.columns)})")
        targets = self.columns[data.label]
        if targets.ndim != 1:
            raise DataError(f"Expected one number or text per example in the column {data.label!r} of labels")
        parts = []
        for name, feature in data.features.items():
            if (numbers := feature.numbers(self.columns[name])) is None:
                column = self.columns[name]
                held = "text" if column.dtype.kind == _TEXT else f"numbers of shape {[*column.shape[1:]]}"
                raise DataError(f"Expected the column {name!r} to hold {described(feature)} (got {held})")
            parts.append(numbers.reshape(len(targets), feature.size))
        features: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
        if len(parts) == 1 and parts[0].dtype == np.uint8:
            features = np.ascontiguousarray(parts[0], dtype=np.uint8)
        else:
            features = np.concatenate(parts, axis=1).astype(np.float32)
        keys = None if self.user_ids is None else id_keys(self.user_ids, self.n_users)
        return UsersExamples(features, label_column(targets), self.rows, self.offsets, keys=keys)

    @property
    def n_users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    def user(self, index: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of one user's examples, copies."""
        rows = self.rows[self.offsets[index] : self.offsets[index + 1]]
        return {name: numbers[rows] for name, numbers in self.columns.items()}

    def first_users(self, count: int) -> ExampleColumns:
        """The examples of the users 0 .. ``count`` - 1; the columns are shared."""
        ids = None if self.user_ids is None else self.user_ids[:count]
        return replace(
            self, rows=self.rows[: self.offsets[count]], offsets=self.offsets[: count + 1], user_ids=ids
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that ``load`` reads. Raises DataError: a column is called ``user``."""
        if USER in self.columns:
            raise DataError(f"Expected no column {USER!r}: the file says by that name whose each example is")
        arrays: dict[str, Any] = {name: numbers[self.rows] for name, numbers in self.columns.items()}
        arrays[USER] = np.repeat(np.arange(self.n_users, dtype=np.int64), np.diff(self.offsets))
        np.savez_compressed(Path(path), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads an npz file: an array ``user`` int [n], from 0, and an array [n, ..] per column.

        Raises:
          ConfigurationError, DataError: the file is missing or damaged, or as ``of_users``.
        """
        with arrays_of(path, "not a readable npz file of arrays of numbers or text") as file:
            # numpy gives the bytes of what has another name than an array or another start.
            columns = {name: np.asarray(file[name]) for name in file.files}
        if (users := columns.pop(USER, None)) is None:
            raise DataError(f"{path}: Expected an array {USER!r} that says whose each example is")
        try:
            return cls.of_users(columns, users)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

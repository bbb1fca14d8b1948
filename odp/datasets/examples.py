"""Examples of many users: one table that they share, and which of its rows are whose.

Labels of examples as they are kept: numbers and text as their column holds them, without a lost digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from odp.datasets.splitting import OnlyTested
from odp.errors import DataError
from odp.identity import is_missing
from odp.numerics.arrays import Float32Array, Int64Array


class DeclaredFeature(Protocol):
    """A feature as a task declares it; see ``odp.models.features``."""

    @property
    def shape(self) -> Sequence[int]:
        """Of one example."""

    @property
    def size(self) -> int:
        """Numbers of one example."""

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Numbers [n, *shape] of a column of numbers or text; None where it is not of this feature."""

    def spread(self, part: Float32Array) -> None:
        """Spreads numbers [n, size] from -1 to 1 over what the feature may be, in place."""


class DeclaredExamples(Protocol):
    """What a task declares of its examples; see ``odp.models.examples.ExamplesTerms``."""

    @property
    def features(self) -> Mapping[str, DeclaredFeature]:
        """In the order in which a model reads them."""

    @property
    def label(self) -> str:
        """Its name."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes of a label, in their order; none where labels are numbers."""

    @property
    def label_range(self) -> tuple[float, float]:
        """(least, largest) label."""

    @property
    def width(self) -> int:
        """Numbers of one example, all features together."""


@dataclass(frozen=True, eq=False, repr=False)
class UsersExamples:
    """Labelled examples of many users; treat the arrays as read-only.

    A row may belong to several users. Bytes take a quarter of the memory of float32: images stay as they are.

    Attributes:
      features: float32 or uint8 [n, features], row-major.
      targets: labels as their column holds them, float32, float64 or text [n]: classes by the names that the task
        gives them (``odp.models.named_numbers``), or as whole numbers from 0.
      rows: int64 [k], the rows of all users, one user after the other.
      offsets: int64 [users + 1], from 0 to k, never decreasing; user u has ``rows[offsets[u]:offsets[u + 1]]``.
      scale: what the features are multiplied by; 1 / 255 makes images numbers from 0 to 1.
      keys: int64 [users], the key of each user (``odp.datasets.ids``); their numbers where it is None.

    Raises:
      DataError: an array has another type or shape, or a row is none of the table's.
    """

    features: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    targets: npt.NDArray[Any]
    rows: Int64Array
    offsets: Int64Array
    scale: float = 1.0
    keys: Int64Array | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.dtype not in (np.float32, np.uint8):
            raise DataError(f"Expected features float32 or uint8 [n, features] (got {self.features.dtype})")
        if not self.features.flags.c_contiguous:
            raise DataError("Expected features to lie row after row")
        allowed = self.targets.dtype in (np.float32, np.float64) or self.targets.dtype.kind == "U"
        if not allowed or self.targets.shape != (len(self.features),):
            raise DataError(
                f"Expected targets float32, float64 or text [{len(self.features)}] (got {self.targets.dtype} "
                f"{list(self.targets.shape)})"
            )
        ends = self.offsets
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or ends[-1] != len(self.rows) or (np.diff(ends) < 0).any():
            raise DataError(f"Expected offsets to go from 0 to {len(self.rows)} without decreasing")
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(self.features):
            raise DataError(f"Expected rows from 0 to {len(self.features) - 1}")
        if self.keys is not None and (self.keys.dtype != np.int64 or self.keys.shape != (self.n_users,)):
            raise DataError(f"Expected keys int64 [{self.n_users}] (got {self.keys.dtype} {list(self.keys.shape)})")

    def __repr__(self) -> str:
        """Sizes only: what a person has stays out of logs and tracebacks."""
        sizes = f"{len(self.rows)} examples of {self.features.shape[1]} features"
        return f"UsersExamples({len(self.offsets) - 1} users, {sizes})"

    @classmethod
    def of_users(cls, features: npt.NDArray[Any], targets: npt.ArrayLike, users: npt.ArrayLike) -> Self:
        """Examples of which each belongs to one user: ``users`` int [n], from 0. Rows keep their order within a user.

        Raises:
          DataError: as the class, a user is no whole number from 0, or a target is neither a number nor text.
        """
        rows, offsets = rows_of_users(users, len(features))
        return cls(np.ascontiguousarray(features), label_column(targets), rows, offsets)

    @property
    def n_users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    @property
    def user_keys(self) -> Int64Array:
        """The key of each user, int64 [n_users], whoever else is there: seeds and coins follow from it."""
        return np.arange(self.n_users, dtype=np.int64) if self.keys is None else self.keys

    def select_users(self, indices: Int64Array) -> UsersExamples:
        """The examples of some users, int64 [k] from 0, with their keys; the table is shared."""
        counts = np.diff(self.offsets)[indices]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        places = np.repeat(self.offsets[indices] - offsets[:-1], counts) + np.arange(offsets[-1])
        return UsersExamples(
            self.features, self.targets, self.rows[places], offsets, self.scale, self.user_keys[indices]
        )

    def of(self, user: int) -> tuple[Float32Array, npt.NDArray[Any]]:
        """Features float32 [n, features] and targets [n] of one user, copies."""
        rows = self.rows[self.offsets[user] : self.offsets[user + 1]]
        features = self.features[rows].astype(np.float32)
        if self.scale != 1.0:
            features *= np.float32(self.scale)
        return features, self.targets[rows]


def rows_of_users(users: npt.ArrayLike, count: int) -> tuple[Int64Array, Int64Array]:
    """(rows [count] of all users, one user after the other; where each user's begin, int64 [users + 1]).

    Raises:
      DataError: ``users`` are not ``count`` whole numbers from 0 below 2**31.
    """
    owners = np.asarray(users)
    if owners.size == 0 and count == 0:
        owners = owners.astype(np.int64)
    if owners.dtype.kind not in "iu" or owners.shape != (count,) or (count and owners.min() < 0):
        raise DataError(f"Expected users from 0, as whole numbers, one for each of the {count} examples")
    if count and owners.max() >= 2**31:
        raise DataError(f"Expected users below {2**31} (got {owners.max()})")
    owners = owners.astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owners), dtype=np.int64)))
    return np.argsort(owners, kind="stable"), offsets


@dataclass(frozen=True, eq=False)
class ExamplesSplit:
    """What a simulation trains on, user by user, and public examples that it tests on.

    Attributes:
      train: of the users.
      test: of anybody; which of them are whose does not matter.
      name: what reports call the data set.
      only_tested: what the tests alone have, where a cut in time chose them.
    """

    train: UsersExamples
    test: UsersExamples
    name: str = "examples"
    only_tested: OnlyTested | None = None


_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT64 = 2.0**24, 2.0**53


def label_column(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    """Labels [n] as they are compared: text, or float32; float64 where whole numbers would lose digits.

    Of objects, those that hold nothing are missing labels: "" beside text, and not a number beside numbers.

    Raises:
      DataError: they are neither numbers nor text, or some of both.
    """
    try:
        array = np.asarray(labels)
    except ValueError:  # lists of different lengths
        raise DataError("Expected labels to be numbers or text, one for each example") from None
    if array.dtype.kind in "OT":
        array = of_one_kind(array)
    if array.dtype.kind == "U" or array.dtype == np.float32:
        return array
    if array.dtype.kind not in "biuf":
        raise DataError(f"Expected labels to be numbers or text (got {array.dtype})")
    wide = array.astype(np.float64)
    if array.dtype.kind in "iu" and float(np.abs(wide).max(initial=0.0)) > _EXACT_IN_FLOAT64:
        return array.astype(str)
    return narrowed(wide)


def narrowed(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.floating[Any]]:
    """The same as float32, or as they are where whole numbers would lose digits: two classes would become one."""
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    size = np.abs(numbers)
    whole = (size > _EXACT_IN_FLOAT32) & (size <= _EXACT_IN_FLOAT64) & (numbers == np.floor(numbers))
    return numbers if (narrow != numbers)[whole].any() else narrow


def of_one_kind(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Objects [n] as an array of text or of numbers; "" or not a number where one is missing. Raises DataError."""
    missing = np.array([is_missing(label) for label in labels.flat], dtype=np.bool_)
    values = labels.ravel()[~missing].tolist()
    texts = [isinstance(value, str) for value in values]
    other = next((value for value, text in zip(values, texts, strict=True) if not text), None)
    if any(texts) and other is not None:
        raise DataError(f"Expected labels to be numbers or text, and not both (got text and {type(other).__name__})")
    if other is not None and not all(isinstance(value, (Real, Decimal, np.bool_)) for value in values):
        raise DataError(f"Expected labels to be numbers or text (got {type(other).__name__})")
    if other is not None and not missing.any() and all(isinstance(value, (int, np.integer)) for value in values):
        return np.array(values).reshape(labels.shape)
    filled = np.full(labels.size, "" if any(texts) else np.nan, dtype=object)
    filled[~missing] = values
    return filled.reshape(labels.shape).astype(str if any(texts) else np.float64)

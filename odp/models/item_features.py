"""A matrix of public item features: its checks, its bytes on the wire, and the hash that a task definition carries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.v1 import common_pb2

Float32Array = npt.NDArray[np.float32]

#: Features per item; more must be reduced before (``odp.datasets.text_columns`` does so for texts).
MOST_FEATURES = 2**10
MOST_GROUPS = 16


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """Groups of public features side by side: how much each group tells is estimated from the releases.

    Attributes:
      matrix: read-only float32 [items, p].
      groups: (name, width) of each group, in the order of the columns; widths are 1 or more and add up to p.
    """

    matrix: Float32Array
    groups: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        """Sizes only."""
        return f"ItemFeatures({len(self.matrix)} items, {dict(self.groups)})"

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the groups."""
        return tuple(width for _, width in self.groups)


def grouped_item_features(
    items: int, features: npt.ArrayLike | Mapping[str, npt.ArrayLike] | ItemFeatures
) -> ItemFeatures:
    """One matrix of all groups; a matrix without groups is one, called "features".

    Raises:
      ConfigurationError: there is no group or more than 16, a name is empty, or a matrix is none that
        :func:`checked_item_features` takes.
    """
    if isinstance(features, ItemFeatures):
        return ItemFeatures(checked_item_features(items, features.matrix), features.groups)
    if not isinstance(features, Mapping):
        matrix = checked_item_features(items, features)
        return ItemFeatures(matrix, (("features", matrix.shape[1]),))
    if not 1 <= len(features) <= MOST_GROUPS:
        raise ConfigurationError(f"Expected item_features to have 1 to {MOST_GROUPS} groups (got {len(features)})")
    parts = []
    for name, part in features.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"Expected groups of item_features to have names (got {name!r})")
        try:
            parts.append(checked_item_features(items, part))
        except ConfigurationError as error:
            raise ConfigurationError(f"group {name!r}: {error}") from None
    matrix = checked_item_features(items, np.concatenate(parts, axis=1))
    return ItemFeatures(matrix, tuple((name, part.shape[1]) for name, part in zip(features, parts, strict=True)))


def checked_item_features(items: int, features: npt.ArrayLike) -> Float32Array:
    """A read-only float32 copy [items, p] of ``features``, row-major.

    Args:
      items: of the model.
      features: real or whole numbers [items, p], p from 1 to 1024; columns of comparable scale, as their principal
        components are used.

    Raises:
      ConfigurationError: the number of rows or columns is wrong, or an entry is not a finite real number.
    """
    array = np.asarray(features)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"Expected item_features to be a matrix of real numbers (got {array.dtype} {list(array.shape)})"
        )
    if len(array) != items:
        raise ConfigurationError(f"Expected item_features to have one row per item, {items} (got {len(array)})")
    if not 1 <= array.shape[1] <= MOST_FEATURES:
        raise ConfigurationError(f"Expected item_features to have 1 to {MOST_FEATURES} columns (got {array.shape[1]})")
    with np.errstate(over="ignore"):
        matrix = np.array(array, dtype="<f4", order="C")
    wrong = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(wrong):
        raise ConfigurationError(
            f"Expected item_features to be finite float32 numbers: {len(wrong)} rows are not, the first is {wrong[0]}"
        )
    matrix.flags.writeable = False
    return matrix


def item_features_sha256(features: Float32Array) -> bytes:
    """SHA-256 of the matrix as float32 little-endian, row-major: the field of a task definition."""
    return hashlib.sha256(features.astype("<f4").tobytes()).digest()


def item_features_from(model: common_pb2.MatrixFactorizationModel, data: bytes) -> Float32Array | None:
    """The matrix of a model from its bytes; None for a model without features.

    Raises:
      ConfigurationError: ``data`` is not the matrix that the model names.
    """
    expected = 4 * model.items * model.item_features_width
    if len(data) != expected:
        raise ConfigurationError(f"Expected item_features of {expected} bytes, as the model says (got {len(data)})")
    if not model.item_features_width:
        return None
    if hashlib.sha256(data).digest() != model.item_features_sha256:
        raise ConfigurationError("Expected item_features to have the SHA-256 that the task definition names")
    matrix = np.frombuffer(data, dtype="<f4").reshape(model.items, model.item_features_width)
    return checked_item_features(model.items, matrix)

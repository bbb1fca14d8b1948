"""A matrix of public item features: its checks, its bytes on the wire, and the hash that a task definition carries."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.v1 import common_pb2

Float32Array = npt.NDArray[np.float32]

#: Features per item; more must be reduced before (random projections of text hashes serve well).
MOST_FEATURES = 2**10


def checked_item_features(items: int, features: npt.ArrayLike) -> Float32Array:
    """A read-only float32 copy [items, p] of ``features``, row-major.

    Args:
      items: of the model.
      features: real or whole numbers [items, p], p from 1 to 1024; columns of comparable scale, as their principal
        components are used.

    Raises:
      ConfigurationError: the number of rows or columns is wrong, or an entry is not a finite real number.
    """
    given = np.asarray(features)
    if given.ndim != 2 or given.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"Expected item_features to be a matrix of real numbers (got {given.dtype} {list(given.shape)})"
        )
    if len(given) != items:
        raise ConfigurationError(f"Expected item_features to have one row per item, {items} (got {len(given)})")
    if not 1 <= given.shape[1] <= MOST_FEATURES:
        raise ConfigurationError(f"Expected item_features to have 1 to {MOST_FEATURES} columns (got {given.shape[1]})")
    with np.errstate(over="ignore"):
        matrix = np.array(given, dtype="<f4", order="C")
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

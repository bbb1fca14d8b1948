"""Examples of many users: one table that they share, and which of its rows are whose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.numerics.arrays import Float32Array, Int64Array


@dataclass(frozen=True, eq=False)
class UsersExamples:
    """Labelled examples of many users; treat the arrays as read-only.

    A row may belong to several users. Bytes take a quarter of the memory of float32: images stay as they are.

    Attributes:
      features: float32 or uint8 [n, features], row-major.
      targets: float32 [n]; classes as whole numbers.
      rows: int64 [k], the rows of all users, one user after the other.
      offsets: int64 [users + 1], from 0 to k, never decreasing; user u has ``rows[offsets[u]:offsets[u + 1]]``.
      scale: what the features are multiplied by; 1 / 255 makes images numbers from 0 to 1.

    Raises:
      DataError: an array has another type or shape, or a row is none of the table's.
    """

    features: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    targets: Float32Array
    rows: Int64Array
    offsets: Int64Array
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.dtype not in (np.float32, np.uint8):
            raise DataError(f"Expected features float32 or uint8 [n, features] (got {self.features.dtype})")
        if not self.features.flags.c_contiguous:
            raise DataError("Expected features to lie row after row")
        if self.targets.dtype != np.float32 or self.targets.shape != (len(self.features),):
            raise DataError(f"Expected targets float32 [{len(self.features)}] (got {list(self.targets.shape)})")
        ends = self.offsets
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or ends[-1] != len(self.rows) or (np.diff(ends) < 0).any():
            raise DataError(f"Expected offsets to go from 0 to {len(self.rows)} without decreasing")
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(self.features):
            raise DataError(f"Expected rows from 0 to {len(self.features) - 1}")

    @property
    def users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    def of(self, user: int) -> tuple[Float32Array, Float32Array]:
        """Features float32 [n, features] and targets float32 [n] of one user, copies."""
        rows = self.rows[self.offsets[user] : self.offsets[user + 1]]
        features = self.features[rows].astype(np.float32)
        if self.scale != 1.0:
            features *= np.float32(self.scale)
        return features, self.targets[rows]

"""The array types of signatures, and the check that users have their seeds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.errors import DataError

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
UInt8Array = npt.NDArray[np.uint8]


def require_seeds(seeds: UInt64Array, *, users: int) -> None:
    """Raises DataError unless there is one seed per user."""
    if len(seeds) != users:
        raise DataError(f"Expected one seed per user, {users} (got {len(seeds)})")

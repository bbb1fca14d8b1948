"""Labels of examples as they are kept: numbers and text as their column holds them, without a lost digit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError

_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT64 = 2.0**24, 2.0**53


def label_column(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    """Labels [n] as they are compared: text, or float32; float64 where whole numbers would lose digits.

    Raises:
      DataError: they are neither numbers nor text.
    """
    found = np.asarray(labels)
    if found.dtype.kind in "OT" and all(isinstance(one, str) for one in found.flat):
        found = found.astype(str)
    if found.dtype.kind == "U" or found.dtype == np.float32:
        return found
    try:
        wide = found.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"Expected labels to be numbers or text (got {found.dtype})") from None
    size = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    if found.dtype.kind in "iu" and size > _EXACT_IN_FLOAT64:
        return found.astype(str)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return wide if size > _EXACT_IN_FLOAT32 and (narrow != wide)[np.isfinite(wide)].any() else narrow

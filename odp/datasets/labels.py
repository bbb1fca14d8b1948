"""Labels of examples as they are kept: numbers and text as their column holds them, without a lost digit."""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.identity import is_missing

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

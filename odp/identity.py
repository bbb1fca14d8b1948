"""What users, items, categories and words are called: one text for each, whatever it was written as.

=====================================  =============================================================================
written                                id
=====================================  =============================================================================
a whole number of any numeric type     its digits: 12, 12.0 of a column of floats and 12.00 of decimals are ``"12"``
text                                   the text as it is: ``"007"`` is not ``"7"``, and ``"1.10"`` is not ``"1.1"``
a fraction, a bool, a date             none: an error
=====================================  =============================================================================

Names that a task declares (categories, words) and keys of a catalogue have one spelling: normal form C (Unicode
Standard Annex 15). Ids of a table that differ by their form alone are refused where the table is read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from odp.errors import DataError
from odp.numerics.arrays import Int64Array

LEAST, LARGEST = -(2**63), 2**63 - 1

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def id_text(value: object) -> str:
    """The id that a single value is; the module lists which.

    Raises:
      DataError: the value is none.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (float, np.floating)) and math.isfinite(value) and value == int(value):
        bits = exact_bits(value.dtype if isinstance(value, np.floating) else np.dtype(np.float64))
        if abs(int(value)) < 2**bits:
            return str(int(value))
        raise DataError(f"numbers of 2**{bits} or more came as floats, which are not exact; give text or integers")
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return str(int(value))
    raise DataError(f"expected whole numbers or text (got a {type(value).__name__})")


def is_missing(value: object) -> bool:
    """Whether a value stands for none: None, NaN and their like of other packages, which do not equal themselves."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA says neither yes nor no
        return True
    except ValueError:  # an array
        return False


def exact_bits(kind: np.dtype[Any]) -> int:
    """From 2 to this power on, not all whole numbers are floats: two ids may have become one before they came here."""
    return int(np.finfo(kind).nmant) + 1


def integer_of(text: str) -> int | None:
    """The number of 64 bits whose digits ``text`` is, or None."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if LEAST <= number <= LARGEST else None


def normal(text: str) -> str:
    """The text in normal form C, in which a name has one spelling."""
    return unicodedata.normalize("NFC", text)


def is_normal(text: str) -> bool:
    """Whether the text is in that form."""
    return unicodedata.is_normalized("NFC", text)


class LabelledItems:
    """Items that a question names by their ids: ``odp.protocol.catalogues.catalogue.NumberedKeys`` of its labels."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._numbers = {label: number for number, label in enumerate(labels)}

    def places(self, wanted: Sequence[str]) -> Int64Array:
        """The place of each id among the labels, whatever its Unicode form, int64 [n]; -1 where it is none."""
        return np.array([self._numbers.get(normal(key), -1) for key in wanted], dtype=np.int64)

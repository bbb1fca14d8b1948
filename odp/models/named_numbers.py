"""Names that numbers of a column have: the number 5 is "5", 0.5 is "0.5", and 1 and 0 are "true" and "false".

=====================  =================================================================================
in a column            the name of it
=====================  =================================================================================
text                   as it is written, in Unicode normal form C: "007" is not "7", and "1.0" is not "1"
12, 12.0               "12": whole numbers of every type have the same text
0.5                    "0.5"
True, False, 1, 0      "true" and "false" where these are names and "1" and "0" are none, else "1" and "0"
"", NaN                none
=====================  =================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.identity import integer_of, normal
from odp.numerics.arrays import Float32Array

_TRUTH = {"false": "0", "true": "1"}


def number_text(number: Any) -> str:
    """A number as text: whole ones of every type alike, and others as short as their type allows."""
    return str(int(number)) if math.isfinite(number) and number == int(number) else str(number)


def names_numbers(names: Sequence[str]) -> bool:
    """Whether any name is a number or a truth value, so that numbers in a column are names and no places."""
    return any(name in _TRUTH or _is_number(name) for name in names)


def has_no_number(name: str) -> bool:
    """Whether a name looks like a number, and is the text of none: "007", "1.0"."""
    return _is_number(name) and integer_of(name) is None and number_text(float(name)) != name


def places_of(column: npt.NDArray[Any], names: Sequence[str]) -> Float32Array:
    """The place of each entry's name among ``names``, from 0, float32 [n]; not a number where it has none of them."""
    places = _places(column, names)
    others = np.flatnonzero(np.isnan(places))
    if len(others) and column.dtype.kind == "U":
        # A name of another form is rare, and no array operation makes normal forms.
        places[others] = _places(np.array([normal(text) for text in column[others].tolist()]), names)
    return places


def _places(column: npt.NDArray[Any], names: Sequence[str]) -> Float32Array:
    values = column.astype(np.uint8) if column.dtype.kind == "b" else column
    spellings = [normal(name) for name in names]
    if values.dtype.kind == "U":
        pairs: list[tuple[Any, int]] = [(name, place) for place, name in enumerate(spellings)]
    else:
        digits = [name if _TRUTH.get(name, name) in spellings else _TRUTH[name] for name in spellings]
        pairs = [(_typed(name, values.dtype), place) for place, name in enumerate(digits)]
    named = sorted((value, place) for value, place in pairs if value is not None)
    places = np.full(len(values), np.nan, dtype=np.float32)
    if named:
        ordered = np.array([value for value, _ in named], dtype=None if values.dtype.kind == "U" else values.dtype)
        nearest = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
        numbers = np.array([place for _, place in named], dtype=np.float32)
        same = ordered[nearest] == values
        places[same] = numbers[nearest[same]]
    return places


def _typed(name: str, kind: np.dtype[Any]) -> Any:
    """The number of a type whose text is ``name``; None where no number of the type has it."""
    try:
        number = kind.type(int(name) if kind.kind in "iu" else name)
    except (ValueError, OverflowError):
        return None
    return number if number_text(number) == name else None


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False

"""Argument checks, in one place so that every message reads alike: ``name=value``, what is valid, the nearest name."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from odp.errors import ConfigurationError

#: Characters of the name of a task or of another thing.
LONGEST_NAME = 64
_NAME = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")


def positive(**values: float) -> None:
    """Raises ConfigurationError unless every value is a finite number above zero."""
    for name, value in values.items():
        finite(**{name: value})
        if not value > 0:
            raise ConfigurationError(f"Expected {name}={value!r} to be > 0")


def finite(**values: float) -> None:
    """Raises ConfigurationError unless every value is a finite real number (bool is refused)."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            raise ConfigurationError(f"Expected {name}={value!r} to be a finite number")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def integer(*, low: int, high: int, **values: int) -> None:
    """Raises ConfigurationError unless every value is an int within [low, high] (bool is refused)."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigurationError(f"Expected {name}={value!r} to be a whole number from {low} to {high}")


def within(*, low: float, high: float, **values: float) -> None:
    """Raises ConfigurationError unless every value is a finite number within [low, high]."""
    for name, value in values.items():
        finite(**{name: value})
        if not low <= value <= high:
            raise ConfigurationError(f"Expected {name}={value!r} to be within [{low}, {high}]")


def identifier(**values: str) -> None:
    """Raises ConfigurationError unless every value is a name of [a-z0-9_.-], at most 64 characters."""
    for name, value in values.items():
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ConfigurationError(
                f"Expected {name}={value!r} to be 1 to 64 characters of a-z, 0-9, '_', '.', '-', "
                "starting with a letter or digit"
            )


def one_of(choices: Iterable[str], **values: str) -> None:
    """Raises ConfigurationError unless every value is one of ``choices``; names the nearest one."""
    valid = list(choices)
    for name, value in values.items():
        if value not in valid:
            raise ConfigurationError(
                f"Expected {name}={value!r} to be one of {', '.join(valid)}{nearest(value, valid)}"
            )


def known_keys(keys: Iterable[str], valid: Iterable[str], *, where: str) -> None:
    """Raises ConfigurationError for the first key of ``keys`` that is not in ``valid``; names the nearest one."""
    names = list(valid)
    for key in keys:
        if key not in names:
            raise ConfigurationError(
                f"Unknown key {key!r} in {where}{nearest(key, names)}; valid keys: {', '.join(names)}"
            )


def json_object(
    value: object, required: Collection[str], optional: Collection[str] = (), *, where: str
) -> dict[str, Any]:
    """``value``, which is a decoded JSON object with all of the keys ``required``, and no others than ``optional``.

    Raises:
        ConfigurationError: it is no object, or a key is unknown or missing.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"Expected {where} to be an object, got {type(value).__name__}")
    known_keys(map(str, value), dict.fromkeys((*required, *optional)), where=where)
    for key in required:
        if key not in value:
            raise ConfigurationError(f"Missing key {key!r} in {where}")
    return dict(value)


def fields_of(value: object, kind: type, *, where: str) -> dict[str, Any]:
    """``json_object`` whose keys are the fields of the dataclass ``kind``; those with a default may be missing."""
    optional = {
        field.name: field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        for field in dataclasses.fields(kind)
    }
    return json_object(value, [name for name in optional if not optional[name]], optional, where=where)


def nearest(value: object, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of ``names``, or an empty string where none is close."""
    matches = difflib.get_close_matches(str(value), list(names), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


_Class = TypeVar("_Class", bound=type)


def strict_keywords(cls: _Class) -> _Class:
    """Class decorator for dataclasses: an unknown keyword is a ConfigurationError that names the nearest valid one."""
    # With what is given at construction alone, which is no field.
    names = [name for name in inspect.signature(cls).parameters if name != "self"]
    construct = getattr(cls, "__init__")  # noqa: B009  # attribute access on a type variable is unsound to mypy

    @functools.wraps(construct)
    def checked(self: object, *values: object, **keywords: object) -> None:
        known_keys(keywords, names, where=f"{cls.__name__}(..)")
        construct(self, *values, **keywords)

    setattr(cls, "__init__", checked)  # noqa: B010
    return cls

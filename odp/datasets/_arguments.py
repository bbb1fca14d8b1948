"""Arguments of invented data in a name, as in ``synthetic:n_users=50,seed=3``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from odp import _validate
from odp.errors import DataError


def parse_arguments(arguments: str, function: Callable[..., object], *, where: str) -> dict[str, Any]:
    """Keyword arguments of ``function`` from ``key=value,..``.

    Raises:
      DataError: the text is of another form, or a value is no number, true or false.
      ConfigurationError: as ``known_options``.
    """
    parsed: dict[str, Any] = {}
    for part in filter(None, arguments.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise DataError(f"Expected key=value after 'synthetic:' (got {part!r} in {where!r})")
        parsed[key.strip()] = _literal(key.strip(), value.strip(), where)
    return known_options(parsed, function)


def known_options(options: Mapping[str, Any], function: Callable[..., object]) -> dict[str, Any]:
    """The same options. Raises ConfigurationError where ``function`` has no parameter of that name with a default."""
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    _validate.known_keys(options, names, where="the options of 'synthetic'")
    return dict(options)


def _literal(key: str, value: str, where: str) -> int | float | bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise DataError(f"Expected {key}={value!r} in {where!r} to be a number, true or false")

"""Small TOML files that a person writes: conditions, retention, scenarios."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from odp.errors import ConfigurationError

_LARGEST = 2**16

T = TypeVar("T")


def load_settings(path: Path, made_of: Callable[[dict[str, Any]], T], *, what: str) -> T:
    """What ``made_of`` makes of the values of a TOML file of at most 64 KiB.

    Args:
      path: the file.
      made_of: may raise ConfigurationError, ValueError or TypeError about the values.
      what: names the file's content in messages.

    Raises:
      ConfigurationError: names the file and what is wrong in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} {path}: {(error.strerror or 'error').lower()}") from None
    try:
        if len(data) > _LARGEST:
            raise ConfigurationError(f"Expected at most {_LARGEST} bytes")
        return made_of(tomllib.loads(data.decode("utf-8")))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except (ValueError, TypeError, RecursionError) as error:  # the last: of brackets of any depth
        raise ConfigurationError(f"{path}: Expected {what} as TOML: {error}") from None

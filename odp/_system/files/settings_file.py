"""Small files of settings: conditions, retention, scenarios in TOML, which a person writes; pinned values in JSON."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from odp.errors import ConfigurationError

_LARGEST = 2**16

T = TypeVar("T")


def load_settings(
    path: Path, made_of: Callable[[dict[str, Any]], T], *, what: str, parse: Callable[[str], Any] = tomllib.loads,
    largest: int = _LARGEST,
) -> T:  # fmt: skip
    """What ``made_of`` makes of the values of a file.

    Args:
      path: the file.
      made_of: may raise ConfigurationError, ValueError, TypeError, KeyError or AttributeError about the values.
      what: names the file's content in messages.
      parse: reads the file's text; may raise ValueError. The default reads TOML.
      largest: the file's length at most, in bytes.

    Raises:
      ConfigurationError: names the file and what is wrong in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} {path}: {(error.strerror or 'error').lower()}") from None
    form = "TOML" if parse is tomllib.loads else "JSON"
    try:
        if len(data) > largest:
            raise ConfigurationError(f"Expected at most {largest} bytes")
        return made_of(parse(data.decode("utf-8")))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    # Brackets of any depth end in a RecursionError.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: Expected {what} as {form}: {error}") from None

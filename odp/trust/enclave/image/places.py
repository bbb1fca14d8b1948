"""Where an image's own packages and the standard library lie."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path

from odp.errors import ConfigurationError


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def package_folder(package: str) -> Path:
    """The one folder of an import package.

    Raises:
        ConfigurationError: not installed, or not one folder with an ``__init__.py``.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigurationError(
            f"Cannot build an image with package={package!r}: it is not installed; is its name right?"
        )
    locations = [Path(location) for location in spec.submodule_search_locations or ()]
    if spec.origin is None or len(locations) != 1 or not locations[0].is_dir():
        raise ConfigurationError(
            f"Cannot build an image with package={package!r}: it is not one folder with an __init__.py"
        )
    return locations[0].resolve()

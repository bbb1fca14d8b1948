"""The worlds that other programs' tests are made of."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def conftest_of(program: str) -> ModuleType:
    """The ``conftest.py`` of a program's tests."""
    # The folder has the name of the program that it tests, so the program is what an import would find.
    path = Path(__file__).resolve().parent / program / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{program}_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

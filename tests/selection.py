"""What of a test's parameters a run of pytest has selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def selected_params(request: pytest.FixtureRequest, name: str, *tests: Callable[..., object]) -> list[Any]:
    """The values of parameter ``name`` with which any of ``tests`` runs, each once, in the order of the tests.

    A fixture of a module that prepares all parameters at once prepares these alone: marks and ``-k`` leave out others.
    """
    names = {test.__name__ for test in tests}
    found: dict[Any, None] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname in names and item.path == request.path:
            found[item.callspec.params[name]] = None
    return list(found)

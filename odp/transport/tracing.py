"""Spans of this process, for whoever traces it: what it does for a task, and its calls to other programs.

Nothing is kept here, and without a tracer nothing is sent. Devices have none: their calls begin no trace, and what they
send about one is not looked at. Only programs with a certificate, at control listeners, go on with a caller's trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Tracer(Protocol):
    """Who traces. Thread-safe."""

    def span(self, name: str, attributes: dict[str, str | int]) -> AbstractContextManager[None]:
        """Around something that this program does by itself."""
        ...

    def call(self, method: str) -> AbstractContextManager[list[tuple[str, str]]]:
        """Around a call of ``method``; gives the metadata that it takes along. Outside of spans it does nothing."""
        ...

    def serve(self, method: str, metadata: Iterable[tuple[str, Any]]) -> AbstractContextManager[None]:
        """Around the answer to a call that came with ``metadata``. Of a caller outside of spans it does nothing."""
        ...


_tracers: list[Tracer] = []


def trace(tracer: Tracer) -> None:
    """From now on, ``tracer`` is told. There is one in a process."""
    _tracers[:] = [tracer]


def tracer() -> Tracer | None:
    """Who is told; None for nobody."""
    return _tracers[0] if _tracers else None


def span(name: str, **attributes: str | int) -> AbstractContextManager[None]:
    """Around something that this program does by itself: public names and numbers alone."""
    return _tracers[0].span(name, attributes) if _tracers else contextlib.nullcontext()

"""What happens in this process, for whoever measures or traces it.

An observer gets calls that ended, contributions and events of the log. A tracer gets spans: what the process does for a
task, and its calls to other programs. Nothing is kept here. Without an observer, a call costs one comparison; without a
tracer, nothing is sent.

Devices have no tracer: their calls begin no trace, and what they send about one is not looked at. Only programs with a
certificate, at control listeners, go on with a caller's trace.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Observer(Protocol):
    """Who measures. Its methods may be called from any thread, and return at once."""

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """A call of ``method`` (``/package.Service/Method``) ended with a status code."""

    def contribution(self, refusal: str) -> None:
        """A contribution was answered; ``refusal`` is the reason, empty if it was accepted."""

    def logged(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """An event went to the log."""

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """``value`` says how large something is now; ``name`` is one of a closed set. The last one said is asked."""

    def figures(self, fields: Mapping[str, object]) -> None:
        """The figures of a task's newest release, as its event ``round_released`` has them."""


_observers: list[Observer] = []
_serving, _draining = threading.Event(), threading.Event()
# What programs said of themselves before somebody observed them.
_watched: dict[str, Callable[[], float]] = {}


def observe(observer: Observer) -> None:
    """From now on, ``observer`` is told. There is one in a process."""
    _observers[:] = [observer]
    for name, value in _watched.items():
        observer.watch(name, value)


def observed() -> bool:
    """Whether anybody is told."""
    return bool(_observers)


def serve() -> None:
    """This program takes calls from now on."""
    _serving.set()


def drain() -> None:
    """This program ends: it answers what it has begun, and takes nothing new."""
    _draining.set()


def unready() -> str:
    """Why this program takes no calls: "starting" or "draining"; empty while it takes them."""
    if _draining.is_set():
        return "draining"
    return "" if _serving.is_set() else "starting"


def call_ended(method: str, code: str, seconds: float) -> None:
    """Tells of a call."""
    for observer in _observers:
        observer.call_ended(method, code, seconds)


def contribution(refusal: str = "") -> None:
    """Tells of a contribution."""
    for observer in _observers:
        observer.contribution(refusal)


def logged(level: str, event: str, fields: Mapping[str, object]) -> None:
    """Tells of an event."""
    for observer in _observers:
        observer.logged(level, event, fields)


def figures(fields: Mapping[str, object]) -> None:
    """Tells of a release that an earlier run of the program made."""
    for observer in _observers:
        observer.figures(fields)


def watch(name: str, value: Callable[[], float]) -> None:
    """Says how large something of this program is, whenever it is asked."""
    _watched[name] = value
    for observer in _observers:
        observer.watch(name, value)


class Tracer(Protocol):
    """Who traces. Thread-safe."""

    def span(self, name: str, attributes: dict[str, str | int]) -> AbstractContextManager[None]:
        """Around something that this program does by itself."""

    def call(self, method: str) -> AbstractContextManager[list[tuple[str, str]]]:
        """Around a call of ``method``; gives the metadata that it takes along. Outside of spans it does nothing."""

    def serve(self, method: str, metadata: Iterable[tuple[str, Any]]) -> AbstractContextManager[None]:
        """Around the answer to a call that came with ``metadata``. Of a caller outside of spans it does nothing."""


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

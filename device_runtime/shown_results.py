"""Results of one service that the person may look at, until the program ends: the view renders them when it shows them.

What ``on_execute`` found is private and lies in memory alone; the app holds a number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from device_runtime.isolated import IsolatedHost
from device_runtime.isolated.host import Result
from device_runtime.store import Store
from device_runtime.view import ResultPage
from odp.errors import ConfigurationError

MOST_RESULTS = 64
_LONGEST_TITLE = 120


@dataclass(frozen=True)
class _Held:
    result: Result = field(repr=False)
    app: str
    time: float


class ShownResults:
    """The newest ``MOST_RESULTS`` results; a ``Results`` and a ``Recorder`` of the view. Thread-safe.

    Args:
      service: its name.
      host: runs it.
      open_store: opens the device's store, for one use.
      clock: seconds since the epoch.
    """

    def __init__(
        self, service: str, host: IsolatedHost, open_store: Callable[[], Store], clock: Callable[[], float]
    ) -> None:
        self._service, self._host, self._open, self._clock = service, host, open_store, clock
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def add(self, result: Result, *, app: str) -> str:
        """Keeps a result; the number to ask for it with."""
        id = str(result.request)
        with self._lock:
            self._held[id] = _Held(result, app, self._clock())
            while len(self._held) > MOST_RESULTS:
                self._held.popitem(last=False)
        return id

    def column(self, id: str, name: str) -> Any:
        """One column of a result, for the runtime alone. Raises ConfigurationError where it is not there (any more)."""
        with self._lock:
            held = self._held.get(id)
        if held is None or name not in held.result.result:
            raise ConfigurationError(f"Expected result {id} to be one of this program with a column {name!r}")
        return held.result.result[name]

    def results(self) -> Sequence[ResultPage]:
        """All of them, newest first, without their pages."""
        with self._lock:
            return [self._page(id, held, "") for id, held in reversed(self._held.items())]

    def result(self, id: str) -> ResultPage | None:
        """One of them, rendered now. Raises HandlerFailed, StateError."""
        with self._lock:
            held = self._held.get(id)
        if held is None:
            return None
        with self._open() as store:
            html = self._host.render(store.data(self._service), held.result, now=self._clock())
        return self._page(id, held, html)

    def __call__(self, result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        """Tells the service what the person did on a page. Raises HandlerFailed, StateError."""
        with self._open() as store:
            self._host.event(store.data(self._service), type, dict(values), now=self._clock(), request=int(result.id))

    def _page(self, id: str, held: _Held, html: str) -> ResultPage:
        title = held.result.result.get("title")
        title = title[:_LONGEST_TITLE] if isinstance(title, str) and title else f"{self._service} for {held.app}"
        return ResultPage(id=id, service=self._service, title=title, time=held.time, html=html)

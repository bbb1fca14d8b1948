"""Results of one service that the person may look at, until the program ends: the view renders them when it shows them.

What ``on_execute`` finds is private and lies in memory alone; the app holds a number. It is computed in a thread of its
own, so that the app sees neither how long that takes nor that it fails.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from device_runtime.isolated import Asked, HandlerFailed, IsolatedHost, Result
from device_runtime.store import Store
from device_runtime.view import ResultPage
from odp.errors import ConfigurationError, OdpError

MOST_RESULTS = 64
_LONGEST_TITLE = 120
_FAILED = "<p>The service could not make this: {reason}.</p>"


@dataclass(frozen=True)
class _Held:
    result: Future[Result] = field(repr=False)
    app: str
    time: float

    def found(self) -> Result | None:
        """What was found, once it is there; None where the service failed or the store could not keep it."""
        try:
            return self.result.result()
        except OdpError:
            return None


class ShownResults:
    """The newest ``MOST_RESULTS`` results; a ``Results`` and a ``Recorder`` of the view. Thread-safe.

    Args:
      service: its name.
      host: runs it.
      open_store: opens the device's store, for one use.
      say: told, in a line for the person, that the service failed.
      clock: seconds since the epoch.
    """

    def __init__(
        self,
        service: str,
        host: IsolatedHost,
        open_store: Callable[[], Store],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._service, self._host, self._open, self._say, self._clock = service, host, open_store, say, clock
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="service")

    def begin(self, asked: Asked) -> str:
        """Has an accepted request executed; the number to ask for its result with, at once."""
        id = str(asked.request)
        with self._lock:
            self._held[id] = _Held(self._worker.submit(self._execute, asked), asked.app, self._clock())
            while len(self._held) > MOST_RESULTS:
                self._held.popitem(last=False)
        return id

    def choice(self, id: str, column: str, choices: int) -> int:
        """A whole number below ``choices`` in a result; 0 where there is no such number. Waits for the result.

        Raises ConfigurationError where the result is not one of this program, or no longer.
        """
        with self._lock:
            held = self._held.get(id)
        if held is None:
            raise ConfigurationError(f"Expected result {id} to be one of the newest {MOST_RESULTS} of this program")
        found = held.found()
        value = None if found is None else found.result.get(column)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < choices else 0

    def results(self) -> Sequence[ResultPage]:
        """All of them, newest first, without their pages."""
        with self._lock:
            held = list(reversed(self._held.items()))
        return [self._page(id, one, "") for id, one in held if one.result.done()]

    def result(self, id: str) -> ResultPage | None:
        """One of them, rendered now; waits until it is there. Raises StateError."""
        with self._lock:
            held = self._held.get(id)
        if held is None:
            return None
        try:
            found = held.result.result()
            with self._open() as store:
                html = self._host.render(store.data(self._service), found, now=self._clock())
        except HandlerFailed as error:
            html = _FAILED.format(reason=error.reason.value)
        return self._page(id, held, html)

    def __call__(self, result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        """Tells the service what the person did on a page. Raises HandlerFailed, StateError."""
        with self._open() as store:
            self._host.event(store.data(self._service), type, dict(values), now=self._clock(), request=int(result.id))

    def close(self) -> None:
        """Waits for what is being executed; nothing is begun any more."""
        self._worker.shutdown(cancel_futures=True)

    def _execute(self, asked: Asked) -> Result:
        try:
            with self._open() as store:
                return self._host.execute(store.data(self._service), asked, now=self._clock())
        except OdpError as error:
            self._say(str(error))
            raise

    def _page(self, id: str, held: _Held, html: str) -> ResultPage:
        found = held.found()
        title = None if found is None else found.result.get("title")
        shown = title[:_LONGEST_TITLE] if isinstance(title, str) and title else f"{self._service} for {held.app}"
        return ResultPage(id=id, service=self._service, title=shown, time=held.time, html=html)

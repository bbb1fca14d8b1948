"""Results of one service that the person may look at while the program runs; the view renders them on demand.

What ``on_execute`` finds is private and lies in memory alone; the app holds a number. It is computed in a thread of its
own, so that the app sees neither how long that takes nor that it fails. Its number is drawn at random: it does not
count what other apps asked for, and none of them can name the result of another.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from device_runtime.isolated import Asked, HandlerFailed, IsolatedHost, Result
from device_runtime.store.store import Store
from device_runtime.view import ResultPage
from odp.errors import ConfigurationError, DataError, OdpError

MOST_RESULTS = 64
_LONGEST_TITLE = 120
_FAILED = "<p>The service could not make this: {reason}.</p>"


@dataclass(frozen=True)
class Shown:
    """What an app holds of a result: its number."""

    id: str


@dataclass(frozen=True)
class _Held:
    result: Future[Result] = field(repr=False)
    request: int
    app: str
    time: float

    def outcome(self) -> Result | None:
        """The result; None if the service failed or the store could not keep it."""
        try:
            return self.result.result()
        except Exception:  # whatever it was would tell the app something of what it was about
            return None


class Notes:
    """Failures of a service's private handlers, newest first, for the person's page alone. Thread-safe."""

    def __init__(self, *, most: int = 20) -> None:
        self._lines: deque[str] = deque(maxlen=most)

    def add(self, line: str) -> None:
        """Adds a line; a repeated line moves to the newest place."""
        with contextlib.suppress(ValueError):
            self._lines.remove(line)
        self._lines.append(line)

    def lines(self) -> tuple[str, ...]:
        """The lines, newest first."""
        return tuple(reversed(self._lines))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Records an error within as a line."""
        try:
            yield
        except OdpError as error:
            self.add(str(error))
            raise

    @contextlib.contextmanager
    def failures(self, kind: type[OdpError] = HandlerFailed) -> Iterator[None]:
        """Records an error of the given kind within as a line."""
        try:
            yield
        except kind as error:
            self.add(str(error))


class ShownResults:
    """The newest ``MOST_RESULTS`` results; implements ``Results`` and ``Recorder`` of the view. Thread-safe.

    Args:
      service: its name.
      host: runs its handlers that see private data.
      open_store: opens the device's store, for one use.
      say: a callback for lines to the person about failures of the service.
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

    def begin(self, accepted: Asked) -> str:
        """Starts the execution of an accepted request; returns the number of its result at once."""
        id = secrets.token_hex(16)
        with self._lock:
            executed = self._worker.submit(self._execute, accepted)
            self._held[id] = _Held(executed, accepted.request, accepted.app, self._clock())
            while len(self._held) > MOST_RESULTS:
                # A result that nobody can look at any more is not computed: no app makes the queue grow.
                self._held.popitem(last=False)[1].result.cancel()
        return id

    def choice(self, id: str, column: str, choices: int, *, app: str) -> int:
        """A whole number below ``choices`` from a result; 0 if it has no such number. Waits for the result.

        Raises ConfigurationError where ``app`` asked for no such result in this program, or it is none of the newest.
        """
        with self._lock:
            held = self._held.get(id)
        if held is None or held.app != app:
            raise ConfigurationError(
                f"Expected result {id} to be one of the newest {MOST_RESULTS} of this program, for app={app!r}"
            )
        outcome = held.outcome()
        value = None if outcome is None else outcome.result.get(column)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < choices else 0

    def results(self) -> Sequence[ResultPage]:
        """All results without their pages, newest first."""
        with self._lock:
            held = list(reversed(self._held.items()))
        return [self._page(id, shown, "") for id, shown in held if shown.result.done()]

    def result(self, id: str) -> ResultPage | None:
        """One result, rendered now; waits for its execution. Raises StateError."""
        with self._lock:
            held = self._held.get(id)
        if held is None:
            return None
        try:
            outcome = held.result.result()
            with self._open() as store:
                html = self._host.render(store.data(self._service), outcome, now=self._clock())
        except CancelledError:
            return None
        except HandlerFailed as error:
            html = _FAILED.format(reason=error.reason.value)
        return self._page(id, held, html)

    def __call__(self, result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        """Reports to the service what the person did on a page. Raises HandlerFailed, StateError."""
        with self._lock:
            held = self._held.get(result.id)
        if held is None:
            return
        with self._open() as store:
            data = store.data(self._service)
            self._host.event(data, type, dict(values), now=self._clock(), request=held.request)

    def close(self) -> None:
        """Waits for executions in progress, and starts no more."""
        self._worker.shutdown(cancel_futures=True)

    def _execute(self, accepted: Asked) -> Result:
        try:
            with self._open() as store:
                return self._host.execute(store.data(self._service), accepted, now=self._clock())
        except OdpError as error:
            self._say(str(error))
            raise

    def _page(self, id: str, held: _Held, html: str) -> ResultPage:
        outcome = held.outcome()
        title = None if outcome is None else outcome.result.get("title")
        shown = title[:_LONGEST_TITLE] if isinstance(title, str) and title else f"{self._service} for {held.app}"
        return ResultPage(id=id, service=self._service, title=shown, time=held.time, html=html)


class NoResults:
    """Of a device without a service."""

    def results(self) -> tuple[()]:
        """None."""
        return ()

    def result(self, id: str) -> None:
        """None."""

    def __call__(self, result: object, type: str, values: Mapping[str, str]) -> None:
        """There is no page that an event could come from."""
        raise DataError("this device has no service")

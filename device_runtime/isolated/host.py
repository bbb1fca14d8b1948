"""Runs a developer's service, one process per call, and stores what its contracts return.

See ``odp.isolated.IsolatedService`` for the contracts, and ``odp.isolated.RIGHTS`` for what each handler may read and
write. The runtime holds to both whatever the developer's process does.
"""

from __future__ import annotations

import base64
import math
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from device_runtime.isolated.code import ServiceCode
from device_runtime.isolated.conversation import Conversation, call_of
from device_runtime.isolated.limits import CallLimits, HandlerFailed, Reason
from device_runtime.isolated.precedence import Precedence
from device_runtime.isolated.process import CallProcess, Lane, Walls
from device_runtime.isolated.replies import Reply, Unacceptable
from device_runtime.isolated.stores import ServiceStore
from odp._system.closing import Closing
from odp.errors import DataError
from odp.isolated import Columns, Declined, Example, Handler

# They have a template of their own: what they can find out of the calls before theirs is nothing private either.
_SEE_NOTHING_PRIVATE = frozenset({Handler.ON_REQUEST, Handler.ON_DOWNLOAD})
_FIRST_REST, _LONGEST_REST = 60.0, 3600.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class Asked:
    """An accepted request: its number in the store, and the input of ``on_execute``."""

    request: int
    app: str
    work: Columns = field(repr=False)


@dataclass(frozen=True)
class Result:
    """The private result of ``on_execute``; only ``on_render`` gets it."""

    request: int
    result: Columns = field(repr=False)


@dataclass(frozen=True)
class Standing:
    """For the person: how many times in a row a handler failed, for which last reason, and until when it is paused."""

    handler: Handler
    failures: int
    reason: Reason
    rests_seconds: float


@dataclass
class _Trouble:
    failures: int
    reason: Reason
    until: float


class IsolatedHost(Closing):
    """Runs one service. Thread-safe. A context manager; ``close`` ends its processes.

    One call at a time of handlers that may see private data, and beside them, in processes that have nothing to do with
    theirs, one of ``on_request`` and ``on_download``: how long a private call takes holds up nothing that an app hears.

    Its processes start with the first call, and the process of the next call is made ready while this one's result is
    used. A result is what the handler returned, checked; what it wants to write is written before it is returned.

    Args:
      code: the developer's modules.
      limits: of every call.
      accept: promises (names of ``odp.isolated.walls.PROMISES``) that the person does without where the machine does
        not keep them.
      say: a callback for lines to the person: restrictions that the machine does not enforce, and paused handlers.
      trace: a callback for the error output of the developer's process. That may hold anything that it was given: only
        for developers who try their code on data that they made up.
      clock: seconds that never go back, for rests after failures.
      precedence: keeps the handlers from the store while the device takes part; their time stands still then.

    Raises (on every call):
      StateError: the processes could not be started; or the machine does not keep a promise that ``accept`` does not
        name: nothing was given to the service.
      HandlerFailed: the handler failed; nothing was written.
    """

    def __init__(
        self,
        code: ServiceCode,
        *,
        limits: CallLimits | None = None,
        accept: Collection[str] = (),
        say: Callable[[str], None] = lambda line: None,
        trace: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        precedence: Precedence | None = None,
    ) -> None:
        self._limits = limits or CallLimits()
        self._say, self._trace, self._clock = say, trace, clock
        self._precedence = Precedence() if precedence is None else precedence
        walls = Walls(accept, say)
        self._lanes = {private: Lane(code, self._limits, walls) for private in (False, True)}
        self._troubles: dict[Handler, _Trouble] = {}

    # The handlers

    def request(self, store: ServiceStore, app: str, query: Columns, *, now: float) -> Asked | Declined:
        """Calls ``on_request``; stores an accepted request."""

        def keep(reply: Reply) -> Asked | Declined:
            if "declined" in reply.value:
                return Declined(reply.value["declined"])
            return Asked(store.add_request(app, query, time=now), app, reply.value["accepted"])

        return self._run(Handler.ON_REQUEST, store, {"app": app, "asked": query, "time": now}, keep)

    def execute(self, store: ServiceStore, accepted: Asked, *, now: float) -> Result:
        """Calls ``on_execute``; stores the rows of the request and the local data."""

        def keep(reply: Reply) -> Result:
            with store.transaction():
                store.answer(accepted.request, reply.writes.rows)
                store.change(reply.writes.local, time=now)
            return Result(accepted.request, reply.value["result"])

        handler_input = {"request": accepted.request, "app": accepted.app, "work": accepted.work, "time": now}
        return self._run(Handler.ON_EXECUTE, store, handler_input, keep)

    def render(self, store: ServiceStore, result: Result, *, now: float) -> str:
        """Calls ``on_render``; returns the HTML of the page. It is private, and may be hostile."""
        handler_input = {"request": result.request, "result": result.result, "time": now}
        return self._run(Handler.ON_RENDER, store, handler_input, lambda reply: str(reply.value["html"]))

    def event(self, store: ServiceStore, type: str, data: Columns, *, now: float, request: int | None = None) -> int:
        """Calls ``on_event``; stores its events and the local data. Returns the number of added events."""

        def keep(reply: Reply) -> int:
            with store.transaction():
                for event in reply.writes.events:
                    store.add_event(event.type, event.data, time=now, request=request)
                store.change(reply.writes.local, time=now)
            return len(reply.writes.events)

        return self._run(Handler.ON_EVENT, store, {"type": type, "data": data, "time": now, "request": request}, keep)

    def download(self, store: ServiceStore, version: str, entries: Mapping[str, bytes], *, now: float) -> int:
        """Calls ``on_download``; replaces the downloads by the rows that it returns. Returns their number."""

        def keep(reply: Reply) -> int:
            keys = set(reply.writes.downloads)
            # It chooses among what came: a row of its own making is none.
            if not keys <= set(entries):
                raise Unacceptable(Reason.FORBIDDEN)
            store.download(version, {key: value for key, value in entries.items() if key in keys}, time=now)
            return len(keys)

        packed = {key: base64.b64encode(value).decode("ascii") for key, value in entries.items()}
        return self._run(Handler.ON_DOWNLOAD, store, {"version": version, "entries": packed, "time": now}, keep)

    def training_examples(self, store: ServiceStore, *, population: str, task: str, now: float) -> tuple[Example, ...]:
        """Calls ``on_training_examples``; returns its examples, which the task's data specification bounds later."""

        def keep(reply: Reply) -> tuple[Example, ...]:
            return tuple(Example(columns) for columns in reply.value["examples"])

        handler_input = {"population": population, "task": task, "time": now}
        return self._run(Handler.ON_TRAINING_EXAMPLES, store, handler_input, keep)

    # For the person

    def restrictions(self) -> tuple[str, ...]:
        """Names of ``odp.isolated.walls.RESTRICTIONS`` that hold here; starts the processes. Raises StateError."""
        lane = self._lanes[True]
        with lane.lock:
            return lane.restrictions()

    def standing(self) -> list[Standing]:
        """The handlers whose last call failed."""
        now = self._clock()
        return [
            Standing(handler, trouble.failures, trouble.reason, max(0.0, trouble.until - now))
            for handler, trouble in self._troubles.items()
        ]

    def close(self) -> None:
        """Ends all processes of the service. A later call starts them again."""
        for lane in self._lanes.values():
            lane.close()

    # One call

    def _run(
        self,
        handler: Handler,
        store: ServiceStore,
        handler_input: Mapping[str, Any],
        keep: Callable[[Reply], _T],
    ) -> _T:
        """Calls the handler, and stores by ``keep`` what its contract allows; a failure of either is one of the
        handler.
        """
        lane = self._lanes[handler not in _SEE_NOTHING_PRIVATE]
        with lane.lock:
            trouble = self._troubles.get(handler)
            left = 0.0 if trouble is None else trouble.until - self._clock()
            if left > 0:
                raise HandlerFailed(handler, Reason.RESTING, seconds=left)
            call = call_of(handler, handler_input)
            process = lane.take()
            conversation = Conversation(process.channel, self._limits, precedence=self._precedence, trace=self._trace)
            try:
                reply = conversation.reply(handler, store, call, end=time.monotonic() + self._limits.seconds)
                outcome, _ = self._precedence.in_turn(store, lambda: keep(reply))
            except Unacceptable as error:
                raise self._failed(handler, error.reason, process, lane) from None
            except DataError:
                raise self._failed(handler, Reason.NOT_STORED, process, lane) from None
            except BaseException:
                # The store failed, or the caller is interrupted: the process must not be asked again.
                lane.end(process)
                raise
            self._troubles.pop(handler, None)
            lane.end(process)
            return outcome

    def _failed(self, handler: Handler, reason: Reason, process: CallProcess, lane: Lane) -> HandlerFailed:
        if lane.failed(process, ended=reason is Reason.ENDED) == signal.SIGKILL:
            reason = Reason.LIMIT
        trouble = self._troubles.setdefault(handler, _Trouble(0, reason, -math.inf))
        trouble.failures += 1
        trouble.reason = reason
        if trouble.failures >= self._limits.failures:
            rest = min(_FIRST_REST * 2.0 ** min(trouble.failures - self._limits.failures, 10), _LONGEST_REST)
            trouble.until = self._clock() + rest
            self._say(
                f"{handler.value} of the service failed {trouble.failures} times in a row, the last "
                f"time because {reason.value}; it is paused for {rest:.0f} s"
            )
        return HandlerFailed(handler, reason)

"""Threads that work for an event loop: a fixed number, each started on first use."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


class Promise:
    """A result that another thread sets once. A ``concurrent.futures.Future`` costs several times as much."""

    __slots__ = ("_callbacks", "_error", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None once it is settled.
        self._callbacks: list[Callable[[Promise], object]] | None = []
        self._result: Any = None
        self._error: Exception | None = None

    def set_result(self, result: Any) -> None:
        """Settles it. Once."""
        self._result = result
        self._settle()

    def set_exception(self, error: Exception) -> None:
        """Settles it with an error. Once."""
        self._error = error
        self._settle()

    def add_done_callback(self, callback: Callable[[Promise], object]) -> None:
        """Calls ``callback``, which must not raise, in the thread that settles it; at once if it is settled."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback(self)

    def result(self, timeout: float | None = None) -> Any:
        """The result; waits for it. Raises the error, and TimeoutError after ``timeout`` seconds."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._result

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error; waits for it. Raises TimeoutError after ``timeout`` seconds."""
        if self._callbacks is not None:
            settled = threading.Event()
            self.add_done_callback(lambda _: settled.set())
            if not settled.wait(timeout):
                raise TimeoutError
        return self._error

    def _settle(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


@dataclass(frozen=True)
class Later:
    """A servicer method's substitute for a reply that takes time, without a waiting thread.

    ``reply`` makes the reply of the result of ``future``.
    """

    future: Future[Any] | Promise
    reply: Callable[[Any], Any]


class Mailbox:
    """Functions that other threads schedule on a loop's thread; several at once wake the loop only once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._functions: deque[Callable[[], object]] = deque()
        self._waking = False

    def put(self, function: Callable[[], object]) -> None:
        """Schedules ``function``."""
        self._functions.append(function)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Before the functions: whoever puts one from here on wakes the loop again.
        self._waking = False
        while self._functions:
            self._functions.popleft()()


class Job:
    """A piece of work, and the loop's future for its result."""

    __slots__ = ("answer", "error", "result", "seconds", "weight", "work")

    def __init__(self, work: Callable[[], Any], answer: asyncio.Future[Any], weight: int) -> None:
        self.work = work
        self.answer = answer
        self.weight = weight
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0

    def run(self) -> None:
        """Runs the work."""
        started = time.monotonic()
        try:
            self.result = self.work()
        except BaseException as error:  # whatever it is, its caller must not wait for ever
            self.error = error
        self.seconds = time.monotonic() - started

    def settle(self) -> None:
        """Sets the result if the caller still waits for it. On the loop's thread only."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)


class Workers:
    """``count`` threads. ``ended`` is called on the loop's thread for each finished job."""

    def __init__(self, count: int, mailbox: Mailbox, ended: Callable[[Job], object]) -> None:
        self._count, self._mailbox, self._ended = count, mailbox, ended
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = self._busy = 0

    @property
    def idle(self) -> bool:
        """Whether a job would start at once. On the loop's thread only."""
        return self._busy < self._count

    def start(self, job: Job) -> None:
        """Passes a job to an idle thread. On the loop's thread only."""
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name="rpc", daemon=True).start()
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends each thread after its job. On the loop's thread only."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            self._mailbox.put(self._finished(job))
            del job  # an idle thread holds no request

    def _finished(self, job: Job) -> Callable[[], object]:
        def finished() -> None:
            self._busy -= 1
            self._ended(job)

        return finished

"""Places for calls: a limit on those that are received at once, and a bounded queue for the worker threads.

Each call that is received may take memory up to its size limit. A newcomer gets a place at once where its connection
has few. Where all places are taken, the connection with the most gives up the one that it has held longest: silent
callers push each other, while a request that is really on its way takes moments. Further calls of a connection wait for
a place that becomes free: they push nobody and cost little.

In the queue, connections alternate. What calls hold in memory is bounded too: their requests, from the queue until the
reply is there. A call that finds no place, or loses it to somebody with fewer calls, or gets no thread in time, gets a
retry window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from odp.errors import Busy
from odp.transport.backpressure import RetryWindows
from odp.transport.call import Call
from odp.transport.fairness import Fair
from odp.transport.limits import Limits
from odp.transport.workers import Job, Later, Mailbox, Promise, Workers

# What a call costs beside its request.
_CALL_BYTES = 2**14
_BUSY = "this service has too many calls; try again in a moment"


class Dispatcher:
    """Runs work of calls on ``workers`` threads; use it only on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, *, workers: int) -> None:
        self._loop = loop
        self._limits = limits
        self._queue: Fair[Call] = Fair(
            most=limits.queued, most_of_address=limits.of_address(limits.queued), newest=True
        )
        # The job of each call in the queue, and when it has to have a thread: the earliest first.
        self._jobs: dict[Call, tuple[Job, float]] = {}
        self._mailbox = Mailbox(loop)
        self._workers = Workers(workers, self._mailbox, self._returned)
        # Of requests that have left the queue and are not answered yet.
        self._working_bytes = 0
        self._windows = RetryWindows(at_once=workers, clock=loop.time)

    def busy(self) -> Busy:
        """The error for a call without a place."""
        return self._windows.busy(_BUSY, waiting=len(self._queue))

    async def run(self, call: Call, work: Callable[[], Any], *, size: int = 0) -> Any:
        """The result of ``work`` on a worker thread; ``size`` is the size of its request. Raises Busy."""
        job = Job(work, self._loop.create_future(), size + _CALL_BYTES)
        self._jobs[call] = job, self._loop.time() + self._limits.queue_seconds
        if (evicted := self._queue.add(call, job.weight)) is not None:
            self._refuse(evicted)
        while len(self._queue) and self._held_bytes > self._limits.queued_bytes:
            self._refuse(self._queue.lighten(call))
        self._start_jobs()
        try:
            return await job.answer
        finally:
            # Its caller is gone, or it was ended, before it had a thread.
            if self._queue.discard(call):
                del self._jobs[call]

    async def run_here(self, work: Callable[[], Any], *, size: int) -> Any:
        """The result of ``work``, which must not block. Raises Busy."""
        job = Job(work, self._loop.create_future(), size + _CALL_BYTES)
        if self._held_bytes + job.weight > self._limits.queued_bytes:
            raise self.busy()
        self._working_bytes += job.weight
        job.run()
        self._returned(job)
        return await job.answer

    def refuse_overdue(self) -> None:
        """Refuses the calls that have waited too long for a thread."""
        now = self._loop.time()
        for call in [call for call, (_, until) in self._jobs.items() if until <= now]:
            self._queue.discard(call)
            self._refuse(call)

    def stop(self) -> None:
        """Ends each thread after its work."""
        self._workers.stop()

    @property
    def _held_bytes(self) -> int:
        return self._working_bytes + self._queue.weight

    def _start_jobs(self) -> None:
        while self._workers.idle and (call := self._queue.take()) is not None:
            job, _ = self._jobs.pop(call)
            self._working_bytes += job.weight
            self._workers.start(job)

    def _returned(self, job: Job) -> None:
        """The work of a job has returned its result, or the promise of one."""
        self._windows.took(job.seconds)
        if isinstance(job.result, Later):
            job.result.future.add_done_callback(lambda future: self._mailbox.put(lambda: self._keep(job, future)))
        else:
            self._settle(job)
        self._start_jobs()

    def _keep(self, job: Job, future: Future[Any] | Promise) -> None:
        try:
            job.result = job.result.reply(future.result())
        except Exception as error:  # for whoever waits for the answer
            job.error = error
        self._settle(job)

    def _settle(self, job: Job) -> None:
        self._working_bytes -= job.weight
        job.settle()

    def _refuse(self, call: Call) -> None:
        """Ends a call from the queue with a retry window."""
        job, _ = self._jobs.pop(call)
        job.answer.set_exception(self.busy())


class Reception:
    """The places of a listener; use it only on the loop's thread. ``busy`` is the error for calls without a place."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, busy: Callable[[], Busy]) -> None:
        self._loop = loop
        self._limits = limits
        self._busy = busy
        self._receiving: Fair[Call] = Fair(
            most=limits.receiving, most_of_address=limits.of_address(limits.receiving), newest=False
        )
        self._arrived: Fair[Call] = Fair(
            most=limits.arrived, most_of_address=limits.of_address(limits.arrived), newest=True
        )
        self._places: dict[Call, asyncio.Future[None]] = {}

    async def enter(self, call: Call) -> None:
        """Waits for a place; ``leave`` comes in any case. Raises Busy; a call that loses its place later ends so."""
        connection = call.connection
        few = self._receiving.of_connection(connection) < self._limits.receiving_per_connection
        if few and not self._arrived.of_connection(connection):
            self._receive(call)
            return
        self._places[call] = place = self._loop.create_future()
        evicted = self._arrived.add(call)
        if evicted is not None and not (lost := self._places.pop(evicted)).done():
            lost.set_exception(self._busy())
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await place
        except TimeoutError:
            raise self._busy() from None
        finally:
            if self._arrived.discard(call):
                del self._places[call]

    def leave(self, call: Call) -> None:
        """Ends the reception of a call, which may have no place any more, or not yet."""
        # A place that somebody else took is not free.
        if self._receiving.discard(call):
            self._pass_on(call.connection)

    def _receive(self, call: Call) -> None:
        if (evicted := self._receiving.add(call)) is not None:
            evicted.end_now(self._busy())

    def _pass_on(self, connection: str) -> None:
        while (following := self._arrived.take_of(connection) or self._arrived.take()) is not None:
            place = self._places.pop(following)
            if not place.done():  # otherwise its caller has just gone, and the place is for the next one
                self._receive(following)
                place.set_result(None)
                return

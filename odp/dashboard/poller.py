"""One poller for all viewers: reads the server while somebody watches, and wakes the viewers when something changed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from odp.dashboard.source import (
    AuditFacts,
    LogFacts,
    Reader,
    RefusalFacts,
    ServerSource,
    TaskFacts,
    one_line,
    planned_epsilon,
)
from odp.errors import OdpError

#: Seconds between two readings, at first and at most while the server does not answer.
INTERVAL, LONGEST = 1.0, 10.0
#: A reading goes on for so long after the last page was asked for.
IDLE_SECONDS = 30.0
_MOST_KEPT = 256


@dataclass(frozen=True)
class Results:
    """What a task released, after ``releases`` rounds or reports."""

    releases: int
    text: str = ""
    values: dict[str, object] | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Snapshot:
    """What the page shows. ``version`` grows with each change; ``trouble`` is why the server cannot be read now."""

    version: int
    tasks: tuple[TaskFacts, ...]
    log: LogFacts | None
    trouble: str
    since: float
    refusals: RefusalFacts | None = None

    def task(self, id: str) -> TaskFacts | None:
        """The task of a full id."""
        return next((task for task in self.tasks if task.id == id), None)


class Poller:
    """Reads a source. All methods belong to one event loop; the source's calls run in threads."""

    def __init__(
        self, source: ServerSource, *, interval: float = INTERVAL, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self.snapshot = Snapshot(0, (), None, "the server has not answered yet", clock())
        self.audit: AuditFacts | str | None = None
        self.auditing = False
        self.ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interval, self._clock = interval, clock
        self._reader = Reader()
        self._planned: OrderedDict[str, float | None] = OrderedDict()
        self._results: OrderedDict[str, Results] = OrderedDict()
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._last_wanted = 0.0
        self._watchers = self._readings = 0
        self._jobs: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Reads until it is cancelled: at once while somebody watches, and not at all while nobody does."""
        self._loop = asyncio.get_running_loop()
        pause = self._interval
        while True:
            await self._read()
            pause = min(2 * pause, LONGEST) if self.snapshot.trouble else self._interval
            await asyncio.sleep(pause)
            if not self._watchers and time.monotonic() - self._last_wanted > IDLE_SECONDS:
                self._wanted.clear()
                await self._wanted.wait()

    def end_streams(self) -> None:
        """Makes every stream end, as before a stop. From any thread."""
        self.ended = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._start("end", self._touch()))

    async def close(self) -> None:
        """Ends what runs beside the reading."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    async def current(self) -> Snapshot:
        """The newest snapshot; right after the start, and after a rest, that of the reading that now begins."""
        rested = not self._watchers and time.monotonic() - self._last_wanted > IDLE_SECONDS
        self._last_wanted = time.monotonic()
        self._wanted.set()
        if rested or not self.snapshot.version:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next_reading(), 2.0)
        return self.snapshot

    async def after(self, version: int, seconds: float) -> Snapshot | None:
        """The first snapshot that is newer than ``version``; None after ``seconds``."""
        self._watchers += 1
        self._wanted.set()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.snapshot.version > version)
            return self.snapshot
        except TimeoutError:
            return None
        finally:
            self._watchers -= 1
            self._last_wanted = time.monotonic()

    def planned(self, task: TaskFacts) -> float | None:
        """ε once all planned rounds are released; None while it is computed, and where there is no plan."""
        if task.id not in self._planned:
            self._start(f"plan {task.id}", self._plan(task))
        return self._planned.get(task.id)

    def results(self, task: TaskFacts) -> Results | None:
        """What the task released; None before it is read."""
        results = self._results.get(task.id)
        news = task.releases or task.reports
        if news and (results is None or results.releases != news):
            self._start(f"results {task.id}", self._read_results(task, news))
        return results

    def start_audit(self) -> None:
        """Begins an audit of the whole log, unless one runs."""
        self._start("audit", self._audit())

    async def refresh(self) -> None:
        """Reads once more at once, as after a change."""
        await self._read()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        # One job of a name at a time, and few at all: viewers cannot pile work up.
        if name in self._busy or len(self._busy) >= 4:
            work.close()  # nobody awaits it
            return
        self._busy.add(name)
        job: asyncio.Task[None] = asyncio.create_task(work)
        self._jobs.add(job)

        def done(ended: asyncio.Task[None]) -> None:
            self._jobs.discard(ended)
            self._busy.discard(name)

        job.add_done_callback(done)

    async def _next_reading(self) -> None:
        async with self._changed:
            before = self._readings
            await self._changed.wait_for(lambda: self._readings > before)

    async def _read(self) -> None:
        try:
            tasks, log, refusals = await asyncio.to_thread(self._ask)
            trouble = ""
        except Exception as error:  # whatever it is, the page goes on trying
            snapshot = self.snapshot
            trouble = one_line(error) if isinstance(error, OdpError) else f"unforeseen {type(error).__name__}"
            tasks, log, refusals = snapshot.tasks, snapshot.log, snapshot.refusals
        before = self.snapshot
        self._readings += 1
        last = before.tasks, before.log, before.trouble, before.refusals
        if (tasks, log, trouble, refusals) != last or not before.version:
            since = before.since if bool(trouble) == bool(before.trouble) and before.version else self._clock()
            self.snapshot = Snapshot(before.version + 1, tasks, log, trouble, since, refusals)
        async with self._changed:
            self._changed.notify_all()

    def _ask(self) -> tuple[tuple[TaskFacts, ...], LogFacts | None, RefusalFacts | None]:
        return self._reader.read_all(self.source.tasks()), self.source.log(), self.source.refusals()

    async def _touch(self) -> None:
        """What lies beside the snapshot changed: the pages are to be drawn again."""
        self.snapshot = replace(self.snapshot, version=self.snapshot.version + 1)
        async with self._changed:
            self._changed.notify_all()

    async def _plan(self, task: TaskFacts) -> None:
        try:
            planned = await asyncio.to_thread(planned_epsilon, task.definition)
        except OdpError:
            planned = None
        self._planned[task.id] = planned
        while len(self._planned) > _MOST_KEPT:
            self._planned.popitem(last=False)
        await self._touch()

    async def _read_results(self, task: TaskFacts, news: int) -> None:
        try:
            text, values = await asyncio.to_thread(self.source.results, bytes.fromhex(task.id))
            results = Results(news, text, values)
        except OdpError as error:
            results = Results(news, trouble=one_line(error))
        self._results[task.id] = results
        while len(self._results) > _MOST_KEPT:
            self._results.popitem(last=False)
        await self._touch()

    async def _audit(self) -> None:
        self.auditing = True
        await self._touch()
        try:
            self.audit = await asyncio.to_thread(self.source.audit)
        except OdpError as error:
            self.audit = one_line(error)
        finally:
            self.auditing = False
        await self._touch()

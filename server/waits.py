"""What each task waits for and until when; and the retries of a failed step, which are limited.

- A step that another party refused, and would refuse again, ends the task at once: it does not come here.
- If a party is unavailable, or the operator has to repair something, the step is retried after a time that doubles up
  to ``LONGEST_SECONDS``. The task fails after ``MOST_SECONDS`` of failures in a row.
- An unforeseen error mostly repeats: the task fails after ``MOST_UNFORESEEN`` of them in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from odp.transport.backoff import pause_after

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
MOST_SECONDS = 7 * 24 * 3600.0
MOST_UNFORESEEN = 10


@dataclass(frozen=True)
class Wait:
    """Why a task waits, in one line; ``until`` is in seconds since the epoch, or None if it is unknown."""

    reason: str
    until: float | None = None


#: Of a task whose developer paused it.
PAUSED = Wait("paused: no further round opens until `odp task resume`")


@dataclass(frozen=True)
class Failures:
    """Failures in a row: number, of which ``unforeseen``, since when and until when, by a clock that only grows."""

    count: int
    unforeseen: int
    since: float
    due: float

    @property
    def pause(self) -> float:
        """Seconds until the next attempt, unless another party asked for more."""
        return pause_after(self.count, first=FIRST_SECONDS, longest=LONGEST_SECONDS)


class Waits:
    """The waits of all tasks of a driver. Thread-safe.

    Args:
        clock: seconds since the epoch, for people.
        monotonic: seconds that only grow, for decisions.
    """

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures: dict[bytes, Failures] = {}
        self._waits: dict[bytes, Wait] = {}

    def of(self, task: bytes) -> Wait | None:
        """The wait of ``task``; None if it is running, or over."""
        with self._lock:
            return self._waits.get(task)

    def is_due(self, task: bytes) -> bool:
        """Whether a step of ``task`` may be tried now."""
        with self._lock:
            failures = self._failures.get(task)
            return failures is None or self._monotonic() >= failures.due

    def keep(self, tasks: Collection[bytes]) -> None:
        """Drops all other tasks."""
        with self._lock:
            self._failures = {task: entry for task, entry in self._failures.items() if task in tasks}
            self._waits = {task: entry for task, entry in self._waits.items() if task in tasks}

    def set(self, task: bytes, wait: Wait | None) -> bool:
        """Records the success of the last step of ``task``, and its next wait. True if the wait changed.

        A later ``until`` of the same reason is no other thing.
        """
        with self._lock:
            self._failures.pop(task, None)
            return self._note(task, wait)

    def failed(self, task: bytes, reason: str, *, unforeseen: bool = False, least: float = 0.0) -> Failures:
        """Records a failed step of ``task``: it is due again after a pause of at least ``least`` seconds."""
        with self._lock:
            now = self._monotonic()
            before = self._failures.get(task, Failures(0, 0, now, now))
            failures = replace(before, count=before.count + 1, unforeseen=before.unforeseen + 1 if unforeseen else 0)
            pause = max(failures.pause, min(least, LONGEST_SECONDS))
            self._failures[task] = failures = replace(failures, due=now + pause)
            self._note(task, Wait(f"{reason}; tried {failures.count} times", self._clock() + pause))
            return failures

    def _note(self, task: bytes, wait: Wait | None) -> bool:
        before = self._waits.pop(task, None)
        if wait is not None:
            self._waits[task] = wait
        return (None if before is None else before.reason) != (None if wait is None else wait.reason)


def given_up(failures: Failures) -> str:
    """Why a failed step is not retried, as the end of a sentence; empty if it is."""
    if failures.unforeseen >= MOST_UNFORESEEN:
        return f"the same {failures.unforeseen} times"
    if failures.due - failures.since >= MOST_SECONDS:
        return f"for {MOST_SECONDS / 86_400:.0f} days"
    return ""

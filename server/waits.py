"""What each task waits for and until when; and when a step that failed is tried again, which is not for ever.

- A step that another party refused, and would refuse again, ends the task at once: it does not come here.
- Where a party is away, or the operator has something to mend, the step is tried again after a time that doubles up to
  ``LONGEST_SECONDS``, and given up after ``MOST_SECONDS`` of failures in a row.
- An error that nobody foresaw is mostly the same the next time: it is given up after ``MOST_UNFORESEEN`` in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
MOST_SECONDS = 7 * 24 * 3600.0
MOST_UNFORESEEN = 10


@dataclass(frozen=True)
class Wait:
    """Why a task stands still, one line; ``until`` is in seconds since the epoch, or None where nobody knows."""

    reason: str
    until: float | None = None


@dataclass(frozen=True)
class Failures:
    """In a row: how many, of which ``unforeseen``, since when and until when, by a clock that only grows."""

    count: int
    unforeseen: int
    since: float
    due: float

    @property
    def pause(self) -> float:
        """Seconds until the next try, but for what another party asked for."""
        # Bounded before the power is taken: a service may be away for days.
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.count - 1, 16))


class Waits:
    """Of all tasks of a driver. Thread-safe.

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
        """What ``task`` waits for; None where it is at work, or over."""
        with self._lock:
            return self._waits.get(task)

    def is_due(self, task: bytes) -> bool:
        """Whether a step of ``task`` may be tried now."""
        with self._lock:
            failures = self._failures.get(task)
            return failures is None or self._monotonic() >= failures.due

    def keep(self, tasks: Collection[bytes]) -> None:
        """Forgets all others."""
        with self._lock:
            self._failures = {task: found for task, found in self._failures.items() if task in tasks}
            self._waits = {task: found for task, found in self._waits.items() if task in tasks}

    def set(self, task: bytes, wait: Wait | None) -> bool:
        """Notes that the last step of ``task`` went well, and what it waits for now. True where that is another thing.

        A later ``until`` of the same reason is no other thing.
        """
        with self._lock:
            self._failures.pop(task, None)
            return self._note(task, wait)

    def failed(self, task: bytes, reason: str, *, unforeseen: bool = False, least: float = 0.0) -> Failures:
        """Notes that a step of ``task`` failed: it is due again after a pause, of ``least`` seconds or more."""
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
    """Why a step that failed so is not tried again, as the end of a sentence; empty where it is."""
    if failures.unforeseen >= MOST_UNFORESEEN:
        return f"the same {failures.unforeseen} times"
    if failures.due - failures.since >= MOST_SECONDS:
        return f"for {MOST_SECONDS / 86_400:.0f} days"
    return ""

"""Open rounds: when one closes below its goal, how old it is, and whether its release is gone.

A round that has its minimum closes by a rule of public facts: at the first of these, and never below the minimum, whose
last word has the aggregator's enclave:

1. the goal has come;
2. as many as in the task's round before have come, and nobody for a while: who declined then declines again;
3. nobody has come for longer: all eligible devices have been here;
4. ``round_seconds`` are over.

How long is a share of ``round_seconds``, so that a task whose devices come at night waits for hours, with a least time
in which each device that is awake asks once; and three times the longest pause between any two that came. All that
counts is when contributions came: a device sends one whatever its data are, and says to nobody that it declined.

The time of day may be set back, and then a round that closes by it stays open for the difference; set ahead, it closes
early. So a round's age is measured on the monotonic clock. That one begins anew with each boot: of a round that an
earlier process opened, the first look takes what the time of day says since then, from nothing to the whole time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odp.errors import ServiceError, StateError
from server.clients import AggregatorClient

#: A device that is awake asks at least every 60 s (``server.board.LATER``), and answers within 30 s.
QUIET_SECONDS = 90.0
#: A device that was in the round before comes back after at most 2 s (``server.board.SOON``).
SETTLED_SECONDS = 10.0
_QUIET_SHARE, _SETTLED_SHARE = 1 / 20, 1 / 100
_PAUSES = 3.0
_Key = tuple[bytes, int]


@dataclass
class Arrivals:
    """The times of contributions to one round, as polling sees them; seconds of a clock that only grows.

    Attributes:
      round: its number.
      contributions: how many were seen.
      last: when the newest was seen, or the round at first.
      longest: the longest time between two.
    """

    round: int
    contributions: int
    last: float
    longest: float = 0.0

    def record(self, contributions: int, *, now: float) -> None:
        """Records the present number of contributions."""
        if contributions <= self.contributions:
            return
        if self.contributions:
            self.longest = max(self.longest, now - self.last)
        self.contributions, self.last = contributions, now

    def quiet_at(self, *, before: int | None, round_seconds: float) -> float:
        """When the round counts as quiet without new contributions; ``before`` came to the round before."""
        settled = before is not None and self.contributions >= before
        least = (
            max(SETTLED_SECONDS, round_seconds * _SETTLED_SHARE)
            if settled
            else max(QUIET_SECONDS, round_seconds * _QUIET_SHARE)
        )
        return self.last + max(least, _PAUSES * self.longest)


class RoundClock:
    """Ages of rounds, in seconds. ``clock`` gives seconds since the epoch."""

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._began: dict[_Key, float] = {}

    def opened(self, task_sha256: bytes, round: int) -> None:
        """Marks a round as open from now on."""
        self._began[task_sha256, round] = self._monotonic()

    def age(self, task_sha256: bytes, round: int, *, opened: float, most: float) -> float:
        """Seconds since a round was opened, at ``opened`` by the clock; of one of an earlier process, at first look
        no less than 0 and no more than ``most``.
        """
        now = self._monotonic()
        if (task_sha256, round) not in self._began:
            self._began[task_sha256, round] = now - min(max(self._clock() - opened, 0.0), most)
        return now - self._began[task_sha256, round]

    def closed(self, task_sha256: bytes, round: int) -> None:
        """Removes a round."""
        self._began.pop((task_sha256, round), None)


def require_not_behind(aggregator: AggregatorClient, task_sha256: bytes, round: int) -> None:
    """Returns unless the release of ``round``, which the aggregator did not give, is gone because a later one was made.

    The aggregator keeps the newest release alone. A server that is one release behind gets that and goes on; one that
    is further behind lacks a model that nobody can make again.

    Raises:
        StateError: a later round was released. The task waits, as an operator may have a newer backup.
    """
    try:
        later = aggregator.progress(task_sha256, round + 1)
    except ServiceError:
        return
    if later.released:
        raise StateError(
            f"round {round} and round {round + 1} were released, and the aggregator keeps the newest release alone: "
            "this server's database is older; restore its newest backup, or cancel the task and submit it anew (what "
            "was charged stays charged)"
        )


def require_founded(aggregator: AggregatorClient, population: str) -> None:
    """Returns unless the aggregator, which refused a round, knows nothing of a population that was founded there.

    Raises:
        StateError: it runs on another state folder, or lost its own. The task waits, as an operator may mend that.
    """
    try:
        charters = aggregator.charters(population, 0)
    except ServiceError:
        return
    if not charters:
        raise StateError(
            f"the aggregator knows nothing of population {population!r}, which was founded there: it runs on another "
            "state folder, or lost its own; start it on that folder, or on the newest backup of it, or cancel the task "
            "(what was charged stays charged)"
        )

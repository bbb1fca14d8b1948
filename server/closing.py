"""When an open round that has its minimum closes below its goal: a rule of public facts.

A round closes at the first of these, and never below the minimum, whose last word has the aggregator's enclave:

1. the goal has come;
2. as many as in the task's round before have come, and nobody for a while: who declined then declines again;
3. nobody has come for longer: all eligible devices have been here;
4. ``round_seconds`` are over.

How long is a share of ``round_seconds``, so that a task whose devices come at night waits for hours, with a least time
in which each device that is awake asks once; and three times the longest pause between any two that came. All that
counts is when contributions came: a device sends one whatever its data are, and says to nobody that it declined.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A device that is awake asks at least every 60 s (``server.board.LATER``), and answers within 30 s.
QUIET_SECONDS = 90.0
#: A device that was in the round before comes back after at most 2 s (``server.board.SOON``).
SETTLED_SECONDS = 10.0
_QUIET_SHARE, _SETTLED_SHARE = 1 / 20, 1 / 100
_PAUSES = 3.0


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

"""Sessions of SecAgg+ that wait for clients, and the time that a campaign does not have for them."""

from __future__ import annotations

import re
import time

from e2e import shifted_clock
from faults.deployment import Deployment

#: A later session gathers clients for four rounds of 600 s.
_GATHERING_SECONDS = 2500.0
_LOOK_SECONDS, _PATIENCE_SECONDS = 2.0, 30.0
_EVENT = re.compile(r" (secagg_gathers|secagg_void|secagg_failed|round_charged|round_opened) (.*)")


class WaitingSessions:
    """Whether the newest session is one after the first, which gathers clients that may never come.

    A device that made its vector joins no further session of a round (docs/secure-aggregation.md). So where devices or
    the host died after it, each later session waits for its whole time, and the last one ends the task by name. Of the
    first session no time is taken: it gathers for as long as the round is open.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._next_look = 0.0
        self._since: float | None = None

    def shorten(self) -> None:
        """Once such a session has waited for half a minute, its time passes at once."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        if not is_later_session((self._deployment.root / "logs" / "aggregator.log").read_text()):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= _PATIENCE_SECONDS:
            self._since = None
            shifted_clock.advance(self._deployment.clock, 0.0, monotonic=_GATHERING_SECONDS)


def is_later_session(log: str) -> bool:
    """Whether what an aggregator logged last of SecAgg+ is that a session after the first gathers clients."""
    events = _EVENT.findall(log)
    return bool(events) and events[-1][0] == "secagg_gathers" and not events[-1][1].endswith(" attempt=0")

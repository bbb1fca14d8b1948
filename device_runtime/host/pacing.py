"""How long a host waits before it contacts the server again.

Where no round is open, as long as the server's retry window says, which holds over a restart, too. While a round has
nothing for it to do, a pause that grows a little. While a service cannot be used, one pause that doubles, for the whole
host.
"""

from __future__ import annotations

from collections.abc import Callable

from device_runtime.host.check_in_plan import CheckInPlan
from odp.crypto.log_reasons import LogReason
from odp.errors import AttestationError, CertificateError, OdpError, TransparencyError
from odp.transport.backoff import pause_after
from odp.transport.logs import Log
from odp.trust.enclave.evidence import Reason
from odp.v1 import server_pb2

_LONGEST_RETRY_SECONDS = 3600.0
#: The shortest pause there is.
SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_FIRST_OUTAGE_PAUSE, _LONGEST_OUTAGE_PAUSE = 1.0, 30.0
#: Reasons of refused evidence and logs that pass by themselves. A wrong clock, here or there, will be right again. A
#: server that has not heard of an upgrade offers the round of before, under a key that the new enclave did not sign.
_PASSING = frozenset(
    {
        Reason.CHAIN_EXPIRED, Reason.EXPIRED, Reason.NOT_YET_VALID, LogReason.NOT_YET_VALID, LogReason.STALE,
        Reason.WRONG_ROUND_KEY,
    }
)  # fmt: skip


class CheckIns:
    """When the host checks in next. Only the host's own thread may call it.

    Args:
      plan: stores the time of the next check-in; None: it does not hold over a restart.
      log: where it is said that a host waits from before its start.
      uniform: a random number between two bounds.
    """

    def __init__(self, *, plan: CheckInPlan | None, log: Log, uniform: Callable[[float, float], float]) -> None:
        self._plan = plan
        self._log = log
        self._uniform = uniform
        self._pause = SHORTEST_PAUSE

    def first_wait(self) -> float:
        """The rest, in seconds, of a retry window from before the last restart."""
        left = 0.0 if self._plan is None else min(self._plan.wait(), _LONGEST_RETRY_SECONDS)
        if left:
            self._log.event("waiting", seconds=round(left, 1))
        return left

    def window(self, window: server_pb2.RetryWindow) -> float:
        """Seconds until the next check-in, drawn from the server's retry window."""
        low = min(float(window.min_seconds), _LONGEST_RETRY_SECONDS)
        high = min(max(float(window.max_seconds), low), _LONGEST_RETRY_SECONDS)
        seconds = max(self._uniform(low, high), SHORTEST_PAUSE)
        if self._plan is not None:
            self._plan.store(seconds)
        return seconds

    def new_round(self) -> None:
        """Resets the pauses for a new round."""
        self._pause = SHORTEST_PAUSE

    def next_pause(self) -> float:
        """The next pause while the open round has nothing to do; each is longer than the one before."""
        pause = self._pause
        self._pause = min(self._pause * 1.6, _LONGEST_PAUSE)
        return pause


class Outage:
    """Whether a service is unavailable now. Only the host's own thread may call it.

    Args:
      uniform: a random number between two bounds.
    """

    def __init__(self, *, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._failures = 0
        #: Refusals of a certificate, evidence or a log since a service could be used, but those that pass.
        self.strangers = 0

    def failed(self, error: OdpError) -> bool:
        """Counts one more failure of a service; True for the first of an outage."""
        self._failures += 1
        refusal = isinstance(error, (AttestationError, CertificateError, TransparencyError))
        self.strangers += refusal and getattr(error, "reason", "") not in _PASSING
        return self._failures == 1

    def pause(self) -> float:
        """Seconds until the next attempt."""
        pause = pause_after(self._failures, first=_FIRST_OUTAGE_PAUSE, longest=_LONGEST_OUTAGE_PAUSE)
        return pause * self._uniform(0.75, 1.25)

    def over(self) -> bool:
        """Marks the services as available; True if that ends an outage."""
        was = self._failures > 0
        self._failures = self.strangers = 0
        return was

"""How long a host waits while a service cannot be used, and which refusals pass by themselves.

One pause that doubles, for the whole host. A host ends after a few refusals that do not pass (``fleet.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from odp.crypto.log_reasons import LogReason
from odp.errors import AttestationError, CertificateError, OdpError, TransparencyError
from odp.transport.sweeping import pause_after
from odp.trust.enclave.evidence import Reason

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Reasons of refused evidence and logs that pass by themselves. A wrong clock, here or there, will be right again. A
#: server that has not heard of an upgrade offers the round of before, under a key that the new enclave did not sign.
_PASSING = frozenset(
    {
        Reason.CHAIN_EXPIRED, Reason.EXPIRED, Reason.NOT_YET_VALID, LogReason.NOT_YET_VALID, LogReason.STALE,
        Reason.WRONG_ROUND_KEY,
    }
)  # fmt: skip


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
        passes = getattr(error, "passes", False) or getattr(error, "reason", "") in _PASSING
        self.strangers += refusal and not passes
        return self._failures == 1

    def pause(self) -> float:
        """Seconds until the next attempt."""
        pause = pause_after(self._failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        return pause * self._uniform(0.75, 1.25)

    def over(self) -> bool:
        """Marks the services as available; True if that ends an outage."""
        was = self._failures > 0
        self._failures = self.strangers = 0
        return was

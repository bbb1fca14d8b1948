"""When a device may come back to a stream: a task of DP-FTRL charges for few rounds of each device, far enough apart.

The aggregator's enclave refuses a device that comes too early (rule P27). The device counts for itself, so that neither
a wrong enclave nor a lost record of it makes its data cost more than the charge states. A contribution without an
answer may have been used: it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_runtime.person.ledger import Charged, TaskTerms
from odp.errors import PrivacyError
from odp.privacy.events import StreamRelease
from odp.privacy.ledger_events import CoveredRelease


def require_due(terms: TaskTerms, *, round: int, past: Sequence[Charged]) -> None:
    """Returns if the device may be in ``round`` of the task, given what it contributed before.

    Args:
      terms: of the verified task; one without a stream is always due.
      round: what the device is asked to contribute to.
      past: what it contributed before, to this task and others; not to this very round.

    Raises:
      PrivacyError: it was in as many rounds of the stream as it may be, or in one too close.
    """
    rounds = [contribution.round for contribution in past if contribution.terms.task_sha256 == terms.task_sha256]
    for event in terms.rounds[round]:
        stream = event.stream if isinstance(event, CoveredRelease) else event
        if not isinstance(stream, StreamRelease):
            continue
        declined = f"task {terms.name!r} declined: round {round} is not due"
        if len(rounds) >= stream.most:
            raise PrivacyError(f"{declined}, since the device was in {len(rounds)} rounds, of at most {stream.most}")
        near = [earlier for earlier in rounds if abs(round - earlier) < stream.separation]
        if near:
            raise PrivacyError(
                f"{declined}, since the device was in round {near[-1]}, and comes back after {stream.separation} rounds"
            )

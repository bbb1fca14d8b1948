"""What a person's reports cost that are private by themselves: pure epsilon, added up, whoever reads them.

This is a guarantee of its own beside that of releases (``ledger.py``): it needs no trust in an enclave. So what counts
is what left the device. A report that an enclave refused counts, too: the enclave has seen it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from device_runtime.person.ledger import Charged, TaskTerms
from device_runtime.person.limits import Limits
from odp.errors import PrivacyError


def local_epsilon(uploads: Iterable[Charged]) -> float:
    """Epsilon of all reports together, of all tasks; other contributions have none of their own."""
    return math.fsum(upload.terms.local.epsilon for upload in uploads if upload.terms.local is not None)


def require_report_allowed(terms: TaskTerms, uploads: Sequence[Charged], limits: Limits) -> None:
    """Returns if the device may send one more report of the task; a task without such reports is always allowed.

    Args:
      terms: of the verified task.
      uploads: what left the device before, refused or not, of all tasks; without the round in question.
      limits: of the person.

    Raises:
      PrivacyError: the device sent as many reports of the task as its signed definition allows, or the person's limit
        does not allow another one.
    """
    if terms.local is None:
        return
    sent = sum(upload.terms.task_sha256 == terms.task_sha256 for upload in uploads)
    if sent >= terms.local.most:
        raise PrivacyError(
            f"task {terms.name!r} declined: the device sent {sent} reports of it, and a device sends at most "
            f"{terms.local.most}, for epsilon={terms.local.lifetime:g} over its life"
        )
    total = local_epsilon(uploads) + terms.local.epsilon
    # Written so that a value which is not a number is declined.
    if not total <= limits.max_local_epsilon:
        raise PrivacyError(
            f"task {terms.name!r} declined: local epsilon={total:g} of all reports is above "
            f"max_local_epsilon={limits.max_local_epsilon:g}; change the device's limits to take part"
        )

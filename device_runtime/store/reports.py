"""Reports that are private by themselves, which outlive the answer to them.

Such a report costs what left the device, whether or not it counted. So a further opening of its round gets the same
report, sealed anew: whoever has both of them knows one randomisation, and the device pays for one.
"""

from __future__ import annotations

from device_runtime.person.ledger import TaskTerms
from device_runtime.store.database import Database
from device_runtime.store.schema import EMPTY, Participation
from device_runtime.store.store import Store


def prepare_again(store: Store, participation: Participation, *, terms: TaskTerms) -> None:
    """Stores what brings the report of a refused participation to another opening of its round, before it is sent.

    Whether the report was empty, and what the device learned with it, stays as it is.

    Raises:
      NotNow, PrivacyError: the person paused the device or opted out since; nothing is stored.
    """
    line = participation
    with store.transaction():
        store.person().check(terms)
        store.execute(
            "UPDATE participations SET state = 'PREPARED', refusal = NULL, recipient = ?, policy_sha256 = ?, "
            "image_digest = ?, time = ?, record = ?, sealed = ?, token = ? "
            "WHERE task_sha256 = ? AND round = ? AND state = 'REFUSED' AND report IS NOT NULL",
            (
                line.recipient, line.policy_sha256, line.image_digest, line.time, line.record, line.sealed, line.token,
                line.task_sha256, line.round,
            ),
        )  # fmt: skip
        store.execute(
            "UPDATE assignments SET outcome = 'prepared' WHERE task_sha256 = ? AND round = ? AND outcome <> ?",
            (line.task_sha256, line.round, EMPTY),
        )


def erase_reports(database: Database, *, before: float) -> int:
    """Erases reports of contributions made before this time that have nothing left to send; returns their number."""
    return database.execute(
        "UPDATE participations SET report = NULL WHERE report IS NOT NULL AND sealed IS NULL AND time < ?", (before,)
    )

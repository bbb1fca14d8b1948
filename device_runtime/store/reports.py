"""Reports that are private by themselves, which outlive the answer to them.

Such a report costs what left the device, whether or not it counted. So a further opening of its round gets the same
report, sealed anew: whoever has both of them knows one randomisation, and the device pays for one.
"""

from __future__ import annotations

from device_runtime.person.ledger import TaskTerms
from device_runtime.store.database import Database
from device_runtime.store.schema import EMPTY, Participation
from device_runtime.store.store import Store
from odp.errors import StateError


def prepare_again(store: Store, participation: Participation, *, terms: TaskTerms) -> None:
    """Stores what brings the report of a refused participation to another opening of its round, before it is sent.

    Whether the report was empty, and what the device learned with it, stays as it is.

    Raises:
      NotNow, PrivacyError: the person paused the device or opted out since; nothing is stored.
      StateError: the report was erased meanwhile.
    """
    line = participation
    with store.transaction():
        store.person().check(terms)
        changed = store.execute(
            "UPDATE participations SET state = 'PREPARED', refusal = NULL, recipient = ?, policy_sha256 = ?, "
            "image_digest = ?, time = ?, record = ?, sealed = ?, token = ? "
            "WHERE task_sha256 = ? AND round = ? AND state = 'REFUSED' AND report IS NOT NULL",
            (
                line.recipient, line.policy_sha256, line.image_digest, line.time, line.record, line.sealed, line.token,
                line.task_sha256, line.round,
            ),
        )  # fmt: skip
        if changed != 1:
            raise StateError(f"the report of round {line.round} was erased meanwhile, and is not sent again")
        store.execute(
            "UPDATE assignments SET outcome = 'prepared' WHERE task_sha256 = ? AND round = ? AND outcome <> ?",
            (line.task_sha256, line.round, EMPTY),
        )


def erase_reports(database: Database, *, before: float, most: int) -> int:
    """Erases at most ``most`` reports of contributions made before this time that have nothing left to send.

    Returns their number.
    """
    return database.execute(
        "UPDATE participations SET report = NULL WHERE (task_sha256, round) IN (SELECT task_sha256, round "
        "FROM participations WHERE report IS NOT NULL AND sealed IS NULL AND time < ? LIMIT ?)",
        (before, most),
    )

"""The attempts of a SecAgg+ round in which a device revealed its part of the order, stored to survive restarts.

A session of SecAgg+ has an order of its clients, to which each reveals a part. With a small probability an order does
not protect everybody, and a lying host may choose among the attempts of a round. What the round is charged counts on
four of them, numbered from 0. So a device reveals its part once for each number, in ascending order, and for none after
it made its masked vector, whatever becomes of its process, of the host's, or of the session.
"""

from __future__ import annotations

from device_runtime.store.database import Database
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.errors import PrivacyError


def require_new_attempt(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    """Returns if the device may still take part in this attempt of a round.

    Raises:
      PrivacyError: it revealed its part for this attempt or a later one, or made its vector, or took part in a later
        round of the task.
    """
    row = store.first("SELECT round, attempt FROM secagg_attempts WHERE task_sha256 = ?", (task_sha256,))
    if row is not None and row >= (round, attempt):
        raise PrivacyError(
            f"the aggregator began attempt {attempt} of round {round} after this device took part in it, or in a later "
            "one: a round has no more orders of its devices than it is charged for"
        )


def begin_attempt(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    """Notes an attempt, on the disk, before the device reveals its part of the order. Raises PrivacyError as above."""
    with store.transaction():
        require_new_attempt(store, task_sha256, round, attempt)
        _note(store, task_sha256, round, attempt)


def end_attempts(store: Database, task_sha256: bytes, round: int) -> None:
    """Notes, within ``transaction``, that the device makes its vector: it joins no further attempt of the round."""
    _note(store, task_sha256, round, MOST_ATTEMPTS)


def _note(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    store.execute(
        "INSERT OR REPLACE INTO secagg_attempts (task_sha256, round, attempt) VALUES (?, ?, ?)",
        (task_sha256, round, attempt),
    )

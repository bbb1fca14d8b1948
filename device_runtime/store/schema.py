"""The tables of a device's store, and the value objects of their rows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from odp.errors import Refusal

SCHEMA_VERSION = 10
SECRET_BYTES = 32
ID_BYTES = 16
#: In place of the hash of a device's data: the person erased them, so nobody fills them in again.
ERASED = b"erased"
#: Of an assignment. Whether a contribution was empty is private: it is for the person alone.
EMPTY = "empty"

_APPLICATION_ID = 0x4F445031  # "ODP1"
_BASE = (
    """CREATE TABLE identity (
        one INTEGER PRIMARY KEY CHECK (one = 1), device_id BLOB NOT NULL, secret BLOB NOT NULL, seed BLOB NOT NULL,
        filled_from BLOB)""",
    "CREATE TABLE ratings (item INTEGER PRIMARY KEY, value REAL NOT NULL)",
    """CREATE TABLE local_parameters (
        task_sha256 BLOB PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE participations (
        task_sha256 BLOB NOT NULL, round INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('PREPARED', 'SENT', 'REFUSED')), refusal INTEGER,
        contribution_id BLOB NOT NULL, model_sha256 BLOB NOT NULL, payload BLOB, sealed BLOB, recipient BLOB NOT NULL,
        epsilon REAL NOT NULL, delta REAL NOT NULL, policy_sha256 BLOB NOT NULL, image_digest TEXT NOT NULL,
        time REAL NOT NULL, record BLOB NOT NULL, PRIMARY KEY (task_sha256, round)) WITHOUT ROWID""",
    # What a task is, as its developer signed it, the privacy events of its rounds, and the last round that was offered.
    """CREATE TABLE tasks (
        task_sha256 BLOB PRIMARY KEY, definition BLOB NOT NULL, signature BLOB NOT NULL, charges TEXT NOT NULL,
        offered INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE person (one INTEGER PRIMARY KEY CHECK (one = 1), data TEXT NOT NULL)",
)
_EXAMPLES = (
    # Of a service, or of none: what the device was given. A layout has name, type and shape of each column, in the
    # order of the bytes.
    """CREATE TABLE examples (
        id INTEGER PRIMARY KEY AUTOINCREMENT, service TEXT NOT NULL, time REAL NOT NULL, layout TEXT NOT NULL,
        data BLOB NOT NULL)""",
    "CREATE INDEX examples_by_time ON examples (service, time)",
)
_KEYED = ("CREATE TABLE keyed_ratings (key TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID",)
# What the data set that filled the store calls an item, whose number is its place there; NULL where apps gave numbers.
_IDS = ("ALTER TABLE ratings ADD COLUMN id TEXT",)
# Its key in a catalogue, by which a task that names one finds the item; NULL where apps gave numbers.
_KEYS = ("ALTER TABLE ratings ADD COLUMN key TEXT",)
# Earlier versions stored every payload until it was answered, and read none.
_REPORTS = ("ALTER TABLE participations RENAME COLUMN payload TO report", "UPDATE participations SET report = NULL")
#: What this version has more than version 2, and that it is this version.
ADDED = (
    # What the device's apps saw happen; never changed, only forgotten.
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, service TEXT NOT NULL, type TEXT NOT NULL, time REAL NOT NULL,
        request INTEGER, data NOT NULL)""",
    "CREATE INDEX events_by_time ON events (service, type, time)",
    # What an app asked for, and the rows that its service logged of the answer: JSON.
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY AUTOINCREMENT, service TEXT NOT NULL, app TEXT NOT NULL, time REAL NOT NULL,
        asked TEXT NOT NULL, rows TEXT)""",
    """CREATE TABLE local_data (
        service TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, time REAL NOT NULL,
        PRIMARY KEY (service, key)) WITHOUT ROWID""",
    """CREATE TABLE downloads (
        service TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (service, key)) WITHOUT ROWID""",
    """CREATE TABLE download_versions (
        service TEXT PRIMARY KEY, version TEXT NOT NULL, sha256 BLOB NOT NULL, time REAL NOT NULL) WITHOUT ROWID""",
    # What apps were told, each an event of local privacy: part of the ledger.
    """CREATE TABLE answers (
        id INTEGER PRIMARY KEY AUTOINCREMENT, service TEXT NOT NULL, app TEXT NOT NULL, choices INTEGER NOT NULL,
        epsilon REAL NOT NULL, time REAL NOT NULL)""",
    # Every round that the device was asked for, and how that ended.
    """CREATE TABLE assignments (
        task_sha256 BLOB NOT NULL, round INTEGER NOT NULL, time REAL NOT NULL, outcome TEXT NOT NULL,
        PRIMARY KEY (task_sha256, round)) WITHOUT ROWID""",
    # Of each task of SecAgg+, the newest round and attempt that the device took part in: part of the ledger.
    """CREATE TABLE secagg_attempts (
        task_sha256 BLOB PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL) WITHOUT ROWID""",
    # Of a contribution that is still to be sent.
    "ALTER TABLE participations ADD COLUMN token BLOB",
    # When rows were last looked at for their age.
    "CREATE TABLE pruning (one INTEGER PRIMARY KEY CHECK (one = 1), time REAL NOT NULL)",
    *_EXAMPLES,
    *_KEYED,
    *_IDS,
    *_KEYS,
    *_REPORTS,
    f"PRAGMA application_id={_APPLICATION_ID}",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)
CREATE = (*_BASE, *ADDED)
#: What an encrypted store of an earlier version lacks, by that version.
UPGRADES = {
    5: (*_EXAMPLES, *_KEYED, *_IDS, *_KEYS, *_REPORTS, f"PRAGMA user_version={SCHEMA_VERSION}"),
    6: (*_KEYED, *_IDS, *_KEYS, *_REPORTS, f"PRAGMA user_version={SCHEMA_VERSION}"),
    7: (*_IDS, *_KEYS, *_REPORTS, f"PRAGMA user_version={SCHEMA_VERSION}"),
    8: (*_KEYS, *_REPORTS, f"PRAGMA user_version={SCHEMA_VERSION}"),
    9: (*_REPORTS, f"PRAGMA user_version={SCHEMA_VERSION}"),
}
#: Without these no limit can be kept: a store that lost a row of them is not rebuilt.
LEDGER_TABLES = ("identity", "person", "tasks", "participations", "answers", "secagg_attempts")
#: What the person's apps and data sets put in: an erasure empties them.
OWN_TABLES = (
    "ratings", "keyed_ratings", "examples", "events", "requests", "local_data", "downloads", "download_versions",
)  # fmt: skip
DATA_TABLES = (
    "ratings", "keyed_ratings", "examples", "local_parameters", "events", "requests", "local_data", "downloads",
    "download_versions", "assignments", "pruning",
)  # fmt: skip


class State(enum.Enum):
    """The state of a participation."""

    PREPARED = "PREPARED"
    SENT = "SENT"
    REFUSED = "REFUSED"


@dataclass(frozen=True)
class Identity:
    """The device's own identity: nothing of it ever leaves the device. Its ``repr`` shows no secret."""

    device_id: bytes
    secret: bytes = field(repr=False)
    seed: int = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A line of the device's own ledger.

    ``epsilon`` and ``delta`` are the terms of the whole task, ``policy_sha256`` and ``image_digest`` those of the
    aggregator's enclave that the contribution was encrypted to, ``time`` is in seconds since the epoch. ``token`` and
    ``sealed`` are what is still to be sent: None once there is nothing more to send. Of a masked contribution,
    ``sealed`` ends with the masked vector. ``record`` is the SHA-256 of what was verified before (``verification.py``),
    or empty where the host keeps none.

    ``report`` is the payload, where that is private by itself. It outlives the answer, since a further opening of the
    round may get this report and no other one.
    """

    task_sha256: bytes
    round: int
    contribution_id: bytes
    model_sha256: bytes
    recipient: bytes
    epsilon: float
    delta: float
    policy_sha256: bytes
    image_digest: str
    time: float
    record: bytes = b""
    state: State = State.PREPARED
    refusal: Refusal | None = None
    report: bytes | None = field(default=None, repr=False)
    sealed: bytes | None = field(default=None, repr=False)
    token: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Assignment:
    """A round that the device was asked for: its time and its outcome.

    ``outcome`` is "declined", "prepared" (it may have been counted), "sent" or "refused"; or ``EMPTY``: the device took
    part with the empty contribution, since its data could not be used as the task asks.
    """

    task_sha256: bytes
    round: int
    time: float
    outcome: str


COLUMNS = (
    "task_sha256, round, contribution_id, model_sha256, recipient, epsilon, delta, policy_sha256, image_digest, time, "
    "record, state, refusal, report, sealed, token"
)


def participation_of(row: tuple) -> Participation:  # type: ignore[type-arg]  # a row of COLUMNS
    """The value of one row of ``COLUMNS``."""
    return Participation(
        task_sha256=row[0], round=row[1], contribution_id=row[2], model_sha256=row[3], recipient=row[4],
        epsilon=row[5], delta=row[6], policy_sha256=row[7], image_digest=row[8], time=row[9], record=row[10],
        state=State(row[11]), refusal=None if row[12] is None else Refusal(row[12]), report=row[13], sealed=row[14],
        token=row[15],
    )  # fmt: skip

"""The server's storage. ``sql.Storage`` has the guarantees.

``sqlite`` and ``postgresql`` open one each.
"""

from server.storage.records import (
    HistoryEntry,
    NewVersion,
    OpenRound,
    PublishedModel,
    RoundRecord,
    RoundState,
    TaskRecord,
    TaskState,
    VersionRecord,
)
from server.storage.sql import Storage

__all__ = [
    "HistoryEntry",
    "NewVersion",
    "OpenRound",
    "PublishedModel",
    "RoundRecord",
    "RoundState",
    "Storage",
    "TaskRecord",
    "TaskState",
    "VersionRecord",
]

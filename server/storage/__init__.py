"""The server's storage. ``protocol`` has the guarantees of every store.

``sqlite`` and ``postgresql`` open one each.
"""

from server.storage.protocol import (
    HistoryEntry,
    NewVersion,
    OpenRound,
    PublishedModel,
    RoundRecord,
    RoundState,
    Storage,
    TaskRecord,
    TaskState,
    VersionRecord,
)

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

"""What the server must not lose. ``protocol`` says what every store guarantees; ``sqlite`` opens one."""

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

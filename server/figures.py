"""Figures of releases from before this start, for whoever measures the program."""

from __future__ import annotations

from odp.transport import observing
from odp.transport.logs import short
from odp.v1 import common_pb2
from server.storage import Storage, TaskState


def tell_newest_releases(storage: Storage) -> None:
    """Tells the observer of the newest release of each active task. Raises StateError."""
    if not observing.observed():
        return
    for task in storage.tasks(TaskState.ACTIVE):
        released = [entry for entry in storage.rounds(task.sha256) if entry.release_bytes]
        if released:
            release = common_pb2.Release.FromString(storage.release(task.sha256, released[-1].round).release)
            observing.figures(
                {
                    "task": short(task.sha256),
                    "round": released[-1].round,
                    "contributions": release.contributions,
                    "epsilon_spent": release.epsilon_spent,
                    "epsilon_remaining": release.epsilon_remaining,
                }
            )

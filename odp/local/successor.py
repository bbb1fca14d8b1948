"""Moves the state that an upgrade of the aggregator created beside the old one into its place."""

from __future__ import annotations

from pathlib import Path

from odp.transport.state_folder import StateFolder, state_errors

#: Beside the state folder of the old version: where the new version's state is made.
NEXT = ".next"


def adopt_successor(state: Path) -> None:
    """Moves the new state beside ``state`` into its place, once it is complete; keeps the old one.

    Raises StateError where one of the two is in use, or cannot be moved.
    """
    successor = state.with_name(state.name + NEXT)
    if not successor.is_dir():
        return
    # After the look: nearly every start finds no successor, and does without the database's library.
    from trusted_aggregator.host.sqlite_storage import SqliteStorage

    with StateFolder.open(successor, "aggregator") as folder:
        storage = SqliteStorage(folder)
        try:
            whole = bool(storage.keys())
        finally:
            storage.close()
    if not whole:
        return
    with state_errors(state):
        if state.exists():
            with StateFolder.open(state, "aggregator"):
                before = sum(1 for _ in state.parent.glob(f"{state.name}.handed-over-*"))
                state.rename(state.with_name(f"{state.name}.handed-over-{before}"))
        successor.rename(state)

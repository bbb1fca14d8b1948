"""Moves the state that an upgrade of the aggregator created beside the old one into its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from odp._system.files.state_folder import StateFolder, free_name, state_errors
from odp.errors import StateError
from odp.trust.enclave.host import taken_over

#: Beside the state folder of the old version: where the new version's state is made.
NEXT = ".next"


def measured() -> str:
    """The measurement of this version of the aggregator."""
    from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, measure

    return measure(AGGREGATOR_ENTRY).digest


def adopt_successor(state: Path, *, image: Callable[[], str] = measured) -> None:
    """Moves the new state beside ``state`` into its place, once it is complete; keeps the old one.

    ``image`` gives the measurement of the version that starts.

    Raises StateError where another version has taken the state over, and where one of the two is in use, or cannot be
    moved.
    """
    successor = state.with_name(state.name + NEXT)
    if not successor.is_dir():
        return
    # After the look: nearly every start finds no successor, and does without the database's library.
    from trusted_aggregator.host.hand_over_service import last_successor
    from trusted_aggregator.host.sqlite_storage import SqliteStorage

    with StateFolder.open(successor, "aggregator") as folder:
        storage = SqliteStorage(folder)
        try:
            whole = bool(storage.keys())
        finally:
            storage.close()
        named = last_successor(folder)
    if not whole:
        return
    if not named:
        raise StateError(
            f"state folder {successor} holds records and names no hand-over that led to it: `odp enclave upgrade` did "
            "not make it; move it aside"
        )
    if named != image():
        raise taken_over(state, named)
    with state_errors(state):
        if state.exists():
            with StateFolder.open(state, "aggregator"):
                state.rename(free_name(state, "handed-over"))
        successor.rename(state)

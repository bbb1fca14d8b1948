"""Runs one program in the foreground until a signal; the same for all four programs."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from pathlib import Path

from odp._system.files.state_folder import state_errors, write_atomically
from odp.errors import StateError
from odp.transport import observing
from odp.transport.running import Running
from odp.transport.sweeping import stop_event

#: Objects of containers between two collections, and collections between two of the older ones.
_COLLECTIONS = (5000, 20, 50)
#: A thread that has to hand something on takes the interpreter from one that computes after this time.
_SWITCH_SECONDS = 0.0005


def parent_watch(stop: threading.Event) -> None:
    """Sets ``stop`` when stdin ends: the parent process has ended."""

    def watch() -> None:
        # The raw descriptor: a reader blocked inside sys.stdin would hold its lock when the interpreter ends.
        # A stdin that was never open ends at once, too.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        stop.set()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def serve_until_stopped(running: Running, state: Path, *, with_parent: bool) -> None:
    """Writes ``<state>/address`` (where the program serves); returns after SIGINT, SIGTERM or the end of the parent.

    Where the program has a control listener, that one's address is in ``<state>/control-address``.
    """
    stop = stop_event()
    observing.serve()
    try:
        with state_errors(state):
            if running.control_address:
                write_atomically(state / "control-address", running.control_address.encode() + b"\n")
            write_atomically(state / "address", running.address.encode() + b"\n")
    except StateError:
        running.stop()
        raise
    if with_parent:
        parent_watch(stop)
    _favour_short_work()
    running.wait(stop)


def _favour_short_work() -> None:
    """Tunes the interpreter for many short calls by several threads; by default it expects one long computation."""
    # What the start made stays: without this, each collection of old objects looks at all modules again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    sys.setswitchinterval(_SWITCH_SECONDS)

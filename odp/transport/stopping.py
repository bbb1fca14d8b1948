"""The signals that stop a program. Apart from ``odp.transport.service``, so that commands are parsed without gRPC."""

from __future__ import annotations

import signal
import threading


def stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set; call from the main thread."""
    event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: event.set())
    return event

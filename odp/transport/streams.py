"""What every service that takes or gives streams needs: a limit on their number, and on how long one lasts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc

from odp.errors import ServiceUnavailable


@contextlib.contextmanager
def stream_permit(permits: threading.BoundedSemaphore, *, service: str, what: str) -> Iterator[None]:
    """Holds one of the permits. Raises ServiceUnavailable at once where none is left: streams queue no threads."""
    if not permits.acquire(blocking=False):
        raise ServiceUnavailable(f"the {service} is busy with other {what}; try again in a moment")
    try:
        yield
    finally:
        permits.release()


@contextlib.contextmanager
def stream_time_limit(context: grpc.ServicerContext, seconds: float) -> Iterator[None]:
    """Cancels a call that lasts longer: a peer that stops reading or sending must not keep a thread for ever."""
    timer = threading.Timer(seconds, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

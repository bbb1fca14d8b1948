"""What every service that takes or gives streams needs: a limit on how long one lasts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc


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

"""Work of a command in the time in which it waits for other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def begin(act: Callable[[], _T]) -> Future[_T]:
    """Starts ``act`` on a thread of its own, which an interrupted command does not wait for."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # whoever asks for the result raises it
            future.set_exception(error)

    threading.Thread(target=run, name="meanwhile", daemon=True).start()
    return future

"""A time of day that several processes share and one of them sets: real time plus the seconds in a file.

The file has a second number for the clock that only grows, so that hours of waiting pass at once.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path

_SECONDS = struct.Struct("<dd")
#: The clocks of this process.
_INSTALLED: list[Path] = []


def create(path: Path) -> None:
    """A clock that shows the real time."""
    path.write_bytes(_SECONDS.pack(0.0, 0.0))


def shift(path: Path) -> float:
    """Seconds by which the time of day is ahead."""
    return float(_SECONDS.unpack(path.read_bytes())[0])


def advance(path: Path, seconds: float, *, monotonic: float = 0.0) -> None:
    """Sets the time of day forward, for every process at once, and the clock that only grows by ``monotonic``."""
    with path.open("r+b") as file:
        day, grows = _SECONDS.unpack(file.read())
        file.seek(0)
        file.write(_SECONDS.pack(day + seconds, grows + monotonic))


def install(path: Path) -> None:
    """From now on this process has that clock, as far as Python asks ``time.time`` and ``time.monotonic``.

    It has it once: a process that was forked with it has it already.
    """
    if path in _INSTALLED:
        return
    _INSTALLED.append(path)
    with path.open("rb") as file:
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def shifted(real: Callable[[], float], place: int) -> Callable[[], float]:
        def now() -> float:
            seconds: float = _SECONDS.unpack(shared[:])[place]
            return real() + seconds

        return now

    time.time, time.monotonic = shifted(time.time, 0), shifted(time.monotonic, 1)

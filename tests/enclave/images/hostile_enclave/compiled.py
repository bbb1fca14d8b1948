"""Entry module whose work numba compiles, with a cache of machine code beside the source."""

from __future__ import annotations

import json
import socket
from typing import Any

held: dict[str, Any] = {}


def warm_up() -> None:
    import numba

    @numba.njit(nogil=True, cache=True)
    def total(count: int) -> int:
        found = 0
        for number in range(count):
            found += number
        return found

    total(10)
    held["total"] = total
    held["cache"] = type(total._cache).__name__


def run(channel: socket.socket, guest: Any) -> None:
    with channel.makefile("rwb") as stream:
        for _ in stream:
            answer = {"cache": held["cache"], "total": held["total"](1000)}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()

"""Makes a process end at one exact step, as SIGKILL would: nothing is flushed, closed or unlocked by it.

A point is ``module:Class.method:before`` or ``..:after``, and optionally ``:N`` for the N-th call of this process,
or the N-th that returned: a call that raised has no step after it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any


def by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def by_exit() -> None:
    """What an enclave has: the first process of a namespace cannot kill itself."""
    os._exit(1)


def arm(point: str, end: Callable[[], None] = by_signal) -> None:
    """Makes this process end before the N-th call of a method, or after the N-th that returned."""
    module, path, when, *rest = point.split(":")
    wanted = int(rest[0]) if rest else 1
    owner_name, method_name = path.split(".")
    owner = getattr(importlib.import_module(module), owner_name)
    method = getattr(owner, method_name)
    calls = itertools.count(1)

    @functools.wraps(method)
    def armed(*arguments: Any, **keywords: Any) -> Any:
        if when == "before" and next(calls) == wanted:
            end()
        result = method(*arguments, **keywords)
        if when == "after" and next(calls) == wanted:
            end()
        return result

    setattr(owner, method_name, armed)


def send_points(channel: socket.socket, points: Iterable[str]) -> None:
    """At the host: what the enclave is to be armed with, before anything else."""
    data = json.dumps(list(points)).encode()
    channel.sendall(len(data).to_bytes(4, "big") + data)


def receive_points(channel: socket.socket) -> None:
    """Inside the enclave: arms what the host sent."""
    size = int.from_bytes(_exactly(channel, 4), "big")
    for point in json.loads(_exactly(channel, size)):
        arm(point, by_exit)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += channel.recv(size - len(data)) or os._exit(1)
    return data

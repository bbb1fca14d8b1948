"""What a developer's isolated code costs: the start of its processes, and one call of a handler.

A call that comes while the next process is ready (which it is some milliseconds after the last one) pays for the
messages; calls without a pause between them also wait for the process of each.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Figure, Limit
from device_runtime.isolated import IsolatedHost, MemoryStore, Result, ServiceCode

_SERVICE = """
from odp.isolated import IsolatedService, Rendered


class Page(IsolatedService):
    def on_render(self, rendering, stores):
        return Rendered(f"<p>{rendering.result['title']}</p>")
"""
_PAUSE_SECONDS = 0.1


def run(quick: bool) -> list[Figure]:
    """As the harness wants it."""
    return figures(quick)


def figures(quick: bool) -> list[Figure]:
    """Cold start, and p50 and p99 of a call, each beside what the machine needs for less."""
    calls, starts = (50, 3) if quick else (300, 9)
    code = ServiceCode("page", None, {"page": (_SERVICE, False)})
    nothing = Limit("python -I -S -c pass", min(_timed(_python, starts)))
    cold = min(_timed(lambda: _start(code), starts))
    store = MemoryStore()
    result = Result(1, {"title": "x"})
    echo = Limit("echo between threads", float(np.median(_echoes(calls))))
    with IsolatedHost(code) as host:

        def call() -> None:
            host.render(store, result, now=0.0)

        call()
        ready = _timed(call, calls, pause=_PAUSE_SECONDS)
        dense = _timed(call, calls)
    return [
        Figure("cold start, to the first answer", cold, "s", None, nothing),
        Figure("call, p50", _percentile(ready, 50), "ms", None, _in_milliseconds(echo)),
        Figure("call, p99", _percentile(ready, 99), "ms"),
        Figure("call without pauses, p50", _percentile(dense, 50), "ms"),
        Figure("call without pauses, p99", _percentile(dense, 99), "ms"),
    ]


def _start(code: ServiceCode) -> None:
    with IsolatedHost(code) as host:
        host.render(MemoryStore(), Result(1, {"title": "x"}), now=0.0)


def _python() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


def _timed(call: Callable[[], object], times: int, *, pause: float = 0.0) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(times):
        time.sleep(pause)
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return found


def _echoes(times: int) -> list[float]:
    """Seconds of a byte to another thread and back, over a socket."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        while data := theirs.recv(1):
            theirs.sendall(data)

    def ask() -> None:
        ours.sendall(b"x")
        ours.recv(1)

    thread = threading.Thread(target=answer)
    with ours, theirs:
        thread.start()
        found = _timed(ask, times)
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()
    return found


def _percentile(seconds: list[float], percent: float) -> float:
    return float(np.percentile(seconds, percent)) * 1000.0


def _in_milliseconds(limit: Limit) -> Limit:
    return Limit(limit.name, limit.value * 1000.0)

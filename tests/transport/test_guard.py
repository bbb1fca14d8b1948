"""The guard of a listener goes on, whatever fails in one of its looks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from odp.transport import guard as guards
from odp.transport import observing
from odp.transport.connections import Connections
from odp.transport.guard import Guard
from odp.transport.kernel_sockets import KernelSockets, Traffic
from odp.transport.limits import Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="services run on Linux alone")


class Sockets(KernelSockets):
    """Sockets of which one sends without a call; each look fails until ``fails`` is over."""

    def __init__(self, *, fails: int = 0, filters_fail: int = 0) -> None:
        self.fails, self.filters_fail = fails, filters_fail
        self.received = 0
        self.ended, self.dropped = threading.Event(), threading.Event()

    def connections(self) -> list[Traffic]:
        if self.fails:
            self.fails -= 1
            raise OSError(24, "Too many open files")
        self.received += 2**20
        return [] if self.ended.is_set() else [Traffic(1, "ipv4:203.0.113.7:4000", self.received, 0)]

    def descriptors(self) -> dict[int, int]:
        return {}

    def accepting(self) -> bool:
        return False

    def abort(self, id: int) -> None:
        self.ended.set()

    def drop_new(self, addresses: Iterable[str]) -> int:
        if self.filters_fail:
            self.filters_fail -= 1
            raise OSError(12, "Cannot allocate memory")
        self.dropped.set()
        return len(list(addresses))


def _guard(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Guards ``sockets`` until they have ended and dropped; returns the events of the log."""
    events: list[str] = []
    monkeypatch.setattr(observing, "logged", lambda level, event, fields: events.append(event))
    loop: Any = asyncio.new_event_loop()
    limits = Limits(penalty_seconds=60.0)
    guard = Guard(loop, sockets, Connections(limits, most=64, clock=iter(range(10**6)).__next__))
    try:
        assert sockets.ended.wait(20.0)
        assert sockets.dropped.wait(20.0)
    finally:
        guard.stop()
        loop.close()
    return events


def test_r391_looks_that_fail_end_no_guard_and_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = _guard(Sockets(fails=5), monkeypatch)
    assert events.count("connections_not_watched") == 1


def test_r391_a_filter_that_the_kernel_did_not_take_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    events = _guard(Sockets(filters_fail=3), monkeypatch)
    assert events.count("connections_not_watched") == 1


class Counted(KernelSockets):
    """Real sockets, whose looks are counted."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(*listening.getsockname()[:2])
        self.looks = 0
        self.received = 0

    def connections(self) -> list[Traffic]:
        open_now = super().connections()
        self.looks += 1
        self.received = sum(traffic.received for traffic in open_now)
        return open_now


@contextlib.contextmanager
def _guarded() -> Iterator[tuple[socket.socket, Counted]]:
    loop: Any = asyncio.new_event_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets = Counted(listening)
        guard = Guard(loop, sockets, Connections(Limits(), most=64, clock=time.monotonic))
        try:
            yield listening, sockets
        finally:
            guard.stop()
            loop.close()


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _rested(sockets: Counted) -> None:
    """Returns once no look was taken for a while."""
    until = time.monotonic() + 60.0
    before = -1
    while before != sockets.looks:
        assert time.monotonic() < until, "the guard does not rest"
        before = sockets.looks
        time.sleep(0.5)


def test_a_guard_rests_where_nothing_arrives_however_many_new_connections_there_are() -> None:
    with _guarded() as (listening, sockets), contextlib.ExitStack() as callers:
        for _ in range(5):
            callers.enter_context(socket.create_connection(listening.getsockname()))
            callers.enter_context(listening.accept()[0])
        began = sockets.looks, time.monotonic()
        time.sleep(3.0)
        looks, seconds = sockets.looks - began[0], time.monotonic() - began[1]
        assert looks <= 6 + seconds / guards._REST


def test_a_guard_that_rests_looks_as_soon_as_bytes_arrive_and_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_REST", 3600.0)
    with _guarded() as (listening, sockets), socket.create_connection(listening.getsockname()) as caller:
        accepted, _ = listening.accept()
        with accepted:
            for sent in range(1, 4):
                _rested(sockets)
                caller.sendall(b"x")
                _until(lambda sent=sent: sockets.received == sent)  # type: ignore[misc]
        _rested(sockets)
        began = time.monotonic()
    assert time.monotonic() - began < 60.0


def test_a_guard_does_not_rest_before_a_connection_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_REST", 3600.0)
    with _guarded() as (listening, sockets):
        _rested(sockets)
        with socket.create_connection(listening.getsockname()) as caller:
            caller.sendall(b"x")
            before = sockets.looks
            _until(lambda: sockets.looks > before + 5)
            with listening.accept()[0]:
                _until(lambda: sockets.received == 1)


def test_a_guard_goes_on_looking_where_the_kernel_reports_no_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_REST", 3600.0)
    monkeypatch.setattr(Counted, "descriptors", lambda _: {7: 10**6})
    with _guarded() as (_, sockets):
        _until(lambda: sockets.looks > 5)

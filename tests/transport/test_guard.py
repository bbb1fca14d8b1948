"""The guard of a listener goes on, whatever fails in one of its looks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable
from typing import Any

import pytest

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

"""The clients of the benchmark of TLS connections, against a bare server; and what it says of a machine's limits."""

from __future__ import annotations

import pytest

from benchmarks.scale import connected, connections
from odp.errors import ConfigurationError, ServiceError


def test_connections_are_held_after_an_answered_call_each() -> None:
    held = connections._bare(150)
    assert held.held == 150
    assert 1_000 < held.bytes_each < 1_000_000


def test_a_call_that_is_refused_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_SUBMIT", "/odp.v1.AggregatorService/NoSuchMethod")
    with pytest.raises(ServiceError, match="the server refused the call"):
        connections._bare(150)


def test_a_hard_limit_that_is_too_low_is_said_before_anything_starts() -> None:
    refused = pytest.raises(ConfigurationError, match="hard limit of open files of at least 1099511627776")
    with refused, connections._descriptors(2**40):
        pytest.fail("it began")


def test_a_request_is_the_frames_of_one_call() -> None:
    frames = connected.call_of("/a/B", b"xyz", "127.0.0.1:1")
    assert frames[3:9] == bytes([1, 4, 0, 0, 0, 1])  # HEADERS that end, of stream 1
    assert frames.endswith(bytes([0, 0, 8, 0, 1, 0, 0, 0, 1]) + b"\0\0\0\0\3xyz")  # DATA that ends the stream

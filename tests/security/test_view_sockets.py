"""Connections of anybody on this machine that say nothing, say it slowly or never read: the person has their page."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.view import ResultPage, View, start_view
from device_runtime.view.privacy_page import DeviceControls

SLOW = 64
#: Less than REQUEST_SECONDS, after which a slow connection loses its place by itself.
BROWSER_SECONDS = 9.0


class _NoResults:
    def results(self) -> list[ResultPage]:
        return []

    def result(self, id: str) -> None:
        return None


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    path = tmp_path / "0.sqlite"
    Store.open_or_create(path).close()
    view = start_view(
        controls=DeviceControls(path, Gate(), name="device 0"),
        results=_NoResults(), record=lambda result, type, values: None,
    )  # fmt: skip
    yield view
    view.stop()


def connected(view: View, stack: contextlib.ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(view.url).port or 0), timeout=30.0))


def silent(connection: socket.socket) -> None:
    """Says nothing."""


def dripping(connection: socket.socket) -> None:
    """Says a byte more."""
    with contextlib.suppress(OSError):
        connection.sendall(b"G")


def headers_without_end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 1000 + b"\r\n")


def body_without_end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 4000\r\n\r\nx")


def never_reading(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)


@pytest.mark.parametrize("slow", [silent, dripping, headers_without_end, body_without_end, never_reading])
def test_the_persons_page_answers_beside_64_slow_connections(view: View, slow: Callable[[socket.socket], None]) -> None:
    page = urlsplit(view.url)
    with contextlib.ExitStack() as stack:
        # A browser that was there before keeps its connection.
        kept = http.client.HTTPConnection("127.0.0.1", page.port, timeout=BROWSER_SECONDS)
        stack.callback(kept.close)
        kept.request("GET", page.path)
        assert kept.getresponse().read()
        sockets = [connected(view, stack) for _ in range(SLOW)]
        for _ in range(3):
            for connection in sockets:
                slow(connection)
            fresh = http.client.HTTPConnection("127.0.0.1", page.port, timeout=BROWSER_SECONDS)
            stack.callback(fresh.close)
            for browser in (fresh, kept):
                browser.request("GET", page.path)
                answer = browser.getresponse()
                assert answer.status == 200
                assert b"device 0" in answer.read()
        assert kept.sock is not None  # it was never hung up on
        # Most of the slow ones have lost their place.
        ended = select.poll()
        for connection in sockets:
            ended.register(connection, select.POLLRDHUP)
        assert len(ended.poll(5000)) >= SLOW // 2


def test_r407_silence_inside_a_second_request_ends_a_connection(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_runtime.view.connections.REQUEST_SECONDS", 0.3)
    url = urlsplit(view.url)
    with contextlib.ExitStack() as stack:
        silent = connected(view, stack)
        silent.sendall(f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\nGET / HTTP/1.1\r\nHost: ".encode())
        silent.settimeout(8.0)  # less than a request has
        first = b""
        while more := silent.recv(65536):
            first += more
    assert first.startswith(b"HTTP/1.1 200")


def test_r407_wrong_addresses_of_any_page_never_keep_the_right_one_out(view: View) -> None:
    url = urlsplit(view.url)
    for path, expected in (*(("/guess/", 404) for _ in range(100)), (url.path, 200)):
        connection = http.client.HTTPConnection(url.netloc, timeout=BROWSER_SECONDS)
        connection.request("GET", path)
        assert connection.getresponse().status == expected
        connection.close()

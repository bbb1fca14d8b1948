"""Who may be connected to the person's page, which connection makes way, and what one request may take."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator

import pytest

from device_runtime.view import connections
from device_runtime.view.connections import (
    LARGEST_REQUEST,
    MOST_CONNECTIONS,
    MOST_STRANGERS,
    REQUEST_SECONDS,
    Connections,
    RequestReader,
)


class Ends:
    """Pairs of sockets; the thread that would serve each leaves when it is hung up on."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._theirs: dict[socket.socket, socket.socket] = {}
        self._threads: list[threading.Thread] = []

    def connect(self) -> tuple[socket.socket, bool]:
        ours, theirs = socket.socketpair()
        self._theirs[ours] = theirs
        admitted = self.connections.admit(ours)
        if admitted:
            self._threads.append(threading.Thread(target=self._serve, args=(ours,)))
            self._threads[-1].start()
        return ours, admitted

    def hung_up(self, connection: socket.socket) -> bool:
        """As the other side sees it."""
        try:
            return self._theirs[connection].recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for theirs in self._theirs.values():
            theirs.close()
        for thread in self._threads:
            thread.join(60.0)
        for ours in self._theirs:
            ours.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.recv(1)
        self.connections.leave(connection)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(connections, "_EVICTION_SECONDS", 60.0)  # a thread of a busy machine leaves later
    made = Ends(Connections())
    yield made
    made.close()


def test_the_stranger_that_has_waited_longest_makes_way(ends: Ends) -> None:
    strangers = [ends.connect()[0] for _ in range(MOST_STRANGERS)]
    assert not any(map(ends.hung_up, strangers))
    assert ends.connect()[1]
    assert [ends.hung_up(connection) for connection in strangers[:2]] == [True, False]
    assert len(ends.connections) == MOST_STRANGERS


def test_strangers_never_take_the_place_of_known_connections(ends: Ends) -> None:
    known = [ends.connect()[0] for _ in range(MOST_CONNECTIONS - MOST_STRANGERS)]
    for connection in known:
        ends.connections.recognize(connection)
        ends.connections.rest(connection)
    for _ in range(4 * MOST_CONNECTIONS):
        assert ends.connect()[1]
    assert not any(map(ends.hung_up, known))
    assert len(ends.connections) == MOST_CONNECTIONS


def test_of_known_connections_the_one_that_rests_for_longest_makes_way_and_none_that_is_answered(ends: Ends) -> None:
    known = []
    for _ in range(MOST_CONNECTIONS):
        known.append(ends.connect()[0])
        ends.connections.recognize(known[-1])
    assert not ends.connect()[1]
    for connection in (known[5], known[3]):
        ends.connections.rest(connection)
    assert ends.connect()[1]
    assert [place for place, connection in enumerate(known) if ends.hung_up(connection)] == [5]


class Dripping:
    """A connection that gives a byte whenever it is read, and each takes a second."""

    def __init__(self) -> None:
        self.now, self.timeouts = 0.0, [0.0]

    def settimeout(self, seconds: float, /) -> None:
        self.timeouts.append(seconds)

    def recv_into(self, buffer: memoryview, /) -> int:
        self.now += 1.0
        buffer[:1] = b"x"
        return 1


def test_a_request_that_drips_in_is_given_up_when_its_time_is_over() -> None:
    source = Dripping()
    raw = RequestReader(source, clock=lambda: source.now)
    reader = io.BufferedReader(raw)
    with pytest.raises(TimeoutError):
        reader.readline()
    assert source.now == REQUEST_SECONDS
    assert source.timeouts[1:] == [REQUEST_SECONDS - second for second in range(int(REQUEST_SECONDS))]
    raw.begin()
    assert reader.read1(1) == b"x"


def test_a_request_ends_where_it_is_too_long() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        raw = RequestReader(ours)
        reader = io.BufferedReader(raw)
        sender = threading.Thread(target=theirs.sendall, args=(b"x" * (LARGEST_REQUEST + 10),))
        sender.start()
        assert len(reader.read(2 * LARGEST_REQUEST)) == LARGEST_REQUEST
        raw.begin()
        assert reader.read(10) == b"x" * 10
        sender.join()

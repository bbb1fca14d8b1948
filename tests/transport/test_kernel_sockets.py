"""What the kernel says of connections, and what it does to them."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from odp.transport import kernel_sockets
from odp.transport.fairness import peer_name
from odp.transport.kernel_sockets import KernelSockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="services run on Linux alone")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((request.param, 0))
        server.listen()
        yield server


def _connect(listening: socket.socket, source: str = "") -> socket.socket:
    caller = socket.socket(listening.family)
    caller.settimeout(0.5)
    if source:
        caller.bind((source, 0))
    caller.connect(listening.getsockname()[:2])
    return caller


def test_it_counts_the_bytes_of_its_own_connections_and_ends_one(listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    sockets = KernelSockets(host, port)
    with _connect(listening) as caller, socket.socket() as other:
        accepted, _ = listening.accept()
        other.bind(("127.0.0.1", 0))
        caller.sendall(bytes(5000))
        accepted.recv(100)
        (traffic,) = sockets.connections()
        assert traffic.peer == peer_name(*caller.getsockname()[:2])
        assert traffic.received == 5000
        sockets.abort(traffic.id)
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
        with pytest.raises(ConnectionResetError):
            accepted.recv(1)
        accepted.close()
        assert sockets.connections() == []


@pytest.mark.parametrize("kernel_has_sizes", [True, False])
def test_a_descriptor_more_is_counted(kernel_has_sizes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel gives the folder of descriptors no size, as before Linux 6.2."""
    sockets = KernelSockets("127.0.0.1", 1)
    with monkeypatch.context() as patch:
        if not kernel_has_sizes:
            patch.setattr(kernel_sockets.os, "stat", lambda path: SimpleNamespace(st_size=0))
        before = sockets.descriptors()
        with socket.socket():
            assert sockets.descriptors() == before + 1
        assert sockets.descriptors() == before > 2


def test_new_connections_of_an_address_are_dropped_and_then_not_and_open_ones_stay(listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    sockets = KernelSockets(host, port)
    sockets.connections()
    with _connect(listening) as before:
        accepted, _ = listening.accept()
        sockets.drop_new(["10.1.2.3", host, "fe80::1"])
        with pytest.raises(TimeoutError):
            _connect(listening)
        before.sendall(b"x")
        assert accepted.recv(1) == b"x"
        accepted.close()
        sockets.drop_new(["10.1.2.3", "10.1.2.4", "2001:db8::1"])
        _connect(listening).close()
        sockets.drop_new([])
        _connect(listening).close()


def test_a_descriptor_that_is_another_sockets_by_now_is_left_alone(listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    sockets = KernelSockets(host, port)
    with _connect(listening):
        accepted, _ = listening.accept()
        (traffic,) = sockets.connections()
        accepted.close()
        with _connect(listening) as later:
            following, _ = listening.accept()
            sockets.abort(traffic.id)
            later.sendall(b"x")
            assert following.recv(1) == b"x"
            following.close()


def test_r391_a_filter_that_is_too_large_for_the_kernel_drops_those_with_the_longest_wait(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As net.core.optmem_max of 20480 bytes, for the old filter and the new one together."""
    host, port = listening.getsockname()[:2]
    sockets = KernelSockets(host, port)
    sockets.connections()
    attach, attached = kernel_sockets._attach, [0]

    def attach_within_memory(server: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
        if attached[0] + len(program) > 600:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        attach(server, program)
        attached[0] = len(program)

    detach = kernel_sockets._detach

    def detach_and_count(server: socket.socket) -> bool:
        attached[0] = 0
        return detach(server)

    monkeypatch.setattr(kernel_sockets, "_attach", attach_within_memory)
    monkeypatch.setattr(kernel_sockets, "_detach", detach_and_count)
    others = [f"2001:db8:0:{n:x}::/64" for n in range(1, 200)]
    assert sockets.drop_new([host, *others]) == 100
    with pytest.raises(TimeoutError):
        _connect(listening)
    assert sockets.drop_new([*others[:99], host]) == 100, "the old filter makes place for the new one"
    with pytest.raises(TimeoutError):
        _connect(listening)
    assert sockets.drop_new([]) == 0
    _connect(listening).close()


def test_r391_a_connection_that_could_not_be_looked_at_is_seen_at_the_next_look(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = KernelSockets(*listening.getsockname()[:2])
    with _connect(listening) as caller:
        accepted, _ = listening.accept()
        with accepted:
            with monkeypatch.context() as busy:
                busy.setattr(os, "dup", _no_descriptor)
                assert sockets.connections() == []
            (traffic,) = sockets.connections()
            assert traffic.peer == peer_name(*caller.getsockname()[:2])


def _no_descriptor(descriptor: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")

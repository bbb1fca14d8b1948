"""Callers that send nothing, hardly anything or far too much: services go on answering, within bounded memory."""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from security.programs import LISTEN, PROGRAMS, Program

from benchmarks.silent import Attackers
from odp._system.files.state_folder import StateFolder
from odp.transport.channel import connect
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity

pytestmark = pytest.mark.usefixtures("guards_as_delivered")

CONNECTIONS, CALLS = 64, 16
#: An honest call has this long: less than ``Limits.message_seconds``, after which silent callers give threads back.
HONEST_SECONDS = 8.0
BATCH = 40
METHOD = "/odp.test.Test/Do"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def _path(method: str) -> str:
    return f"/odp.v1.{method}"


def _batch(program: Program, channel: grpc.Channel) -> list[float]:
    """The seconds of some honest calls one after the other; each must end in time with the service's own answer."""
    method = channel.unary_unary(_path(program.honest))
    took = []
    for _ in range(BATCH):
        started = time.monotonic()
        try:
            method(b"", timeout=HONEST_SECONDS)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        assert code is program.status
        took.append(time.monotonic() - started)
    return took


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_silent_calls_on_64_connections_stop_no_honest_caller(
    name: str, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    program = PROGRAMS[name]
    running = program.start(tmp_path, Log(name, stream=io.StringIO()))
    stack.callback(running.stop)
    ca, identity = tmp_path / "ca" / "ca.pem", program.identity(tmp_path)
    attackers = Attackers(
        running.address, ca, tuple(map(_path, program.methods)), connections=CONNECTIONS, calls=CALLS, identity=identity
    )
    stack.callback(attackers.close)
    old = stack.enter_context(connect(running.address, ca, identity=identity))
    quiet = _batch(program, old)
    assert attackers.do("silence") == "silent"
    attacked = _batch(program, old)
    # A caller that connects during the attack is served as well.
    attacked += _batch(program, stack.enter_context(connect(running.address, ca, identity=identity)))
    # The allowance is for a busy machine: a service whose threads are taken answers seconds later, or never.
    assert statistics.median(attacked) < 2 * statistics.median(quiet) + 1.0


class Slow:
    """One method that answers when ``go`` is set, behind ``workers`` threads."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, workers: int, **given: Any) -> None:
        self.go = threading.Event()
        stack.callback(self.go.set)
        self.ca = folder / "ca" / "ca.pem"
        state = stack.enter_context(StateFolder.open(folder / "state", "server"))
        handler = grpc.method_handlers_generic_handler(
            "odp.test.Test", {"Do": grpc.unary_unary_rpc_method_handler(self._do)}
        )
        self.running = serve(
            address=LISTEN,
            identity=development_identity(state, folder / "ca"),
            add=lambda server: server.add_generic_rpc_handlers((handler,)),
            service_names=["odp.test.Test"],
            workers=workers,
            **given,
        )
        stack.callback(self.running.stop, 0.0)

    def _do(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.go.wait(60.0)
        return b""

    def call(self, stack: contextlib.ExitStack) -> bytes:
        channel = stack.enter_context(connect(self.running.address, self.ca))
        reply: bytes = channel.unary_unary(METHOD)(b"", timeout=HONEST_SECONDS)
        return reply


def _resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory of a process")
@pytest.mark.slow
# On a busy machine many requests of 64 KiB lie in buffers of gRPC before the guard looks: see N359.
@pytest.mark.parametrize(("calls", "size"), [(400, 2**10), pytest.param(3000, 2**16, marks=pytest.mark.proof)])
def test_calls_that_wait_take_bounded_memory_and_hear_when_to_come_back(
    calls: int, size: int, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    slow = Slow(tmp_path, stack, workers=2)
    attackers = Attackers(slow.running.address, slow.ca, (METHOD,), connections=64, calls=1)
    stack.callback(attackers.close)
    slow.go.set()
    assert attackers.do(f"flood 100 {size} {METHOD}")  # connections and buffers that any call needs
    slow.go.clear()
    before, most, ended = _resident_mebibytes(), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], _resident_mebibytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    timer = threading.Timer(5.0, slow.go.set)
    timer.start()
    try:
        ends = attackers.do(f"flood {calls} {size} {METHOD}")
    finally:
        ended.set()
        watcher.join()
        timer.cancel()
    assert most[0] - before < 150, (
        "MiB; of 3,000 calls 188 were sent, and each call has a cost of its own beside its request"
    )
    counts = {code: int(number) for code, number in (part.split("=") for part in ends.split())}
    assert set(counts) <= {"OK", "RESOURCE_EXHAUSTED"}, "nobody waits in vain, and nobody is dropped"
    assert sum(counts.values()) == calls


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60.0)


def test_connections_without_a_handshake_are_closed_and_meanwhile_others_are_served(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    slow = Slow(tmp_path, stack, workers=2, limits=Limits(handshake_seconds=2.0))
    slow.go.set()
    silent = [stack.enter_context(_connected(slow.running.address)) for _ in range(200)]
    assert slow.call(stack) == b""
    for each in silent:
        assert each.recv(1) == b"", "closed by the service"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _headers(fields: dict[str, str]) -> bytes:
    """Literal header fields without indexing and without Huffman codes (RFC 7541, 6.2.2)."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def test_a_request_that_comes_byte_by_byte_is_cut_off_and_meanwhile_others_are_served(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    slow = Slow(tmp_path, stack, workers=2, limits=Limits(message_seconds=1.0))
    slow.go.set()
    context = ssl.create_default_context(cafile=str(slow.ca))
    context.set_alpn_protocols(["h2"])
    raw = stack.enter_context(_connected(slow.running.address))
    caller = stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
    asked = {
        ":method": "POST", ":scheme": "https", ":path": METHOD, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    # The preface, our settings, a call, and the first bytes of a message of 100 bytes (RFC 9113).
    caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0) + _frame(1, 4, 1, _headers(asked)))
    caller.sendall(_frame(0, 0, 1, b"\x00\x00\x00\x00\x64"))
    caller.settimeout(0.2)
    received = b""
    for _ in range(60):  # seconds of one byte each would be 100
        if b"grpc-status" in received:
            break
        with contextlib.suppress(ssl.SSLError, OSError):
            caller.sendall(_frame(0, 0, 1, b"x"))
        with contextlib.suppress(TimeoutError):
            received += caller.recv(65536)
    assert b"sent or read nothing" in received
    assert slow.call(stack) == b""

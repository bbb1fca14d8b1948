"""Memory of a listener per device that has a TLS connection of its own, beside a bare gRPC server's.

Every connection made one call, and stays open. Both servers are asyncio servers of gRPC with a certificate of the same
kind; the bare one (``benchmarks.bare_grpc``) has gRPC's own limits, and ours its usual ones, but for the number of
connections and the time after which an idle one is closed. All connections come from one address.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.harness import Figure, Limit, progress
from odp._system.posix import resource
from odp.errors import ConfigurationError, ServiceError
from odp.operations.local.processes import Child
from odp.v1 import aggregator_pb2, server_pb2

_FULL, _QUICK = 10_000, 500
#: Before the first look: caches and pools are filled then.
_WARM = 100
#: Connections take half of a program's descriptors (``odp.transport.limits``).
_DESCRIPTORS_PER_CONNECTION = 2
_KILOBYTE = 1024.0
_CHECK_IN = "/odp.v1.ServerService/CheckIn"
_SUBMIT = "/odp.v1.AggregatorService/Submit"
_START_SECONDS = 60.0


def run(quick: bool) -> list[Figure]:
    """Ours and the bare one, after each other.

    Raises:
      ConfigurationError: the machine's hard limit of open files is too low.
    """
    count = _QUICK if quick else _FULL
    with _descriptors(_DESCRIPTORS_PER_CONNECTION * count):
        ours, bare = _ours(count), _bare(count)
    return [
        Figure("TLS connections held, each with an answered call", float(ours.held), "", f">= {count}"),
        Figure(
            "memory per TLS connection", ours.bytes_each / _KILOBYTE, "KB", None,
            Limit("bare gRPC", bare.bytes_each / _KILOBYTE),
        ),
        Figure(
            "memory per TLS connection beyond bare gRPC's", (ours.bytes_each - bare.bytes_each) / _KILOBYTE, "KB",
            None if quick else "<= 60",
        ),
        Figure(
            "seconds per 1,000 new TLS connections", 1e3 * ours.seconds / count, "s", None,
            Limit("bare gRPC", 1e3 * bare.seconds / count),
        ),
    ]  # fmt: skip


class _Held:
    """What connections to a server cost it."""

    def __init__(self, pid: int, address: str, ca: Path, method: str, request: bytes, count: int) -> None:
        server = psutil.Process(pid)
        clients = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale.connected", address, str(ca), method, request.hex()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            _open(clients, _WARM)
            before = server.memory_full_info().uss
            started = time.monotonic()
            self.held = _open(clients, count - _WARM) + _WARM
            self.seconds = time.monotonic() - started
            self.bytes_each = (server.memory_full_info().uss - before) / (count - _WARM)
        finally:
            clients.kill()
            clients.communicate()


def _open(clients: subprocess.Popen[str], count: int) -> int:
    assert clients.stdin is not None
    assert clients.stdout is not None
    clients.stdin.write(f"{count}\n")
    clients.stdin.flush()
    answer = clients.stdout.readline().strip()
    if not answer.isdecimal():
        raise ServiceError(f"Expected {count} connections to be answered (got: {answer or 'no word'})")
    return int(answer)


def _ours(count: int) -> _Held:
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        ca = root / "ca" / "ca.pem"
        arguments = ["server", "run", "--listen", "127.0.0.1:0", "--ca-folder", str(ca.parent)]
        arguments += ["--distributor", "127.0.0.1:1", "--aggregator", "127.0.0.1:1"]
        arguments += ["--limit", f"connections={count}", "--limit", "idle_seconds=3600"]
        server = Child("server", arguments, state=root / "server", log=root / "server.log")
        stack.callback(server.stop)
        server.wait_serving(ca)
        progress(f"opening {count:,} TLS connections to `odp server run`")
        request = server_pb2.CheckInRequest(population="connected").SerializeToString()
        return _Held(server.process.pid, server.address, ca, _CHECK_IN, request, count)


def _bare(count: int) -> _Held:
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_grpc", str(root), "aio", "1"], stdin=subprocess.PIPE
        )
        stack.callback(server.communicate)
        until = time.monotonic() + _START_SECONDS
        while not (root / "address").exists():
            if server.poll() is not None or time.monotonic() > until:
                raise ServiceError("the bare gRPC server did not start")
            time.sleep(0.05)
        progress(f"opening {count:,} TLS connections to a bare gRPC server")
        request = aggregator_pb2.SubmitRequest(round=1).SerializeToString()
        address = (root / "address").read_text()
        return _Held(server.pid, address, root / "ca" / "ca.pem", _SUBMIT, request, count)


@contextlib.contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """Lets this process and those below it open ``count`` files each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigurationError(
            f"Expected a hard limit of open files of at least {count} for this benchmark (got {hard}); raise it for "
            "this user, for example by `LimitNOFILE=` of systemd or in /etc/security/limits.conf"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

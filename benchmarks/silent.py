"""How long honest calls take beside silent ones: 64 connections with 16 calls each that never send their request."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks import silent_callers
from benchmarks.harness import Figure, Limit
from odp.errors import ServiceError
from odp.operations.local.processes import Child
from odp.transport.channel import connect
from odp.transport.tls import TlsIdentity

CONNECTIONS, CALLS = 64, 16
_HONEST = "/odp.v1.LogService/GetCheckpoint"
_SILENT = ("/odp.v1.ServerService/CheckIn", "/odp.v1.ServerService/SubmitTask", "/odp.v1.LogService/GetEntries")
_SECONDS = 5.0
# Places are held for ten seconds: a batch that is longer sees calls come and go.
_SETTLE_SECONDS = 2.0


class Attackers:
    """Hostile callers in a process of their own, so that what they cost is not what the service costs."""

    def __init__(
        self, address: str, ca: Path, methods: tuple[str, ...], *, connections: int, calls: int,
        identity: TlsIdentity | None = None,
    ) -> None:  # fmt: skip
        shown = []
        if identity is not None:
            shown = [str(ca.with_name("attacker.pem"))]
            Path(shown[0]).write_bytes(identity.key_pem + identity.certificate_pem)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(silent_callers.__file__)), address, str(ca), str(connections),
             str(calls), ",".join(methods), *shown],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, order: str) -> str:
        """Gives one order and waits until it is carried out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def run(quick: bool) -> list[Figure]:
    """Percentiles of calls one after the other to ``odp server run``, attacked against quiet, in turns."""
    batches, calls = (2, 200) if quick else (5, 1000)
    quiet: list[float] = []
    attacked: list[float] = []
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ca = root / "ca" / "ca.pem"
        arguments = ["server", "run", "--listen", "127.0.0.1:0", "--ca-folder", str(ca.parent)]
        arguments += ["--distributor", "127.0.0.1:1", "--aggregator", "127.0.0.1:1"]
        server = Child("server", arguments, state=root / "server", log=root / "server.log")
        stack.callback(server.stop)
        server.wait_serving(ca)
        attackers = Attackers(server.address, ca, _SILENT, connections=CONNECTIONS, calls=CALLS)
        stack.callback(attackers.close)
        method: Any = stack.enter_context(connect(server.address, ca)).unary_unary(_HONEST)
        _took(method, calls)
        for _ in range(batches):
            quiet += _took(method, calls)
            attackers.do("silence")
            time.sleep(_SETTLE_SECONDS)
            attacked += _took(method, calls)
            attackers.do("pause")
            time.sleep(_SETTLE_SECONDS)
    figures = []
    for share, goal in ((50, None), (99, "<= 2")):
        before, beside = (1e3 * float(np.percentile(took, share)) for took in (quiet, attacked))
        name = f"p{share} of honest calls"
        figures.append(Figure(f"{name}, attacked", beside, "ms", None, Limit("quiet", before)))
        figures.append(Figure(f"{name}, attacked over quiet", beside / before, "times", goal))
    return figures


def _took(method: Any, calls: int) -> list[float]:
    """Seconds of each of ``calls`` calls, one after the other. Raises ServiceError where one is not answered."""
    took = []
    for _ in range(calls):
        started = time.perf_counter()
        try:
            method(b"", timeout=_SECONDS)
        except grpc.RpcError as error:
            raise ServiceError(f"an honest call ended with {error.code().name}: {error.details()}") from error
        took.append(time.perf_counter() - started)
    return took

"""Check-ins at a server on PostgreSQL beside one on SQLite, in turns, and tasks that each stores in a second."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc.aio

import odp
from benchmarks.harness import Figure, Limit, progress
from benchmarks.temporary_postgresql import PostgresqlServer
from odp.errors import ConfigurationError
from odp.operations.local.processes import ODP, Child
from odp.v1 import server_pb2, server_pb2_grpc

_CONNECTIONS, _CALLS = 16, 4
# A connection of its own for each channel.
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
_TURNS = 3


def run(quick: bool) -> list[Figure]:
    """The better of some turns of each; none where PostgreSQL cannot be started here."""
    seconds, submissions = (0.7, 20) if quick else (5.0, 200)
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        try:
            database = stack.enter_context(PostgresqlServer.started())
        except ConfigurationError as error:
            progress(f"no figures of databases: {error}")
            return []
        servers = {}
        for name, command in (("SQLite", ODP), ("PostgreSQL", ("env", f"ODP_DATABASE={database.url()}", *ODP))):
            servers[name] = _Server(root / name, command)
            stack.callback(servers[name].child.stop)
        rates = dict.fromkeys(servers, 0.0)
        stored = dict.fromkeys(servers, 0.0)
        progress("checking in at a server on SQLite, and at one on PostgreSQL")
        for _ in range(_TURNS):
            for name, server in servers.items():
                rates[name] = max(rates[name], asyncio.run(server.check_ins(seconds)))
        for name, server in servers.items():
            stored[name] = server.submit(submissions)
    return [
        Figure(
            "check-ins at a server on PostgreSQL", rates["PostgreSQL"], "1/s", None, Limit("SQLite", rates["SQLite"])
        ),
        Figure("check-ins on PostgreSQL over SQLite", rates["PostgreSQL"] / rates["SQLite"], "", ">= 0.7"),
        Figure("tasks stored on PostgreSQL", stored["PostgreSQL"], "1/s", None, Limit("SQLite", stored["SQLite"])),
    ]


class _Server:
    """``odp server run`` in a folder of its own; the services that it names do not exist."""

    def __init__(self, root: Path, command: tuple[str, ...]) -> None:
        self._ca = root / "ca" / "ca.pem"
        arguments = ["server", "run", "--listen", "127.0.0.1:0", "--ca-folder", str(self._ca.parent)]
        arguments += ["--distributor", "127.0.0.1:1", "--aggregator", "127.0.0.1:1"]
        root.mkdir()
        self.child = Child("server", arguments, state=root / "server", log=root / "server.log", command=command)
        self.child.wait_serving(self._ca)
        self._token = (root / "server" / "operator.token").read_text().strip()
        self.submit(1, first=-1)  # the population has a task: a check-in finds it between two rounds

    async def check_ins(self, seconds: float) -> float:
        """Check-ins per second of devices on a few connections."""
        credentials = grpc.ssl_channel_credentials(self._ca.read_bytes())
        request = server_pb2.CheckInRequest(population="people")
        done, ends = 0, 0.0

        async def device(stub: Any) -> None:
            nonlocal done
            while time.perf_counter() < ends:
                await stub.CheckIn(request, timeout=30.0)
                done += 1

        async with contextlib.AsyncExitStack() as stack:
            stubs: list[Any] = []
            for _ in range(_CONNECTIONS):
                channel = grpc.aio.secure_channel(self.child.address, credentials, options=_OPTIONS)
                stubs.append(server_pb2_grpc.ServerServiceStub(await stack.enter_async_context(channel)))
                await stubs[-1].CheckIn(request, timeout=30.0)
            started = time.perf_counter()
            ends = started + seconds
            await asyncio.gather(*(device(stub) for stub in _CALLS * stubs))
            return done / (time.perf_counter() - started)

    def submit(self, count: int, *, first: int = 0) -> float:
        """Tasks per second that a developer submits one after the other."""
        with odp.connect(self.child.address, ca=self._ca, token=self._token) as connection:
            started = time.perf_counter()
            for number in range(first, first + count):
                connection.submit(_task(number))
            return count / (time.perf_counter() - started)


def _task(number: int) -> odp.Task:
    return odp.Task(
        name=f"task{number + 1}",
        population="people",
        model=odp.MatrixFactorization(items=20, rank=0),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-6),
        training=odp.DPAM(),
        cohort=odp.Cohort(minimum=1000),
    )

"""A real program that is told to end in the middle of a call: it answers that call, takes no new one, and is gone."""

from __future__ import annotations

import http.client
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import odp
from odp.errors import ServiceError
from odp.operations.local.processes import Child
from odp.transport.channel import connect
from odp.v1 import server_pb2, server_pb2_grpc

pytestmark = pytest.mark.processes
_SECONDS = 60.0


def _until(ask: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not ask():
        assert time.monotonic() < end, f"{what} did not come"
        threading.Event().wait(0.02)


def _task() -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=20, rank=0),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-6),
        training=odp.DPAM(),
        cohort=odp.Cohort(minimum=1000),
    )


def test_a_program_that_is_told_to_end_answers_what_it_has_begun(tmp_path: Path) -> None:
    ca, log = tmp_path / "ca" / "ca.pem", tmp_path / "log"
    arguments = ["server", "run", "--listen", "127.0.0.1:0", "--ca-folder", str(ca.parent), "--metrics", "127.0.0.1:0"]
    arguments += ["--distributor", "127.0.0.1:1", "--aggregator", "127.0.0.1:1"]
    server = Child("server", arguments, state=tmp_path / "server", log=log)
    try:
        server.wait_serving(ca)
        found = re.search(r"metrics address=(\S+)", log.read_text())
        assert found is not None

        def ready() -> int:
            host, _, port = found[1].rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", "/readyz")
            return connection.getresponse().status

        assert ready() == 200
        go_on = threading.Event()

        def pieces() -> Iterator[server_pb2.SubmitTaskRequest]:
            yield server_pb2.SubmitTaskRequest(definition=_task().definition())
            go_on.wait(_SECONDS)

        token = (tmp_path / "server" / "operator.token").read_text().strip()
        with connect(server.address, ca) as channel:
            stub = server_pb2_grpc.ServerServiceStub(channel)
            metadata = (("authorization", f"Bearer {token}"),)
            submitted = stub.SubmitTask.future(pieces(), timeout=_SECONDS, metadata=metadata)
            # On the same connection, so what was sent before it has arrived.
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
            server.process.send_signal(signal.SIGTERM)
            _until(lambda: ready() == 503, "the word that it drains")
            _until(lambda: not _answers(server.address, ca), "the refusal of a new call")
            assert not submitted.done()
            go_on.set()
            assert len(submitted.result(_SECONDS).task_sha256) == 32
        assert server.process.wait(_SECONDS) == 0
    finally:
        server.stop()


def _answers(address: str, ca: Path) -> bool:
    try:
        with connect(address, ca) as channel:
            server_pb2_grpc.ServerServiceStub(channel).CheckIn(
                server_pb2.CheckInRequest(population="films"), timeout=_SECONDS
            )
    except (grpc.RpcError, ServiceError):
        return False
    return True

"""A server's service of local reports alone, over TLS: a program that tests kill and start again, and its devices.

Run as a program, it serves one task::

    python local_service.py FOLDER DATABASE

FOLDER has the signed task; DATABASE is "sqlite", for a file in FOLDER, or the URL of a PostgreSQL. Its address is the
first line of its output.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

import odp
from odp._system.files.state_folder import StateFolder
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.crypto.signing import SigningKey
from odp.evaluation.noise import SeededNoise
from odp.numerics.arrays import Float64Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.signed.task import open_task, sign_task, task_sha256
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.v1 import common_pb2, local_pb2, local_pb2_grpc
from server.local.desk import Desk
from server.local.servicer import NAME, immediate, local_servicer
from server.local.steps import reporter_of
from server.operator_token import OperatorToken
from server.storage import Storage, TaskRecord
from server.storage.sqlite import open_sqlite

SECONDS = 60.0
_TASK, _CA = "task", "ca"
_NOTHING = LocalRows(np.zeros(0, np.int64), np.zeros(0), {})


def prepare(folder: Path, task: odp.DrawAndDiscard) -> common_pb2.SignedTask:
    """Signs a task and puts it where the program finds it."""
    signed = sign_task(task.definition(), SigningKey.from_bytes(hashlib.sha256(b"local service").digest()))
    folder.mkdir(exist_ok=True)
    (folder / _TASK).write_bytes(signed.SerializeToString())
    return signed


def opened(folder: Path, database: str) -> Storage:
    """The storage of the program."""
    if database == "sqlite":
        return open_sqlite(folder / "server.sqlite")
    from server.storage.postgresql import open_postgresql

    return open_postgresql(database)


def main(folder: Path, database: str) -> None:
    """Serves until its standard input ends."""
    signed = common_pb2.SignedTask.FromString((folder / _TASK).read_bytes())
    storage, log = opened(folder, database), Log("server", stream=sys.stderr)
    definition, sha256 = open_task(signed), task_sha256(signed)
    storage.add_task(TaskRecord(sha256, definition.name, definition.population, signed.definition, signed.signature, 0))
    reporter = reporter_of(definition)
    assert reporter is not None
    desk = Desk(storage.reports, log=log)
    desk.open(sha256, reporter)
    answering = local_servicer(storage=storage, desk=desk, operator=OperatorToken("token", "token"), log=log)
    with StateFolder.open(folder / "state", "server") as state:
        service = serve(
            address="127.0.0.1:0", identity=development_identity(state, folder / _CA), workers=16,
            service_names=[NAME], immediate=immediate(desk),
            add=lambda server: local_pb2_grpc.add_LocalServiceServicer_to_server(answering, server),
        )  # fmt: skip
        sys.stdout.write(f"{service.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
        service.stop()
        desk.stop()
        storage.close()


class Program:
    """The program, started anew after each kill."""

    def __init__(self, folder: Path, database: str) -> None:
        self._arguments = [sys.executable, __file__, str(folder), database]
        self.ca = folder / _CA / "ca.pem"
        self.start()

    def start(self) -> None:
        """Starts it and waits for its address."""
        self._process = subprocess.Popen(
            self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        assert self.address, "the service did not start"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(SECONDS)

    def stop(self) -> None:
        """Ends it in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)


class Load:
    """Devices without data that report one after the other, ``count`` at a time, each until it has its answer."""

    def __init__(self, program: Program, task: common_pb2.SignedTask, *, count: int, updates: int) -> None:
        self._program, self._count, self._updates = program, count, updates
        self._sha256, definition = task_sha256(task), open_task(task)
        algorithm = algorithm_for(definition)
        assert isinstance(algorithm, LocalReporter)
        self._algorithm = algorithm
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._next = 0
        self.answered = 0
        self.retries = 0
        self.refusals: list[int] = []
        self.errors: list[BaseException] = []

    def run(self, *, in_the_middle: Callable[[], None] | None = None) -> None:
        """All reports; ``in_the_middle`` is called once half of them are answered."""
        threads = [threading.Thread(target=self._devices, args=(number,)) for number in range(self._count)]
        for thread in threads:
            thread.start()
        if in_the_middle is not None:
            with self._changed:
                assert self._changed.wait_for(lambda: self.answered >= self._updates // 2 or self.errors, 3600.0)
            in_the_middle()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _devices(self, number: int) -> None:
        source = RandomSource(SeededNoise(number))
        try:
            stub = self._stub()
            while (report := self._take()) is not None:
                stub = self._report(stub, report, source)
        except BaseException as error:
            self.errors.append(error)
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> int | None:
        with self._lock:
            if self._next == self._updates:
                return None
            self._next += 1
            return self._next

    def _report(
        self, stub: local_pb2_grpc.LocalServiceStub, report: int, source: RandomSource
    ) -> local_pb2_grpc.LocalServiceStub:
        made: local_pb2.ReportRequest | None = None
        while True:
            address = self._program.address
            try:
                if made is None:
                    drawn = stub.Draw(local_pb2.DrawRequest(task_sha256=self._sha256), timeout=SECONDS).row
                    content = self._algorithm.report(
                        drawn, {self._algorithm.local_data[0].name: _NOTHING}, source=source
                    )
                    made = local_pb2.ReportRequest(
                        task_sha256=self._sha256, report_id=report.to_bytes(32, "big"), report=content
                    )
                refusal = stub.Report(made, timeout=SECONDS).refusal
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                with self._changed:
                    self.retries += 1
                    # Until the killed program listens again, at another address.
                    self._changed.wait_for(lambda before=address: self._program.address != before, SECONDS)
                stub = self._stub()
                continue
            with self._changed:
                self.answered += 1
                if refusal:
                    self.refusals.append(refusal)
                self._changed.notify_all()
            return stub

    def _stub(self) -> local_pb2_grpc.LocalServiceStub:
        return local_pb2_grpc.LocalServiceStub(connect(self._program.address, self._program.ca.read_bytes()))

    def restarted(self) -> None:
        """Tells the devices that the program listens again."""
        with self._changed:
            self._changed.notify_all()


def spread_of(rows: list[bytes]) -> float:
    """The mean over the weights of the variance over instances, in squared steps."""
    instances = np.stack([np.frombuffer(row, "<i4") for row in rows]).astype(np.float64)
    return float(instances.var(axis=0, ddof=1).mean())


def simulated_spreads(
    *, instances: int, weights: int, updates: int, in_flight: int, chains: int, seed: int
) -> Float64Array:
    """``spread_of`` of many simulated services, in squared scales of the noise: float64 [chains].

    ``in_flight`` devices have drawn at any time; whichever is the next one reports, and another one draws. Old draws
    lie further apart, so the spread is larger than that of one device after the other, instances * scale^2.
    """
    generator = np.random.default_rng(seed)
    rows = generator.normal(0.0, np.sqrt(instances), (chains, instances, weights))
    every = np.arange(chains)
    drawn = rows[every[:, None], generator.integers(0, instances, (chains, in_flight))]
    for _ in range(updates):
        who = generator.integers(0, in_flight, chains)
        report = drawn[every, who] + generator.laplace(0.0, 1.0, (chains, weights))
        rows[every, generator.integers(0, instances, chains)] = report
        drawn[every, who] = rows[every, generator.integers(0, instances, chains)]
    spreads: Float64Array = rows.var(axis=1, ddof=1).mean(axis=1)
    return spreads


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

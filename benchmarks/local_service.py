"""Reports of local trust over TLS, beside bare gRPC: the same two calls per report, of the same bytes, that do nothing.

``python -m benchmarks.local_service FOLDER {service,sync,aio}`` serves until its stdin ends; its address is in
``FOLDER/address``, the CA that clients pin in ``FOLDER/ca/ca.pem``, and the signed task in ``FOLDER/task``.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

import odp
from benchmarks.harness import Figure, Limit
from odp._system.files.state_folder import StateFolder, write_atomically
from odp.crypto.signing import SigningKey
from odp.errors import OdpError
from odp.signed.task import open_task, sign_task, task_sha256
from odp.transport.channel import MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import identity_for
from odp.v1 import aggregator_pb2, common_pb2, local_pb2, local_pb2_grpc
from server.local.desk import Desk
from server.local.servicer import NAME, immediate, local_servicer
from server.local.steps import reporter_of
from server.operator_token import OperatorToken
from server.storage import TaskRecord
from server.storage.sqlite import open_sqlite

_IN_FLIGHT = 64
_INSTANCES = 20
_NOISE = 2**20
_OPTIONS = [("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0)]


def run(quick: bool) -> list[Figure]:
    """Reports per second by the number of weights and of instances."""
    seconds = 1.0 if quick else 5.0
    figures = []
    for weights in (33, 387, 50_000):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            ours = _rate(root / "service", "service", _task(weights, _INSTANCES), seconds)
            bare = max(_rate(root / kind, kind, _task(weights, _INSTANCES), seconds) for kind in ("sync", "aio"))
        limit = Limit("bare gRPC", bare)
        figures.append(Figure(f"model updates over TLS, {weights:,} weights", ours, "/s", limit=limit))
        figures.append(Figure(f"model updates of bare gRPC's, {weights:,} weights", ours / bare, "", ">= 0.5"))
    rates = []
    for instances in (3, 100):
        with tempfile.TemporaryDirectory() as folder:
            rates.append(_rate(Path(folder) / "service", "service", _task(33, instances), seconds))
    figures.append(Figure("model updates with 100 instances, of those with 3", rates[1] / rates[0], "", ">= 0.8"))
    return figures


def _task(weights: int, instances: int) -> common_pb2.SignedTask:
    task = odp.DrawAndDiscard(
        name="clicks", features={"x": odp.Number(size=weights - 1)}, epsilon=1000.0, per="model", instances=instances,
        false_alarms=0.01,
    )  # fmt: skip
    return sign_task(task.definition(), SigningKey.generate())


def _rate(folder: Path, kind: str, task: common_pb2.SignedTask, seconds: float) -> float:
    """Reports per second of 64 devices without data."""
    folder.mkdir(mode=0o700)
    (folder / "task").write_bytes(task.SerializeToString())
    with _program(folder, kind) as address:
        credentials = grpc.ssl_channel_credentials((folder / "ca" / "ca.pem").read_bytes())
        return asyncio.run(_load(address, credentials, task, seconds))


@contextlib.contextmanager
def _program(folder: Path, kind: str) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.local_service", str(folder), kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None  # narrows the type
    try:
        while not (folder / "address").exists():
            if process.poll() is not None:
                raise OdpError(f"the program {kind!r} of the benchmark ended with {process.returncode}")
            time.sleep(0.01)
        yield (folder / "address").read_text()
    finally:
        process.stdin.close()
        process.wait(60.0)


async def _load(
    address: str, credentials: grpc.ChannelCredentials, task: common_pb2.SignedTask, seconds: float
) -> float:
    options = [("grpc.max_receive_message_length", MAX_REPLY_BYTES)]
    sha256, terms = task_sha256(task), open_task(task).draw_and_discard
    # Of honest devices without data: reports that are no noise would be spam.
    generator = np.random.default_rng(1)
    noise = np.rint(generator.laplace(0.0, terms.noise_scale, _NOISE + terms.weights)).astype("<i4")
    done = 0
    measuring = False

    def moved(row: bytes) -> bytes:
        start = int(generator.integers(_NOISE))
        report: bytes = (np.frombuffer(row, "<i4") + noise[start : start + terms.weights]).tobytes()
        return report

    async def device(number: int, stub: Any) -> None:
        nonlocal done
        request, count = local_pb2.DrawRequest(task_sha256=sha256), 0
        while True:
            row = (await stub.Draw(request, timeout=60.0)).row
            count += 1
            report_id = number.to_bytes(16, "big") + count.to_bytes(16, "big")
            answer = await stub.Report(
                local_pb2.ReportRequest(task_sha256=sha256, report_id=report_id, report=moved(row)), timeout=60.0
            )
            if answer.refusal not in (aggregator_pb2.REFUSAL_UNSPECIFIED, aggregator_pb2.REFUSAL_OUT_OF_BOUNDS):
                raise OdpError(f"a report was refused: {answer.refusal}")
            done += measuring

    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.secure_channel(address, credentials, options)) for _ in range(4)
        ]
        stubs = [local_pb2_grpc.LocalServiceStub(channel) for channel in channels]
        devices = [asyncio.create_task(device(number, stubs[number % 4])) for number in range(_IN_FLIGHT)]
        await asyncio.wait(devices, timeout=0.5)
        measuring, began = True, time.perf_counter()
        await asyncio.wait(devices, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        elapsed, count = time.perf_counter() - began, done
        for one in devices:
            one.cancel()
        for found in await asyncio.gather(*devices, return_exceptions=True):
            if not isinstance(found, asyncio.CancelledError):
                raise OdpError("a device of the benchmark ended") from (
                    found if isinstance(found, BaseException) else None
                )
    return count / elapsed


def main(arguments: Sequence[str]) -> int:
    """Serves; see the module."""
    folder, kind = Path(arguments[0]), arguments[1]
    task = common_pb2.SignedTask.FromString((folder / "task").read_bytes())
    with StateFolder.open(folder, "bare-grpc") as state:
        tls = identity_for(state, certificate=None, key=None, ca=None, ca_folder=None)
        if kind == "service":
            _serve(folder, task, tls)
        elif kind == "aio":
            asyncio.run(_serve_aio(folder, task, tls))
        else:
            _serve_sync(folder, task, tls)
    return 0


def _serve(folder: Path, task: common_pb2.SignedTask, tls: Any) -> None:
    log = Log("server")
    storage = open_sqlite(folder / "server.sqlite")
    definition, sha256 = open_task(task), task_sha256(task)
    storage.add_task(TaskRecord(sha256, definition.name, definition.population, task.definition, task.signature, 0))
    reporter = reporter_of(definition)
    assert reporter is not None  # narrows the type
    desk = Desk(storage.reports, log=log)
    desk.open(sha256, reporter)
    answering = local_servicer(storage=storage, desk=desk, operator=OperatorToken("token", "token"), log=log)
    service = serve(
        address="127.0.0.1:0", identity=tls, workers=16, service_names=[NAME], immediate=immediate(desk),
        add=lambda server: local_pb2_grpc.add_LocalServiceServicer_to_server(answering, server),
    )  # fmt: skip
    write_atomically(folder / "address", service.address.encode())
    sys.stdin.read()
    service.stop()
    desk.stop()
    storage.close()


def _handlers(task: common_pb2.SignedTask) -> tuple[Any, Any]:
    """Draw and Report that answer at once with bytes of the right length."""
    reporter = reporter_of(open_task(task))
    assert reporter is not None  # narrows the type
    drawn, taken = local_pb2.DrawResponse(row=bytes(reporter.row_bytes)), local_pb2.ReportResponse()

    def draw(request: local_pb2.DrawRequest, context: object) -> local_pb2.DrawResponse:
        return drawn

    def report(request: local_pb2.ReportRequest, context: object) -> local_pb2.ReportResponse:
        return taken

    return draw, report


def _generic(draw: Any, report: Any) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        NAME,
        {
            "Draw": grpc.unary_unary_rpc_method_handler(
                draw, local_pb2.DrawRequest.FromString, local_pb2.DrawResponse.SerializeToString
            ),
            "Report": grpc.unary_unary_rpc_method_handler(
                report, local_pb2.ReportRequest.FromString, local_pb2.ReportResponse.SerializeToString
            ),
        },
    )


def _serve_sync(folder: Path, task: common_pb2.SignedTask, tls: Any) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=_OPTIONS)
    server.add_generic_rpc_handlers((_generic(*_handlers(task)),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(tls.key_pem, tls.certificate_pem)]))
    server.start()
    write_atomically(folder / "address", f"127.0.0.1:{port}".encode())
    sys.stdin.read()
    server.stop(0).wait()


async def _serve_aio(folder: Path, task: common_pb2.SignedTask, tls: Any) -> None:
    draw, report = _handlers(task)

    async def drawn(request: local_pb2.DrawRequest, context: object) -> local_pb2.DrawResponse:
        answer: local_pb2.DrawResponse = draw(request, context)
        return answer

    async def reported(request: local_pb2.ReportRequest, context: object) -> local_pb2.ReportResponse:
        answer: local_pb2.ReportResponse = report(request, context)
        return answer

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_generic(drawn, reported),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(tls.key_pem, tls.certificate_pem)]))
    await server.start()
    write_atomically(folder / "address", f"127.0.0.1:{port}".encode())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

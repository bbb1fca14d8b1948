"""A whole round of SecAgg+ over gRPC and TLS on the loopback: the host is another process, all clients are this one.

    python -m benchmarks.secagg_network FOLDER CLIENTS LENGTH       the host, until it has the sum

Timed from the first advert to the sum in the host's hands; keys of the clients are made before. A tenth of the clients
leaves after the shares, and says so: what a host waits for clients that say nothing is a setting and not a speed.
"""

from __future__ import annotations

import hashlib
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from device_runtime.network.services import step_of
from odp.crypto.secure_aggregation import shamir
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.transport.channel import CHUNK_BYTES, connect
from odp.v1 import secagg_service_pb2, secagg_service_pb2_grpc, secure_aggregation_pb2 as messages

_SECONDS = 300.0


def configuration(clients: int, length: int) -> Configuration:
    """Five in a hundred corrupt and a tenth dropped need the complete graph at these sizes, or nearly."""
    config = messages.SecAggConfig(
        task_sha256=bytes(32), round=0, model_sha256=bytes(32), length=length, bits=32, bound=2**16, maximum=clients,
        minimum=max(3, clients // 2), corrupt=0.05, dropout=0.1, lying_server=True, attempt=0,
    )  # fmt: skip
    return Configuration.open(config.SerializeToString())


def whole_round(vectors: npt.NDArray[np.int64], dropped: set[int]) -> float:
    """Seconds of one round; raises ArithmeticError where the host's sum is not that of the vectors."""
    clients, length = vectors.shape
    _warm_up()
    expected = vectors[[number for number in range(clients) if number not in dropped]].sum(axis=0)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.secagg_network", folder, str(clients), str(length)]
        host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert host.stdout is not None
            address, ca = host.stdout.readline().strip(), Path(folder, "ca.pem")
            with connect(address, ca) as channel:
                everybody = _Everybody(channel, configuration(clients, length), vectors, dropped)
                grpc.channel_ready_future(channel).result(timeout=_SECONDS)
                started = time.perf_counter()
                everybody.run()
                found = host.stdout.readline().strip()
                seconds = time.perf_counter() - started
        finally:
            host.kill()
            host.wait()
            if host.stdout is not None:
                host.stdout.close()
    if found != hashlib.sha256(expected.astype("<i8").tobytes()).hexdigest():
        raise ArithmeticError("the round gave another sum than the vectors'")
    return seconds


def _warm_up() -> None:
    """The kernels are compiled once in the life of a process."""
    shares = shamir.share([bytes(32)], points=range(1, 5), threshold=3)[0]
    shamir.rebuild([1, 2, 3], shares[:3])


class _Everybody:
    """All clients, each with one call under way; one thread advances whoever has an answer."""

    def __init__(self, channel: Any, given: Configuration, vectors: npt.NDArray[np.int64], dropped: set[int]) -> None:
        self._stub = secagg_service_pb2_grpc.SecureAggregationServiceStub(channel)
        self._clients = [Client(given, SigningKey.generate()) for _ in vectors]
        self._names = [
            secagg_service_pb2.SecAggClient(
                task_sha256=given.task_sha256, identity=client.advert.identity, token=number.to_bytes(32, "big")
            )
            for number, client in enumerate(self._clients)
        ]
        self._vectors = vectors
        self._dropped = dropped
        self._answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        for number, client in enumerate(self._clients):
            self._send(number, advert=client.advert)
        left = len(self._clients)
        while left:
            number, done = self._answers.get(timeout=_SECONDS)
            left -= not self._next(number, step_of(done.result()))

    def _next(self, number: int, answer: Any) -> bool:
        client, kind = self._clients[number], answer.WhichOneof("answer")
        if kind == "adverts":
            self._send(number, reveal=client.reveal(answer.adverts))
        elif kind == "reveals":
            self._send(number, shares=client.share(answer.reveals))
        elif kind == "inbox" and number in self._dropped:
            self._send(number, leave=True)
        elif kind == "inbox":
            self._send(number, masked=client.mask(answer.inbox, self._vectors[number]))
        elif kind == "survivors":
            self._send(number, agreement=client.agree(answer.survivors))
        elif kind == "agreements":
            self._send(number, unmask=client.unmask(answer.agreements))
        elif kind == "wait":
            self._send(number)
        return bool(kind != "end")

    def _send(self, number: int, **message: Any) -> None:
        request = secagg_service_pb2.StepRequest(client=self._names[number], **message)
        if len(request.masked.vector) > CHUNK_BYTES:
            call = self._stub.SendMasked.future(_parts(request), timeout=_SECONDS)
        else:
            call = self._stub.Step.future(request, timeout=_SECONDS)
        call.add_done_callback(lambda done: self._answers.put((number, done)))


def _parts(request: Any) -> Iterator[Any]:
    yield secagg_service_pb2.SendMaskedRequest(client=request.client)
    yield secagg_service_pb2.SendMaskedRequest(session=request.masked.session)
    vector = request.masked.vector
    for start in range(0, len(vector), CHUNK_BYTES):
        yield secagg_service_pb2.SendMaskedRequest(chunk=vector[start : start + CHUNK_BYTES])


def main() -> None:
    """The host of one session: prints its address, then the hash of the sum."""
    from odp._system.files.state_folder import StateFolder
    from odp.transport.logs import Log
    from odp.transport.service import serve
    from odp.transport.tls import identity_for
    from trusted_aggregator.modes.secagg.clients import Phase
    from trusted_aggregator.modes.secagg.limits import Pace, SessionLimits
    from trusted_aggregator.modes.secagg.servicer import MOST_WAITING, NAME, SecureAggregationService, secagg_servicer
    from trusted_aggregator.modes.secagg.session import LiveSession

    folder, clients, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    session = LiveSession(
        configuration(clients, length), goal=clients, patience=_SECONDS, pace=Pace(), clock=time.monotonic,
        limits=SessionLimits(threads=2),
    )  # fmt: skip

    class One:
        def session(self, key: object, attempt: int) -> LiveSession:
            return session

    with StateFolder.open(folder / "state", "aggregator") as state:
        tls = identity_for(state, certificate=None, key=None, ca=None, ca_folder=None)
        (folder / "ca.pem").write_bytes(tls.ca_pem)
        servicer = secagg_servicer(SecureAggregationService(One()), Log("aggregator"))  # type: ignore[arg-type]
        server = serve(
            address="127.0.0.1:0", identity=tls, service_names=[NAME], workers=8 + MOST_WAITING,
            add=lambda into: secagg_service_pb2_grpc.add_SecureAggregationServiceServicer_to_server(servicer, into),
        )  # fmt: skip
        _warm_up()
        print(server.address, flush=True)
        while session.phase is not Phase.READY:
            time.sleep(0.001)
        session.allow_unmasking()
        print(hashlib.sha256(session.finish().astype("<i8").tobytes()).hexdigest(), flush=True)
        time.sleep(_SECONDS)


if __name__ == "__main__":
    main()

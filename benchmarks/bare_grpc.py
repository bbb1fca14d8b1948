"""What gRPC itself costs: a TLS server whose unary call parses a contribution's envelope and does nothing else.

``python -m benchmarks.bare_grpc FOLDER {sync,aio} WORKERS`` serves until its stdin ends; its address is in
``FOLDER/address``, the CA that clients pin in ``FOLDER/ca/ca.pem``. Certificates and options are those of every program
of ODP. ``FOLDER download WORKERS BYTES`` streams so many bytes of its memory to whoever asks for a download, in chunks
of 1 MiB.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from odp._system.files.state_folder import StateFolder, write_atomically
from odp.transport.channel import CHUNK_BYTES, MAX_REQUEST_BYTES
from odp.transport.tls import identity_for
from odp.v1 import aggregator_pb2, distributor_pb2

#: The full name of the call, the same as of the real one, so that one client serves both.
METHOD = "/odp.v1.AggregatorService/Submit"
DOWNLOAD = "/odp.v1.DistributorService/Download"

_OPTIONS = [("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0)]


def main(arguments: Sequence[str]) -> int:
    """Serves; see the module."""
    folder, kind = Path(arguments[0]), arguments[1]
    with StateFolder.open(folder, "bare-grpc") as state:
        tls = identity_for(state, certificate=None, key=None, ca=None, ca_folder=None)
    credentials = grpc.ssl_server_credentials([(tls.key_pem, tls.certificate_pem)])
    ready: Callable[[int], None] = lambda port: write_atomically(folder / "address", f"127.0.0.1:{port}".encode())  # noqa: E731
    if kind == "download":
        _serve_download(credentials, ready, workers=int(arguments[2]), size=int(arguments[3]))
    elif kind == "aio":
        asyncio.run(_serve_aio(credentials, ready))
    else:
        _serve_sync(credentials, ready, workers=int(arguments[2]))
    return 0


def _serve_sync(credentials: grpc.ServerCredentials, ready: Callable[[int], None], *, workers: int) -> None:
    def submit(request: aggregator_pb2.SubmitRequest, context: grpc.ServicerContext) -> aggregator_pb2.SubmitResponse:
        return aggregator_pb2.SubmitResponse()

    _run(_handlers(submit), credentials, ready, workers)


def _serve_download(
    credentials: grpc.ServerCredentials, ready: Callable[[int], None], *, workers: int, size: int
) -> None:
    chunks = [bytes(min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES)]

    def download(
        request: distributor_pb2.DownloadRequest, context: grpc.ServicerContext
    ) -> Iterator[distributor_pb2.DownloadResponse]:
        return (distributor_pb2.DownloadResponse(chunk=chunk) for chunk in chunks)

    handler = grpc.unary_stream_rpc_method_handler(
        download,
        request_deserializer=distributor_pb2.DownloadRequest.FromString,
        response_serializer=distributor_pb2.DownloadResponse.SerializeToString,
    )
    service, method = DOWNLOAD[1:].split("/")
    _run(grpc.method_handlers_generic_handler(service, {method: handler}), credentials, ready, workers)


def _run(
    handlers: grpc.GenericRpcHandler,
    credentials: grpc.ServerCredentials,
    ready: Callable[[int], None],
    workers: int,
) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=workers), options=_OPTIONS)
    server.add_generic_rpc_handlers((handlers,))
    ready(server.add_secure_port("127.0.0.1:0", credentials))
    server.start()
    sys.stdin.read()
    server.stop(0).wait()


async def _serve_aio(credentials: grpc.ServerCredentials, ready: Callable[[int], None]) -> None:
    async def submit(request: aggregator_pb2.SubmitRequest, context: Any) -> aggregator_pb2.SubmitResponse:
        return aggregator_pb2.SubmitResponse()

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(submit),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    ready(port)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


def _handlers(submit: Callable[..., Any]) -> grpc.GenericRpcHandler:
    service, method = METHOD[1:].split("/")
    handler = grpc.unary_unary_rpc_method_handler(
        submit,
        request_deserializer=aggregator_pb2.SubmitRequest.FromString,
        response_serializer=aggregator_pb2.SubmitResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(service, {method: handler})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

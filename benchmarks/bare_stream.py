"""``python -m benchmarks.bare_stream``: the aggregator's stream over the same gRPC and TLS, with nothing behind it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc

from odp._system.files.state_folder import StateFolder
from odp.operations.local.foreground import serve_until_stopped
from odp.transport.logs import Log
from odp.transport.running import Running
from odp.transport.service import serve
from odp.transport.tls import identity_for
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc

_WORKERS = 32


class _Sink(aggregator_pb2_grpc.AggregatorServiceServicer):
    def SubmitStream(
        self, request_iterator: Iterator[aggregator_pb2.SubmitStreamRequest], context: grpc.ServicerContext
    ) -> aggregator_pb2.SubmitStreamResponse:
        for request in request_iterator:
            len(request.chunk)
        return aggregator_pb2.SubmitStreamResponse()


def main() -> None:
    """Serves until it is stopped, as the programs of `odp` do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--ca-folder", type=Path, required=True)
    parser.add_argument("--with-parent", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(given.state, "bare"))
        tls = identity_for(state, certificate=None, key=None, ca=None, ca_folder=given.ca_folder)

        def add(server: grpc.Server) -> None:
            sink = _Sink()  # type: ignore[abstract]  # its other methods answer UNIMPLEMENTED
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(sink, server)

        server = serve(
            address="127.0.0.1:0", identity=tls, add=add, service_names=["odp.v1.AggregatorService"], workers=_WORKERS
        )
        undo.callback(server.stop)
        running = Running(address=server.address, ca_pem=tls.ca_pem, closing=undo.pop_all(), log=Log("bare"))
    serve_until_stopped(running, state=given.state, with_parent=given.with_parent)


if __name__ == "__main__":
    main()

"""A listener of two calls, here or in a process of its own: what a busy machine alone costs, and what a guard costs."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import psutil

from odp._system.files.state_folder import StateFolder
from odp.transport import service
from odp.transport.service import RunningServer, serve
from odp.transport.tls import development_identity

UNARY, STREAM = "/odp.test.Test/Do", "/odp.test.Test/Upload"


@contextlib.contextmanager
def listening(folder: Path, **settings: Any) -> Iterator[RunningServer]:
    """A call that takes a message, and one that takes many; both reply with the bytes they got. Its CA is
    ``folder/ca/ca.pem``.
    """
    methods = {
        "Do": grpc.unary_unary_rpc_method_handler(lambda request, _: str(len(request)).encode()),
        "Upload": grpc.stream_unary_rpc_method_handler(lambda requests, _: str(sum(map(len, requests))).encode()),
    }
    handler = grpc.method_handlers_generic_handler("odp.test.Test", methods)
    with StateFolder.open(folder / "state", "server") as state:
        running = serve(
            address="127.0.0.1:0",
            identity=development_identity(state, folder / "ca"),
            add=lambda server: server.add_generic_rpc_handlers((handler,)),
            service_names=["odp.test.Test"],
            workers=2,
            **settings,
        )
        try:
            yield running
        finally:
            running.stop(0.0)


@contextlib.contextmanager
def in_another_process(folder: Path, *, guarded: bool = True) -> Iterator[tuple[str, psutil.Process]]:
    """Such a listener in a process of its own: its address, and the process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, there, guarded), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(60.0), "the other process did not start"
        yield here.recv(), psutil.Process(process.pid)
    finally:
        here.close()  # it stops then
        process.join(20.0)
        process.kill()


def _serve(folder: Path, test: Connection, guarded: bool) -> None:
    if not guarded:
        service.Guard = lambda *_: None  # type: ignore[misc, assignment]
    with listening(folder) as running:
        test.send(running.address)
        with contextlib.suppress(EOFError):
            test.recv()

"""A TLS server on a free port, with one method that fails as the test says."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from odp._system.files.state_folder import StateFolder
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import RunningServer, answers, serve
from odp.transport.tls import TlsIdentity, development_identity

METHOD = "/odp.test.Test/Do"


@pytest.fixture(scope="module", autouse=True)
def _guards(guards_as_delivered: None) -> None:
    """Guards are among what is tested here."""


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def identity(tmp_path: Path, stack: contextlib.ExitStack) -> TlsIdentity:
    return development_identity(stack.enter_context(StateFolder.open(tmp_path / "state", "server")))


@pytest.fixture
def other_ca(tmp_path: Path, stack: contextlib.ExitStack) -> bytes:
    return development_identity(stack.enter_context(StateFolder.open(tmp_path / "other", "server"))).ca_pem


class Service:
    """``/odp.test.Test/Do``: calls ``behave`` with the request's bytes and answers with what it returns."""

    def __init__(self, identity: TlsIdentity, stack: contextlib.ExitStack) -> None:
        self.identity = identity
        self.lines = io.StringIO()
        self.behave: Callable[[bytes, grpc.ServicerContext], bytes] = lambda request, _: request
        self._stack = stack

        class Test:
            @answers(Log("test", stream=self.lines))
            def do(_, request: bytes, context: grpc.ServicerContext) -> bytes:  # self is the fixture's
                return self.behave(request, context)

        handler = grpc.method_handlers_generic_handler(
            "odp.test.Test", {"Do": grpc.unary_unary_rpc_method_handler(Test().do)}
        )
        self.running: RunningServer = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=lambda server: server.add_generic_rpc_handlers((handler,)),
            service_names=["odp.test.Test"],
        )
        stack.callback(self.running.stop, 0.0)
        self.address = self.running.address

    def method(self, ca: bytes | None = None, address: str | None = None) -> Callable[..., bytes]:
        channel = connect(address or self.address, ca or self.identity.ca_pem)
        return self._stack.enter_context(channel).unary_unary(METHOD)


@pytest.fixture
def service(identity: TlsIdentity, stack: contextlib.ExitStack) -> Service:
    return Service(identity, stack)


@pytest.fixture
def plain_port(stack: contextlib.ExitStack) -> int:
    """A port that speaks gRPC without TLS."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stack.callback(lambda: server.stop(0).wait())
    return port

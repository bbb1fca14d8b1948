"""Services: one status code per kind of error, silence about the unforeseen, health, ports, an orderly stop."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp.crypto.signing import SignatureError
from odp.errors import (
    AttestationError,
    BudgetExceeded,
    ConfigurationError,
    DataError,
    OdpError,
    PrivacyError,
    ServiceUnavailable,
    StateError,
)
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import NotFound, Unauthenticated, serve, servicer
from odp.v1 import distributor_pb2_grpc


def _status(service) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        service.method()(b"x", timeout=10.0)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("m"), grpc.StatusCode.NOT_FOUND),
        (Unauthenticated("m"), grpc.StatusCode.UNAUTHENTICATED),
        (SignatureError("m"), grpc.StatusCode.PERMISSION_DENIED),
        (ConfigurationError("m"), grpc.StatusCode.INVALID_ARGUMENT),
        (DataError("m"), grpc.StatusCode.INVALID_ARGUMENT),
        (PrivacyError("m"), grpc.StatusCode.FAILED_PRECONDITION),
        (BudgetExceeded("m"), grpc.StatusCode.FAILED_PRECONDITION),
        (ServiceUnavailable("m"), grpc.StatusCode.UNAVAILABLE),
        (OdpError("m"), grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_each_kind_of_error_has_its_code_and_keeps_its_line(service, error: OdpError, code: grpc.StatusCode) -> None:
    def fail(*_: object) -> bytes:
        raise error

    service.behave = fail
    assert _status(service) == (code, "m")
    assert service.lines.getvalue() == ""


def test_what_is_wrong_with_the_operators_files_is_for_the_log_alone(service) -> None:
    def fail(*_: object) -> bytes:
        raise StateError("state folder /var/odp/server: Input/output error")

    service.behave = fail
    assert _status(service) == (grpc.StatusCode.INTERNAL, "the service cannot use its storage; see its log")
    assert "/var/odp/server" in service.lines.getvalue()


def test_a_refused_attestation_keeps_its_reason(service) -> None:
    def fail(*_: object) -> bytes:
        raise AttestationError("digest", "the image is not pinned")

    service.behave = fail
    code, line = _status(service)
    assert (code, line) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "evidence refused (digest): the image is not pinned",
    )


def test_an_unforeseen_error_tells_the_caller_nothing_and_the_log_only_the_place(service) -> None:
    def fail(*_: object) -> bytes:
        raise KeyError("a rating of Gattaca")

    service.behave = fail
    code, line = _status(service)
    assert code is grpc.StatusCode.INTERNAL
    assert line == "internal error; see the service's log"
    logged = service.lines.getvalue()
    assert "kind=KeyError" in logged
    assert "fail:" in logged
    assert "Gattaca" not in logged


def test_a_status_that_a_method_sets_itself_is_kept(service) -> None:
    def fail(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.OUT_OF_RANGE, "mine")

    service.behave = fail
    assert _status(service) == (grpc.StatusCode.OUT_OF_RANGE, "mine")
    assert service.lines.getvalue() == ""


def test_a_port_in_use_is_one_line(service) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen on {service.address}: the port is in use"):
        serve(address=service.address, identity=service.identity, add=lambda server: None, service_names=[])


def test_health_follows_what_the_program_says_and_needs_no_token(service, stack) -> None:
    stub = health_pb2_grpc.HealthStub(stack.enter_context(connect(service.address, service.identity.ca_pem)))

    def states() -> list[int]:
        return [
            stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10.0).status
            for name in ("", "odp.test.Test")
        ]

    assert states() == [health_pb2.HealthCheckResponse.SERVING] * 2
    service.running.set_serving(False)
    assert states() == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2


def test_stop_lets_a_call_in_flight_end_and_can_be_repeated(service) -> None:
    entered, release = threading.Event(), threading.Event()

    def slow(request: bytes, _: object) -> bytes:
        entered.set()
        release.wait(20)
        return request

    service.behave = slow
    method = service.method()
    answer = method.future(b"kept", timeout=20.0)
    assert entered.wait(10)
    stopping = threading.Thread(target=service.running.stop)
    stopping.start()
    release.set()
    assert answer.result(timeout=10) == b"kept"
    stopping.join(10)
    assert not stopping.is_alive()
    service.running.stop()


def test_a_servicer_has_all_methods_of_its_service_and_no_other() -> None:
    log = Log("test", stream=io.StringIO())
    methods: dict[str, Callable[[Any, Any], object]] = {"Select": lambda *_: None, "Download": lambda *_: None}
    with pytest.raises(ConfigurationError, match="'ListBlocks'"):
        servicer(distributor_pb2_grpc.DistributorServiceServicer, log, methods)
    with pytest.raises(ConfigurationError, match="'More'"):
        servicer(
            distributor_pb2_grpc.DistributorServiceServicer,
            log,
            {**methods, "ListBlocks": lambda *_: None, "More": lambda *_: None},
        )

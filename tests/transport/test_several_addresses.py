"""Several addresses of one service: calls go in turn to those that serve; what one did not answer goes to another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp.errors import ConfigurationError, ServiceUnavailable
from odp.transport.channel import call, connect, parse_addresses
from odp.transport.limits import Limits
from odp.transport.service import RunningServer, serve

METHOD = "/odp.test.Test/Do"
SECONDS = 30.0
_pause = threading.Event().wait


class Replicas:
    """Servers of one method that says which of them answered; ``method`` reaches all."""

    def __init__(self, count: int, identity: object, stack: object, *, limits: Limits | None = None) -> None:
        self.identity = identity
        self.stack = stack
        self.limits = limits
        self.running = [self.start(number) for number in range(count)]
        channel = stack.enter_context(connect(",".join(one.address for one in self.running), identity.ca_pem))
        self.method = channel.unary_unary(METHOD)

    def start(self, number: int, address: str = "127.0.0.1:0") -> RunningServer:
        handler = grpc.method_handlers_generic_handler(
            "odp.test.Test", {"Do": grpc.unary_unary_rpc_method_handler(lambda request, context: b"%d" % number)}
        )
        running = serve(
            address=address, identity=self.identity, add=lambda server: server.add_generic_rpc_handlers((handler,)),
            service_names=["odp.test.Test"], limits=self.limits,
        )  # fmt: skip
        self.stack.callback(running.stop, 0.1)
        return running

    def ask(self) -> int:
        return int(call(self.method, b"", timeout=10.0, what="ask", address="them"))

    def until(self, expected: set[int]) -> None:
        """Waits until 20 calls in a row were answered by ``expected``, and by all of them. No call may fail."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if {self.ask() for _ in range(20)} == expected:
                return
            _pause(0.02)
        pytest.fail(f"not answered by {expected} alone within {SECONDS:.0f} s")


@pytest.fixture
def replicas(identity, stack) -> Replicas:
    return Replicas(3, identity, stack)


def test_calls_go_to_all_in_turn(replicas: Replicas) -> None:
    replicas.until({0, 1, 2})


def test_one_that_reports_that_it_does_not_serve_gets_no_calls_until_it_does_again(replicas: Replicas) -> None:
    replicas.until({0, 1, 2})
    replicas.running[1].set_serving(False)
    replicas.until({0, 2})
    replicas.running[1].set_serving(True)
    replicas.until({0, 1, 2})


def test_one_that_stops_is_left_without_a_failed_call_and_comes_back(replicas: Replicas) -> None:
    replicas.until({0, 1, 2})
    address = replicas.running[2].address
    replicas.running[2].stop(0.0)
    replicas.until({0, 1})
    replicas.start(2, address)
    replicas.until({0, 1, 2})


def test_where_nobody_serves_the_call_ends_with_one_line(replicas: Replicas) -> None:
    for one in replicas.running:
        one.stop(0.0)
    with pytest.raises(ServiceUnavailable) as refused:
        replicas.ask()
    assert "\n" not in str(refused.value)


def test_each_certificate_has_to_be_for_the_first_name(replicas: Replicas, stack) -> None:
    """The development certificate names localhost and its addresses, and nothing else."""
    ports = [one.address.rpartition(":")[2] for one in replicas.running]
    for first, answers in (("localhost", True), ("127.0.0.1", True), ("127.0.0.2", False)):
        addresses = f"{first}:{ports[0]},127.0.0.1:{ports[1]}"
        method = stack.enter_context(connect(addresses, replicas.identity.ca_pem)).unary_unary(METHOD)
        if answers:
            assert call(method, b"", timeout=10.0, what="ask", address=addresses) in (b"0", b"1")
            continue
        with pytest.raises(ServiceUnavailable):
            call(method, b"", timeout=10.0, what="ask", address=addresses)


def test_a_server_of_another_ca_is_refused(replicas: Replicas, other_ca: bytes, stack) -> None:
    addresses = ",".join(one.address for one in replicas.running)
    method = stack.enter_context(connect(addresses, other_ca)).unary_unary(METHOD)
    with pytest.raises(ServiceUnavailable):
        call(method, b"", timeout=10.0, what="ask", address=addresses)


@pytest.mark.parametrize(
    "text", ["", "a:1,", "a:1,,b:2", "a:1, b:2", "a:1,a:1", "a", "a:1,b", ",".join(f"a:{port}" for port in range(17))]
)
def test_what_is_no_list_of_addresses_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected address"):
        parse_addresses(text)


def test_a_name_without_an_address_is_named(identity) -> None:
    with pytest.raises(ServiceUnavailable, match=r"could not find an address of nowhere\.invalid"):
        connect("nowhere.invalid:1,127.0.0.1:2", identity.ca_pem)


def test_a_watch_tells_each_change_and_ends_with_the_program(replicas: Replicas, stack) -> None:
    one = replicas.running[0]
    channel = stack.enter_context(connect(one.address, replicas.identity.ca_pem))
    watch: Callable[..., object] = health_pb2_grpc.HealthStub(channel).Watch
    states = watch(health_pb2.HealthCheckRequest(service=""), timeout=SECONDS)
    assert next(states).status == health_pb2.HealthCheckResponse.SERVING
    one.set_serving(False)
    assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
    one.set_serving(True)
    assert next(states).status == health_pb2.HealthCheckResponse.SERVING
    unknown = watch(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=SECONDS)
    assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    began = time.monotonic()
    one.stop(20.0)
    assert time.monotonic() - began < 15.0, "a watch does not hold up the end"
    assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert list(states) == []


def test_watches_take_no_worker_and_a_broken_request_is_refused(identity, stack) -> None:
    replicas = Replicas(1, identity, stack)
    channel = stack.enter_context(connect(replicas.running[0].address, identity.ca_pem))
    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS) for _ in range(40)]
    assert [next(one).status for one in watches] == [health_pb2.HealthCheckResponse.SERVING] * 40
    assert replicas.ask() == 0
    broken = channel.unary_stream("/grpc.health.v1.Health/Watch")
    with pytest.raises(grpc.RpcError) as refused:
        next(broken(b"\xff\xff", timeout=10.0))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watch_ends_with_the_time_of_a_call_and_clients_ask_again(identity, stack) -> None:
    replicas = Replicas(2, identity, stack, limits=Limits(call_seconds=1.0))
    replicas.until({0, 1})
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        replicas.ask()
    replicas.running[0].set_serving(False)
    replicas.until({1})

"""Whatever a stranger sends to any method of any program, a status is one short printable line without a path."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from security.programs import PROGRAMS

from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.statuses import LONGEST_LINE
from odp.v1 import (  # into the pool
    catalogue_pb2,  # noqa: F401
    enrolment_pb2,  # noqa: F401
    retrieval_pb2,  # noqa: F401
    secagg_service_pb2,  # noqa: F401
    server_pb2,  # noqa: F401
    table_pb2,  # noqa: F401
)

SECONDS = 60.0
#: A text that a terminal would act on, with a path, of half of the largest request.
NOISY = "\x1b[31m /home/operator/secrets/token\r\n\u202e" + "A" * 2**19
SERVICES = {
    "server": ("ServerService", "LogService", "TableService", "CatalogueService"),
    "distributor": ("DistributorService", "RetrievalService", "AttestationService"),
    "aggregator": ("AggregatorService", "SecureAggregationService", "AttestationService"),
    "helper": ("HelperService",),
    "issuer": ("EnrolmentService",),
    "witness": ("WitnessService",),
}


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def _filled(message: Any, depth: int = 3, texts: list[int] | None = None) -> Any:
    """``message`` with something in each field, one long text at most."""
    texts = [1] if texts is None else texts
    for field in message.DESCRIPTOR.fields:
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED
        if field.message_type is not None:
            if not repeated and depth:
                _filled(getattr(message, field.name), depth - 1, texts)
            continue
        value: Any = 1
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            text = NOISY if texts and texts.pop() else "/etc/odp/short"
            value = text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
        elif field.type == FieldDescriptor.TYPE_BOOL:
            value = True
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _requests(method: MethodDescriptor) -> Iterator[bytes]:
    """Hostile requests: nothing, no message, a text of 32 bytes where a hash may be, and every field at its worst."""
    kind = message_factory.GetMessageClass(method.input_type)
    yield b""
    yield NOISY.encode()
    yield _filled(kind()).SerializeToString()
    for field in method.input_type.fields:
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES) and field.message_type is None:
            for text in (NOISY, "/var/lib/odp/" + "h" * 19):
                given = text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
                with contextlib.suppress(TypeError, AttributeError):
                    yield kind(**{field.name: given}).SerializeToString()


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_method_of_a_program_tells_a_stranger_a_path_or_its_own_bytes(
    name: str, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    running = PROGRAMS[name].start(tmp_path, Log(name, stream=io.StringIO()))
    stack.callback(running.stop)
    identity = PROGRAMS[name].identity(tmp_path)
    channel = stack.enter_context(connect(running.address, tmp_path / "ca" / "ca.pem", identity=identity))
    statuses = 0
    for service in SERVICES[name]:
        for method in descriptor_pool.Default().FindServiceByName(f"odp.v1.{service}").methods:
            call = channel.stream_stream(f"/odp.v1.{service}/{method.name}")
            for request in _requests(method):
                error = _error_of(call(iter([request]), timeout=SECONDS))
                if error is not None:
                    statuses += 1
                    assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
                    _check_line(error.details() or "", tmp_path)
    assert statuses >= len(SERVICES[name])


def _error_of(replies: Any) -> Any:
    try:
        list(replies)
    except grpc.RpcError as error:
        return error
    return None


def _check_line(line: str, state: Path) -> None:
    assert 0 < len(line) <= LONGEST_LINE, line[:LONGEST_LINE]
    assert line.isprintable(), line
    for path in (str(state), "/home", "/etc/odp", "/var/lib"):
        assert path not in line, line


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_lists_its_methods_unless_its_operator_says_so(
    name: str, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    for reflection in (False, True):
        folder = tmp_path / str(reflection)
        running = PROGRAMS[name].start(folder, Log(name, stream=io.StringIO()), reflection=reflection)
        stack.callback(running.stop)
        identity = PROGRAMS[name].identity(folder)
        channel = stack.enter_context(connect(running.address, folder / "ca" / "ca.pem", identity=identity))
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="*")])
        replies = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=SECONDS)
        if reflection:
            listed = [each.name for each in next(replies).list_services_response.service]
            assert set(listed) >= {f"odp.v1.{service}" for service in SERVICES[name][:1]}
        else:
            with pytest.raises(grpc.RpcError) as caught:
                next(replies)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

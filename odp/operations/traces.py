"""Traces by OpenTelemetry (extra ``traces``), to a collector over OTLP or to a file of JSON lines.

A span has a name, times, a status code, and of a task its number and round. Errors have no text: it could quote data.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

import odp
from odp._system.extras import require
from odp.errors import ConfigurationError, ServiceError

#: What a program writes to in place of a collector.
FILE_PREFIX = "file:"
_SECONDS = 5


class OpenTelemetry:
    """Implements ``odp.transport.observing.Tracer`` for ``program``.

    ``target`` is ``http://host:port`` or ``https://host:port`` of a collector (OTLP over gRPC), or ``file:PATH``.

    Raises ConfigurationError for any other target, and without the extra.
    """

    def __init__(self, program: str, target: str) -> None:
        require("opentelemetry", to="trace the programs")
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._propagator = TraceContextTextMapPropagator()
        named = Resource.create({"service.name": f"odp-{program}", "service.version": odp.__version__})
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(target)))
        self._tracer = self._provider.get_tracer("odp")

    def close(self) -> None:
        """Sends what is left, for a few seconds at most. Idempotent."""
        self._provider.force_flush(1000 * _SECONDS)
        self._provider.shutdown()

    def span(self, name: str, attributes: dict[str, str | int]) -> contextlib.AbstractContextManager[None]:
        return self._span(name, None, "INTERNAL", {f"odp.{key}": value for key, value in attributes.items()})

    @contextlib.contextmanager
    def call(self, method: str) -> Iterator[list[tuple[str, str]]]:
        from opentelemetry import trace

        if not trace.get_current_span().get_span_context().is_valid:
            yield []
            return
        with self._span(method.lstrip("/"), None, "CLIENT", _of(method)):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield list(carrier.items())

    @contextlib.contextmanager
    def serve(self, method: str, metadata: Iterable[tuple[str, Any]]) -> Iterator[None]:
        from opentelemetry import trace

        carrier = {key: value for key, value in metadata if key == "traceparent" and isinstance(value, str)}
        parent = self._propagator.extract(carrier) if carrier else None
        if parent is None or not trace.get_current_span(parent).get_span_context().is_valid:
            yield
            return
        with self._span(method.lstrip("/"), parent, "SERVER", _of(method)):
            yield

    @contextlib.contextmanager
    def _span(self, name: str, parent: Any, kind: str, attributes: dict[str, str | int]) -> Iterator[None]:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        with self._tracer.start_as_current_span(
            name, context=parent, kind=SpanKind[kind], attributes=attributes, record_exception=False,
            set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                if isinstance(error, ServiceError) and isinstance(error.code, grpc.StatusCode):
                    span.set_attribute("rpc.grpc.status_code", int(error.code.value[0]))
                span.set_status(Status(StatusCode.ERROR))
                raise


def _of(method: str) -> dict[str, str | int]:
    service, _, name = method.lstrip("/").partition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}


def _exporter(target: str) -> Any:
    if target.startswith(FILE_PREFIX):
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        path = Path(target.removeprefix(FILE_PREFIX))
        try:
            # Open for as long as the program runs.
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot write traces to {path}: {error.strerror or error}") from error
        return ConsoleSpanExporter(out=file, formatter=lambda span: json.dumps(json.loads(span.to_json())) + "\n")
    if not target.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"Expected --traces to be http://host:port, https://host:port or {FILE_PREFIX}PATH (got {target[:200]!r})"
        )
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target, insecure=target.startswith("http://"), timeout=_SECONDS)

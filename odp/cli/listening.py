"""Options that every program with a listener has."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from odp._system.posix import require_linux
from odp.operations.local.foreground import serve_until_stopped
from odp.transport.running import Running

State = Annotated[Path, typer.Option(help="State folder of this program; made on first start.")]
LimitSettings = Annotated[
    list[str],
    typer.Option(help="NAME=VALUE of a limit on callers (docs/operating.md lists them); repeat for more."),
]


def _options(
    certificate: Annotated[
        Path | None,
        typer.Option(help="PEM certificate, together with --key and --ca \\[default: one of a development CA]."),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM private key of --certificate.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM certificate of the CA that clients pin.")] = None,
    ca_folder: Annotated[
        Path | None, typer.Option(help="Folder of the development CA \\[default: <state>/ca].")
    ] = None,
    limit: LimitSettings = [],  # noqa: B006  # typer copies it
    reflection: Annotated[
        bool, typer.Option("--reflection", help="Serve gRPC reflection, which lists the methods to any caller.")
    ] = False,
    metrics: Annotated[
        str, typer.Option(help="host:port for Prometheus over HTTP (/metrics), which anybody there may read.")
    ] = "",
    probes: Annotated[
        str, typer.Option(help="host:port for probes over HTTP (/healthz, /readyz), apart from metrics.")
    ] = "",
    traces: Annotated[
        str,
        typer.Option(
            help="http(s)://host:port of an OpenTelemetry collector, or file:PATH, for traces (extra `traces`)."
        ),
    ] = "",
    log_format: Annotated[
        str | None, typer.Option(help="text; or json, one object per line \\[default: ODP_LOG_FORMAT, or text].")
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="Stop when stdin ends.")] = False,
) -> None:
    """Declares the options."""


@contextlib.contextmanager
def watched(
    program: str, state: Path, *, metrics: str, log_format: str | None, traces: str = "", probes: str = ""
) -> Iterator[None]:
    """Around a program: its log's format, its traces, its metrics and its probes. Raises ConfigurationError."""
    from odp import _validate
    from odp.transport import observing
    from odp.transport.logs import FORMAT_VARIABLE

    chosen = os.environ.get(FORMAT_VARIABLE, "text") if log_format is None else log_format
    _validate.one_of(("text", "json"), log_format=chosen)
    os.environ[FORMAT_VARIABLE] = chosen
    with contextlib.ExitStack() as stack:
        if traces:
            from odp.operations.traces import OpenTelemetry

            tracer = OpenTelemetry(program, traces)
            observing.trace(tracer)
            stack.callback(tracer.close)
        if probes:
            _serve(stack, program, "probes", probes)
        if metrics:
            from odp.operations.metrics import Metrics

            # Before the program, so that its start is counted, too.
            measured = Metrics(program, state)
            observing.observe(measured)
            _serve(stack, program, "metrics", metrics, measured.registry)
        yield


def _serve(stack: contextlib.ExitStack, program: str, kind: str, address: str, registry: Any = None) -> None:
    from odp.operations.metrics import Endpoint
    from odp.transport.logs import Log

    endpoint = Endpoint(address, registry)
    stack.callback(endpoint.close)
    Log(program).event(kind, address=endpoint.address)


def serving(start: Callable[..., Running]) -> Callable[..., None]:
    """A command with the options of ``start`` and those above, which serves what ``start`` starts until it is stopped.

    ``start`` takes the options above as keywords for a ``ProgramConfig``. One that it declares itself keeps its help,
    and is passed as it was given.
    """
    start_parameters = inspect.signature(start, eval_str=True).parameters
    shared = inspect.signature(_options, eval_str=True).parameters
    first = [
        parameter
        for name, parameter in start_parameters.items()
        if name not in shared and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def command(**options: Any) -> None:
        from odp.transport.limits import Limits

        require_linux("a service")
        with_parent = options.pop("with_parent")
        if "limit" not in start_parameters:
            options["limits"] = Limits().changed(options.pop("limit"))
        observability = {name: options.pop(name) for name in ("metrics", "log_format", "traces", "probes")}
        with watched(start.__name__.removeprefix("run_"), options["state"], **observability):
            serve_until_stopped(start(**options), options["state"], with_parent=with_parent)

    command.__doc__ = start.__doc__
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads the options there
        [*first, *(start_parameters.get(name, parameter) for name, parameter in shared.items())]
    )
    return command

"""Options that every program with a listener has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from odp.local.foreground import serve_until_stopped
from odp.posix import require_linux
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
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="Stop when stdin ends.")] = False,
) -> None:
    """Declares the options."""


def serving(start: Callable[..., Running]) -> Callable[..., None]:
    """A command with the options of ``start`` and those above, which serves what ``start`` starts until it is stopped.

    ``start`` takes the options above as keywords for a ``ProgramConfig``. One that it declares itself keeps its help,
    and is passed as it was given.
    """
    own = inspect.signature(start, eval_str=True).parameters
    shared = inspect.signature(_options, eval_str=True).parameters
    first = [
        parameter
        for name, parameter in own.items()
        if name not in shared and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def command(**given: Any) -> None:
        from odp.transport.limits import Limits

        require_linux("a service")
        with_parent = given.pop("with_parent")
        if "limit" not in own:
            given["limits"] = Limits().changed(given.pop("limit"))
        serve_until_stopped(start(**given), given["state"], with_parent=with_parent)

    command.__doc__ = start.__doc__
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads the options there
        [*first, *(own.get(name, parameter) for name, parameter in shared.items())]
    )
    return command

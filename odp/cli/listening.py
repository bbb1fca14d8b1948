"""Options that every program with a listener has."""

from __future__ import annotations

from typing import Annotated

import typer

Reflection = Annotated[
    bool,
    typer.Option("--reflection", help="Serve gRPC reflection, which lists the methods to any caller."),
]
LimitSettings = Annotated[
    list[str],
    typer.Option(help="NAME=VALUE of a limit on callers (docs/operating.md lists them); repeat for more."),
]

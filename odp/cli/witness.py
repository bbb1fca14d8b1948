"""`odp witness run`: a second party checks that a log only grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.listening import LimitSettings, Reflection
from odp.cli.services import Ca, CaFolder, Certificate, Key, State, WithParent
from odp.local.foreground import serve_until_stopped

app = typer.Typer(help="Run an independent witness of transparency logs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps the group's one command a subcommand."""


@app.command("run")
def run_witness(
    log_key: Annotated[
        list[str],
        typer.Option(help="Verifier key of a log to watch, as in the reference values; repeat for more."),
    ],
    state: State = Path("odp-witness"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7210",
    certificate: Certificate = None,
    key: Key = None,
    ca: Ca = None,
    ca_folder: CaFolder = None,
    limit: LimitSettings = [],  # noqa: B006  # typer copies it
    reflection: Reflection = False,
    with_parent: WithParent = False,
) -> None:
    """Cosign each checkpoint of the named logs that continues the one before; runs in the foreground.

    The first line of output has its key, which readers of the log pin and the server needs (`--witness host:port=KEY`).
    """
    from odp.transparency.witness_program import Config, start
    from odp.transport.limits import Limits

    running = start(
        Config(
            state=state,
            log_keys=tuple(log_key),
            listen=listen,
            certificate=certificate,
            key=key,
            ca=ca,
            ca_folder=ca_folder,
            limits=Limits().changed(limit),
            reflection=reflection,
        )
    )
    serve_until_stopped(running, state, with_parent=with_parent)

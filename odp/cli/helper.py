"""`odp distributor helper`: the second of two parties that answer requests for rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_json, print_text
from odp.cli.listening import LimitSettings, Reflection
from odp.local.foreground import serve_until_stopped

app = typer.Typer(
    help="Run the helper of a distributor, the second party of method 'pir'.",
    no_args_is_help=True,
)

State = Annotated[Path, typer.Option(help="State folder of this program; made on first start.")]


@app.command("run")
def run_helper(
    state: State = Path("odp-state/helper"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7204",
    certificate: Annotated[
        Path | None,
        typer.Option(help="PEM certificate, together with --key and --ca \\[default: one of a development CA]."),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM private key of --certificate.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM certificate of the CA that the distributor pins.")] = None,
    ca_folder: Annotated[
        Path | None, typer.Option(help="Folder of the development CA \\[default: <state>/ca].")
    ] = None,
    callers_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the distributor's CA \\[default: this program's].")
    ] = None,
    keep_days: Annotated[
        float, typer.Option(help="Days to keep the model of a finished task after the last request for it.")
    ] = 30.0,
    limit: LimitSettings = [],  # noqa: B006  # typer copies it
    reflection: Reflection = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="Stop when stdin ends.")] = False,
) -> None:
    """Run a helper in the foreground; the distributor needs its address (--helper)."""
    from distributor.helper_program import HelperConfig, start_helper
    from odp.transport.limits import Limits

    running = start_helper(
        HelperConfig(
            state=state,
            listen=listen,
            certificate=certificate,
            key=key,
            ca=ca,
            ca_folder=ca_folder,
            callers_ca=callers_ca,
            keep_days=keep_days,
            limits=Limits().changed(limit),
            reflection=reflection,
        )
    )
    serve_until_stopped(running, state, with_parent=with_parent)


@app.command("key")
def show_key(
    state: State = Path("odp-state/helper"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the public key that tasks name (broadcast.helper_key) and devices pin (`odp enclave pin-helper`)."""
    from distributor.helper_program import helper_key

    found = helper_key(state)
    if json:
        print_json({"helper_key": found})
    else:
        print_text(found)


def pin_helper(
    key: Annotated[str, typer.Argument(help="Public key of the helper: 64 hex digits.")],
    reference_values: Annotated[Path, typer.Option(help="JSON file of what the devices accept.")] = Path(
        "odp-state/reference_values.json"
    ),
) -> None:
    """Add a helper's key to the reference values of devices. Pin only a helper that the distributor does not run."""
    import dataclasses

    from odp.enclave.reference_values import ReferenceValues

    values = ReferenceValues.load(reference_values)
    keys = tuple(dict.fromkeys((*values.helper_keys, key)))
    dataclasses.replace(values, helper_keys=keys).save(reference_values)
    print_text(f"{len(keys)} helper{'s' if len(keys) > 1 else ''} pinned in {reference_values}")

"""`odp distributor helper`: the second of two parties that answer requests for rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import print_result, print_text
from odp.cli.listening import State, serving
from odp.transport.running import Running

app = typer.Typer(
    help="Run the helper of a distributor, the second party of method 'pir'.",
    no_args_is_help=True,
)


@app.command("run")
@serving
def run_helper(
    state: State = Path("odp-state/helper"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7204",
    callers_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the distributor's CA \\[default: this program's].")
    ] = None,
    keep_days: Annotated[
        float, typer.Option(help="Days to keep the model of a finished task after the last request for it.")
    ] = 30.0,
    ca: Annotated[Path | None, typer.Option(help="PEM certificate of the CA that the distributor pins.")] = None,
    **listening: Any,
) -> Running:
    """Run a helper in the foreground; the distributor needs its address (--helper)."""
    from distributor.helper_program import HelperConfig, start_helper

    return start_helper(
        HelperConfig(
            state=state,
            listen=listen,
            ca=ca,
            callers_ca=callers_ca,
            keep_days=keep_days,
            **listening,
        )
    )


@app.command("key")
def show_key(
    state: State = Path("odp-state/helper"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the public key that tasks name (broadcast.helper_key) and devices pin (`odp enclave pin-helper`)."""
    from distributor.helper_program import helper_key

    public_key = helper_key(state)
    print_result({"helper_key": public_key}, public_key, json=json)


def pin_helper(
    key: Annotated[str, typer.Argument(help="Public key of the helper: 64 hex digits.")],
    reference_values: Annotated[Path, typer.Option(help="JSON file of what the devices accept.")] = Path(
        "odp-state/reference_values.json"
    ),
) -> None:
    """Add a helper's key to the reference values of devices. Pin only a helper that the distributor does not run."""
    import dataclasses

    from odp.trust.enclave.reference_values import ReferenceValues

    values = ReferenceValues.load(reference_values)
    keys = tuple(dict.fromkeys((*values.helper_keys, key)))
    dataclasses.replace(values, helper_keys=keys).save(reference_values)
    print_text(f"{len(keys)} helper{'s' if len(keys) > 1 else ''} pinned in {reference_values}")

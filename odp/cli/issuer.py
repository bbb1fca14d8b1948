"""`odp issuer`: tokens that say "one device, this round"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import print_result
from odp.cli.listening import State, serving
from odp.transport.running import Running

app = typer.Typer(help="Run the issuer, which gives each device one token per round.", no_args_is_help=True)
_DEFAULT_STATE = Path("odp-state/issuer")


@app.command("run")
@serving
def run_issuer(
    developer: Annotated[
        list[str], typer.Option(help="Key of a developer whose tasks are served, 64 hex digits; repeat for more.")
    ],
    state: State = _DEFAULT_STATE,
    listen: Annotated[str, typer.Option(help="host:port for devices; port 0 takes any free one.")] = "127.0.0.1:7220",
    control_listen: Annotated[str, typer.Option(help="host:port for servers.")] = "127.0.0.1:7221",
    emulated_vendor: Annotated[
        list[Path],
        typer.Option(help="PROTECTS NOBODY: root (PEM) of an emulated vendor whose devices count; repeat for more."),
    ] = [],  # noqa: B006  # typer copies it
    roster: Annotated[Path | None, typer.Option(help="File of the devices to accept (`odp device roster`).")] = None,
    tokens_per_device: Annotated[int, typer.Option(help="Largest number of tokens of a device in 24 hours.")] = 1_000,
    tokens_per_round: Annotated[int, typer.Option(help="Largest number of tokens of one round.")] = 1_000_000,
    keys_per_developer: Annotated[int, typer.Option(help="Largest number of round keys of one developer.")] = 1_000,
    key_days: Annotated[int, typer.Option(help="Days that the key of a round lasts.")] = 30,
    server_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the CA of the servers' certificates \\[default: --ca].")
    ] = None,
    **listening: Any,
) -> Running:
    """Give each attested device one token per round, in the foreground.

    The first line of output has the issuer's key, which a population names. The issuer learns which device asked for a
    token of which round, and cannot recognise that token later.
    """
    from odp.trust.enrolment.issuer import TokenLimits
    from odp.trust.enrolment.issuer_program import Config, start

    return start(
        Config(
            state=state,
            developers=tuple(developer),
            emulated_vendors=tuple(emulated_vendor),
            roster=roster,
            listen=listen,
            control_listen=control_listen,
            token_limits=TokenLimits(
                tokens_per_device=tokens_per_device,
                tokens_per_round=tokens_per_round,
                keys_per_developer=keys_per_developer,
                key_days=key_days,
            ),
            server_ca=server_ca,
            **listening,
        )
    )


@app.command("key")
def show_key(
    state: State = _DEFAULT_STATE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the issuer's public key, which a population names (`odp population`)."""
    from odp.trust.enrolment.issuer_program import issuer_key

    public_key = issuer_key(state)
    print_result({"issuer_key": public_key}, public_key, json=json)

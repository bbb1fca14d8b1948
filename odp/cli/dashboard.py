"""`odp dashboard`: the developer's control room in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import console, print_json


def dashboard(
    server: Annotated[
        str | None, typer.Option(help="host:port of the server \\[default: where that of --state serves].")
    ] = None,
    state: Annotated[
        Path, typer.Option(help="State folder of `odp up`, which has the CA and the operator's token.")
    ] = Path("odp-state"),
    reference_values: Annotated[
        Path | None, typer.Option(help="JSON file that pins the log \\[default: that of --state].")
    ] = None,
    aggregator_metrics: Annotated[
        list[str],
        typer.Option(help="host:port of --metrics of an aggregator or leaf, for refusals by reason; repeat for more."),
    ] = [],  # noqa: B006  # typer copies it
    host: Annotated[str, typer.Option(help="Address to serve; another than loopback needs TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    name: Annotated[list[str], typer.Option(help="Name by which browsers reach this machine; repeat for more.")] = [],  # noqa: B006  # typer copies it
    certificate: Annotated[Path | None, typer.Option(help="PEM certificate of the page, with --key.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM private key of --certificate.")] = None,
    without_tls: Annotated[
        bool, typer.Option("--without-tls", help="Serve another address than loopback in clear.")
    ] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Submit and abandon tasks on the page.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the address, then serve.")] = False,
) -> None:
    """Serve a page with tasks, budgets, releases and the log of a server, live; Ctrl-C ends it.

    The address contains a token: whoever knows it sees the page. Read-only, unless --allow-changes is given.
    """
    from odp._system.extras import require

    require("starlette", "uvicorn", to="serve the control room")
    import secrets
    from contextlib import ExitStack

    from device_runtime.view.front_door import opened
    from odp.dashboard.poller import Poller
    from odp.dashboard.serving import ControlRoom, Place
    from odp.dashboard.source import ServerSource
    from odp.services.connection import connect
    from odp.services.folder import ServicesFolder
    from odp.transport import channel
    from odp.transport.sweeping import stop_event
    from odp.transport.tls import read_ca
    from odp.trust.log.sources import LogServer

    place = Place(host, port, tuple(name), certificate, key, without_tls)
    place.check()
    for address in aggregator_metrics:
        channel.parse_address(address)
    stop = stop_event()
    folder = ServicesFolder(state)
    pins = reference_values if reference_values is not None else folder.reference_values
    with ExitStack() as stack:
        connection = stack.enter_context(connect(server, state=state))
        logs = stack.enter_context(channel.connect(connection.address, read_ca(folder.ca)))
        source = ServerSource(
            connection, LogServer(logs, connection.address), pins if pins.is_file() or reference_values else None,
            aggregator_metrics,
        )  # fmt: skip
        token = secrets.token_urlsafe(24)
        control_room = ControlRoom(
            Poller(source), place, token=token, server=connection.address, may_change=allow_changes
        )
        stack.callback(control_room.stop)
        if json:
            print_json(
                {"url": control_room.url, "token": token, "server": connection.address, "changes": allow_changes}
            )
        else:
            may = "tasks can be submitted and abandoned" if allow_changes else "read-only"
            console().print(f"control room of {connection.address}, {may}: {control_room.url}", soft_wrap=True,
                            markup=False, highlight=False)  # fmt: skip
            console().print("Ctrl-C ends it")
        if open_browser:
            stack.enter_context(opened(control_room.url, state))
        while not stop.wait(0.5):
            pass

"""`odp device view`: the person's page in their own browser."""

from __future__ import annotations

import json as json_format
import threading
from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import console


def view(
    state: Annotated[Path, typer.Option(help="State folder of the device host: one store per device.")] = Path(
        "odp-devices"
    ),
    device: Annotated[int, typer.Option(help="Index of the device.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    service: Annotated[
        Path | None, typer.Option(help="On-device code to run: a module file or a package folder.")
    ] = None,
    ask: Annotated[str, typer.Option(help="With --service: the request, a JSON object.")] = "{}",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = False,
) -> None:
    """Serve a page on this machine that shows what the device read, sent and spent; Ctrl-C ends it.

    With --service, the page also shows a result. The address contains a secret: whoever knows it can see the page.
    """
    from contextlib import ExitStack

    from device_runtime.sdk import Device, Environment
    from device_runtime.view.front_door import opened
    from odp.errors import ConfigurationError
    from odp.isolated import Declined
    from odp.transport.stopping import stop_event

    try:
        request = json_format.loads(ask)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise ConfigurationError(f"Expected --ask={ask!r} to be a JSON object")
    environment = Environment(index=device, create=False)
    stop: threading.Event = stop_event()
    with ExitStack() as stack:
        runtime = stack.enter_context(Device(state, service=service, say=console().print, environment=environment))
        shown = None
        if service is not None:
            answer = runtime.ask("person", request)
            if isinstance(answer, Declined):
                raise ConfigurationError(f"{runtime.service} declined: {answer.reason}")
            shown = answer
        url = runtime.show(shown, port=port)
        console().print(f"device {device}: {url}", soft_wrap=True, markup=False, highlight=False)
        console().print("Ctrl-C ends it")
        if open_browser:
            stack.enter_context(opened(url, state))
        while not stop.wait(0.5):
            pass

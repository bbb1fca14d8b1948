"""``--csv`` for every command that has ``--json``: the same values as rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from odp.cli.console import choose_csv
from odp.errors import ConfigurationError

_JSON = ("json", "json_output")


def add_csv(app: typer.Typer) -> None:
    """Adds the option to all commands of ``app`` and of its groups."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_csv(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_csv(group.typer_instance)


def _with_csv(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    name = next((name for name in _JSON if name in signature.parameters), None)
    if name is None:
        return command
    option = inspect.Parameter(
        "csv",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--csv", help="Print the rows as CSV, with a header line.")],
    )

    def run(**arguments: Any) -> Any:
        chosen = arguments.pop("csv")
        if chosen and arguments[name]:
            raise ConfigurationError("Expected --json or --csv, not both")
        choose_csv(chosen)
        return command(**arguments | {name: chosen or arguments[name]})

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    # Options with a default may follow those without one as keywords alone.
    keyword_only = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()
    ]
    place = [parameter.name for parameter in keyword_only].index(name) + 1
    parameters = [*keyword_only[:place], option, *keyword_only[place:]]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run

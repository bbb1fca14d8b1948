"""``odp``: the commands, and how their errors reach a person.

Exit codes: 0 done, 1 an error of ODP, 2 wrong usage, 70 an unexpected error, 130 interrupted, 141 nobody reads stdout
any more. Each error comes with one line on stderr; ``ODP_TRACE=1`` gives the trace of an unforeseen one.

``--csv`` for every command that has ``--json``: the same values as rows.
"""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from odp._system.own_packages import check_own_packages
from odp.cli.console import choose_csv, interrupted, prepare_streams, print_error, print_text
from odp.errors import ConfigurationError, OdpError


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
    name = next((name for name in ("json", "json_output") if name in signature.parameters), "csv")
    if "csv" in (name, *signature.parameters):
        return command
    option = inspect.Parameter(
        "csv",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--csv", help="Print the rows as CSV, with a header line.")],
    )

    def run(**arguments: Any) -> Any:
        if (chosen := arguments.pop("csv")) and arguments[name]:
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


#: The commands and groups of commands under the headings of `odp --help`, in this order: name -> module:attribute.
_COMMANDS: dict[str, dict[str, str]] = {
    "Begin here": {
        "demo": "demo:demo",
        "init": "init:init",
        "up": "services:up",
        "data": "data:app",
    },
    "Develop and train": {
        "task": "task:app",
        "simulate": "simulate:simulate",
        "compare": "compare:compare",
        "retrain": "retrain:retrain",
        "tune": "tune:tune",
        "report": "report:report",
        "reproduce": "reproduce:app",
        "table": "table:app",
        "index": "index:app",
        "population": "population:app",
        "catalogue": "catalogue:app",
    },
    "Run the services": {
        "server": "services:server_app",
        "distributor": "services:distributor_app",
        "aggregator": "services:aggregator_app",
        "dashboard": "dashboard:dashboard",
        "doctor": "doctor:doctor",
        "issuer": "issuer:app",
        "enclave": "enclave:app",
        "backup": "backup:backup",
        "restore": "backup:restore",
    },
    "Run devices": {
        "device": "device:app",
        "fleet": "fleet:app",
    },
    "Check what was done": {
        "privacy": "privacy:app",
        "audit": "audit:app",
        "witness": "witness:app",
    },
}
_NAMES = frozenset(name for commands in _COMMANDS.values() for name in commands)


@functools.cache
def command_line(*names: str) -> typer.Typer:
    """`odp` with the commands and groups of these names, or with all where none is named.

    It imports no module of other commands: those of all are a tenth of what a program does until it serves.
    """
    line = typer.Typer(
        name="odp",
        help="On-device personalization: data stay on the devices that hold them, and releases are private per user.",
        callback=_root,
        invoke_without_command=True,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for heading, commands in _COMMANDS.items():
        for name in [name for name in commands if name in (names or _NAMES)]:
            command = pkgutil.resolve_name(f"odp.cli.{commands[name]}")
            if isinstance(command, typer.Typer):
                line.add_typer(command, name=name, rich_help_panel=heading)
            else:
                line.command(name, rich_help_panel=heading)(command)
    add_csv(line)
    return line


# ``app`` is `odp` with all its commands.
def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_line()


def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from odp import __version__

        print_text(f"odp {__version__}")
        raise typer.Exit


_INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``odp`` command."""
    # Many small solves per device: a second BLAS thread costs more than it brings, and there are other processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # gRPC's own lines about a failed connection come beside ours, which say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # What a program imports is no garbage: looking for some after every 700 objects takes a twentieth of its start.
    gc.set_threshold(10_000)
    # At its end, an interpreter looks for garbage among all that it loaded: a tenth of the time of a short command.
    atexit.register(gc.freeze)
    prepare_streams()
    try:
        check_own_packages()
        # Help, completion and mistakes need all commands. Not standalone: typer would print usage errors itself, as a
        # box of many lines.
        code = command_line(*_NAMES.intersection(sys.argv[1:2]))(standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:  # typer makes this code of Ctrl-C, and prints nothing
            print_error(interrupted())
    except OdpError as error:
        print_error(str(error))
        code = 1
    except _USAGE_ERROR as error:
        code = _wrong_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        print_error(interrupted())
        code = _INTERRUPTED
    except Exception as error:
        if os.environ.get("ODP_TRACE"):
            raise
        # Not its message: that may hold anything, a rating as well.
        print_error(
            f"internal error ({type(error).__name__}) in {_place(error)}; run again with ODP_TRACE=1 for the trace"
        )
        code = 70
    sys.exit(code)


_OWN_PACKAGES = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator")
#: click's UsageError, which typer does not export by name.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def _wrong_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ != "NoArgsIsHelpError":  # that one printed the help when it was made
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        command = context.command_path if context is not None else "odp"
        print_error(f"{message.rstrip('. ')}; `{command} --help` shows what is valid")
    return 2


def _place(error: BaseException) -> str:
    """The innermost line of this project's own code that the error passed."""
    frames = [(frame.f_globals.get("__name__", ""), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [(module, line) for module, line in frames if module.partition(".")[0] in _OWN_PACKAGES] or frames
    return "{}, line {}".format(*ours[-1])


if __name__ == "__main__":
    main()

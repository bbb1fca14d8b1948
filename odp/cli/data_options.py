"""The options that say how a table of one's own is read, for every command that takes data.

What a shell offers for `--data`: names of data sets, and files and folders.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import console


def data_names(incomplete: str) -> list[str]:
    """Names of data sets and paths that begin with ``incomplete``; a folder ends with a slash, so that it goes on."""
    from odp.datasets import DATASETS

    return [name for name in ("synthetic", *DATASETS) if name.startswith(incomplete)] + _paths(incomplete)


def _paths(incomplete: str) -> list[str]:
    before, slash, begun = incomplete.rpartition("/")
    folder = Path(before + slash) if before or slash else Path()
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    shown = [path for path in inside if path.name.startswith(begun) and (begun or not path.name.startswith("."))]
    return [f"{before}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in shown]


class OnError(StrEnum):
    """What to do with bad rows."""

    RAISE = "raise"
    SKIP = "skip"


class RepeatedRows(StrEnum):
    """What rows with the same user and item come to."""

    NEWEST = "newest"
    OLDEST = "oldest"
    MEAN = "mean"
    SUM = "sum"
    REFUSE = "refuse"


SplitAt = Annotated[
    str | None,
    typer.Option(
        help="Test on everybody's rows from one moment on: time:DATE, or time:0.9 for the last tenth of all rows "
        "\\[default: at random].",
    ),
]

_PANEL = "Own table (CSV, TSV, Parquet, JSON lines)"
_OPTIONS: dict[str, Any] = {
    "user": Annotated[
        str | None, typer.Option(help="Column of user ids \\[default: one of a usual name].", rich_help_panel=_PANEL)
    ],
    "item": Annotated[
        str | None, typer.Option(help="Column of item ids \\[default: one of a usual name].", rich_help_panel=_PANEL)
    ],
    "value": Annotated[
        str | None,
        typer.Option(help="Column of ratings or counts; without one, a row says 'seen'.", rich_help_panel=_PANEL),
    ],
    "time": Annotated[str | None, typer.Option(help="Column of times: numbers or dates.", rich_help_panel=_PANEL)],
    "title": Annotated[
        str | None,
        typer.Option(help="Column of items' titles, where titles are read.", rich_help_panel=_PANEL),
    ],
    "low": Annotated[
        float | None, typer.Option(help="Lowest rating of the scale \\[default: guessed].", rich_help_panel=_PANEL)
    ],
    "high": Annotated[
        float | None, typer.Option(help="Highest rating of the scale \\[default: guessed].", rich_help_panel=_PANEL)
    ],
    "implicit": Annotated[
        bool | None,
        typer.Option(
            "--implicit/--explicit",
            help="Values above 0 only say 'seen', or they are opinions \\[default: guessed].",
            rich_help_panel=_PANEL,
        ),
    ],
    "on_error": Annotated[
        OnError, typer.Option(help="Refuse bad rows, or leave them out and count them.", rich_help_panel=_PANEL)
    ],
    "repeats": Annotated[
        RepeatedRows,
        typer.Option(
            help="Which of several rows with the same user and item counts, by time or else by row.",
            rich_help_panel=_PANEL,
        ),
    ],
}
_LABELLED: dict[str, Any] = {
    "label": Annotated[
        str | None,
        typer.Option(help="Labelled examples: column of labels; all others are features.", rich_help_panel=_PANEL),
    ],
    "text": Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled examples: a column that is text although most of its cells are numbers.",
            rich_help_panel=_PANEL,
        ),
    ],
}
_DEFAULTS: dict[str, StrEnum] = {"on_error": OnError.RAISE, "repeats": RepeatedRows.NEWEST}


def takes_table(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a table to a command, which gets ``columns``: a dict of those that were given.

    They are arguments of ``odp.load``.
    """
    return _with_options(command, _OPTIONS)


def takes_labelled_table(command: Callable[..., None]) -> Callable[..., None]:
    """The same with those of labelled examples, which are arguments of ``odp.data.load_examples``."""
    return _with_options(command, {**_OPTIONS, **_LABELLED})


def _with_options(command: Callable[..., None], options: Mapping[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    command_parameters = [parameter for name, parameter in signature.parameters.items() if name != "columns"]
    for command_parameter in command_parameters:
        if command_parameter.name == "data":
            for option in getattr(command_parameter.annotation, "__metadata__", ()):
                option.autocompletion = data_names
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name),
            annotation=annotation,
        )
        for name, annotation in options.items()
    ]

    def run(**arguments: Any) -> None:
        data_options = {name: arguments.pop(name) for name in options}
        columns = {name: value for name, value in data_options.items() if value not in (_DEFAULTS.get(name), [])}
        plain = {name: str(value.value) if isinstance(value, StrEnum) else value for name, value in columns.items()}
        command(**arguments, columns=plain)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in command_parameters]
    # Typer reads the names and types of options here.
    run.__signature__ = signature.replace(parameters=[*keyword, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*keyword, *added]}
    return run


def as_written(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a table for a question or for devices: where no scale is declared, values stay as they stand."""
    declared = {"implicit", "low", "high"} & set(columns)
    return dict(columns) if declared else {**columns, "as_written": True}


def print_reading(notes: Iterable[str]) -> None:
    """Says on stderr how a table was read: what was guessed, and how many rows were left out."""
    for note in notes:
        console().print(f"note: {note}", markup=False)


def data_arguments(data: str, columns: Mapping[str, Any]) -> str:
    """The options by which a command reads these data, for a shell."""
    return " ".join([f"--data {shlex.quote(data)}", *(as_option(name, value) for name, value in columns.items())])


def as_option(name: str, value: object) -> str:
    """An argument of ``odp.load`` as the option that gives it, for a shell."""
    if isinstance(value, list):
        return " ".join(as_option(name, entry) for entry in value)
    if isinstance(value, bool):
        return f"--{name}" if value else "--explicit"
    return f"--{name.replace('_', '-')} {shlex.quote(f'{value:g}' if isinstance(value, float) else str(value))}"

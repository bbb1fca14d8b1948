"""`odp init`: a small project that runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import print_result
from odp.cli.data_options import data_arguments, takes_table


@takes_table
def init(
    columns: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="New folder; its name becomes the name of the task.")],
    data: Annotated[
        str | None,
        typer.Option(help="Own data, by name or path; not copied \\[default: invented ratings of 300 people]."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a small project: a task and the catalogue for the data, an app with a device, a test and a README."""
    from odp.cli.projects import make_project, named

    task = make_project(folder, data=data, columns=columns).task
    files = sorted(path.name for path in folder.iterdir())
    print_result(
        {"folder": str(folder), "files": files, "task": task.name, "data": named(data)},
        f"made {folder}: {', '.join(files)}\n"
        "next:\n"
        f"  cd {shlex.quote(str(folder))}\n"
        f"  odp simulate task.toml {data_arguments(named(data), columns)}\n"
        "  python -m unittest\n"
        "README.md has the other commands.",
        json=json,
    )

"""`odp index`: item indexes that devices scan, and the differences that update them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_result
from odp.cli.outputs import output_file, writing_file

app = typer.Typer(help="Show item indexes of devices, and update them by differences.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
IndexFile = Annotated[Path, typer.Argument(help="Item index: a file that `odp task export TASK items.index` wrote.")]


@app.command("show")
def show(file: IndexFile, json: Json = False) -> None:
    """Check an index byte by byte, and print what it holds."""
    from odp.serving.index_file import open_index
    from odp.serving.ranking import IndexedModel

    index = open_index(file)
    model = IndexedModel.of(index)
    facts = {
        "sha256": index.sha256,
        "items": len(index),
        "rank": index.rank,
        "bytes": file.stat().st_size,
        "name": model.definition.name,
        **index.facts,
    }
    print_result(facts, "\n".join(f"{name}: {value}" for name, value in facts.items()), json=json)


@app.command("difference")
def difference(
    old: Annotated[Path, typer.Argument(help="Index that devices have.")],
    new: Annotated[Path, typer.Argument(help="Index that they are to have.")],
    file: Annotated[Path, typer.Argument(callback=output_file, help="File to write.")],
    json: Json = False,
) -> None:
    """Write what turns one index into another: the same file for every device."""
    from odp._system.files.state_folder import write_atomically
    from odp.serving.difference import described
    from odp.serving.difference import difference as made
    from odp.serving.index_file import open_index

    data = made(open_index(old), open_index(new))
    with writing_file(file):
        write_atomically(file, data, mode=0o644)
    summary = described(data)
    counts = {"changed": summary.changed, "new": summary.new, "bytes": len(data)}
    print_result(
        {"base": summary.base, "result": summary.result, **counts},
        f"difference from {summary.base[:12]} to {summary.result[:12]}: {summary.changed} items changed, "
        f"{summary.new} are new; {len(data)} bytes instead of {new.stat().st_size}",
        json=json,
    )


@app.command("apply")
def apply(
    index: IndexFile,
    difference: Annotated[Path, typer.Argument(help="Difference that `odp index difference` wrote.")],
    json: Json = False,
) -> None:
    """Update an index in its place; on any error the file stays as it was."""
    from odp.errors import DataError
    from odp.serving.difference import update_file

    try:
        data = difference.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the difference {difference}: {error.strerror}") from error
    sha256 = update_file(index, data)
    print_result({"sha256": sha256}, f"{index} is now {sha256[:12]}", json=json)

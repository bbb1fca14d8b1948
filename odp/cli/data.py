"""`odp data`: data sets that researchers know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import console, print_json, print_text
from odp.cli.outputs import output_file, writing_file

app = typer.Typer(help="List, fetch and inspect data sets.", no_args_is_help=True)


@app.command("list")
def list_data() -> None:
    """List the data sets that can be fetched by name."""
    from rich.table import Table

    from odp.datasets import DATASETS

    table = Table("name", "licence", "from")
    for name, entry in DATASETS.items():
        table.add_row(name, entry.licence, entry.homepage)
    console().print(table)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A name of `odp data list`.")],
    cache: Annotated[
        Path | None, typer.Option(help="Folder for downloads \\[default: the user's cache folder].")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="URL of a mirror that has the archive.")] = None,
    sha256: Annotated[
        list[str] | None,
        typer.Option(help="Expected SHA-256, or FILE=SHA-256 once per file, if the publisher states none."),
    ] = None,
) -> None:
    """Download a data set, check its SHA-256, unpack it, and print its folder."""
    from odp.datasets import fetch as run

    print_text(str(run(name, cache=cache, base_url=base_url, sha256=_digests(sha256 or []))))


def _digests(given: list[str]) -> str | dict[str, str] | None:
    from odp.errors import ConfigurationError

    named = [value for value in given if "=" in value]
    if (named and len(named) < len(given)) or (len(given) > 1 and not named):
        raise ConfigurationError("Expected one --sha256 DIGEST, or --sha256 FILE=DIGEST for each file")
    if named:
        return dict(value.split("=", 1) for value in named)
    return given[0] if given else None


@app.command("features")
def features(
    data: Annotated[str, typer.Argument(help="Folder or file of a known form, or a name such as 'synthetic'.")],
    file: Annotated[Path, typer.Argument(callback=output_file, help="The .npy file to write.")],
) -> None:
    """Write a data set's public item features (genres, years) for `item_features = "FILE"` of a task file."""
    import numpy as np

    from odp.datasets import item_features, load

    matrix = item_features(load(data))
    with writing_file(file), file.open("wb") as opened:
        np.save(opened, matrix)
    print_text(f"{file}: {matrix.shape[0]} items x {matrix.shape[1]} features")


@app.command("info")
def info(
    data: Annotated[str, typer.Argument(help="Folder or file of a known form, or a name such as 'synthetic'.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a data set and print its size."""
    from odp.datasets import load

    found = load(data)
    summary = {
        "name": found.name,
        "users": found.n_users,
        "items": found.n_items,
        "ratings": found.n_ratings,
        "density": found.density,
        "low": found.low,
        "high": found.high,
        "implicit": found.implicit,
        "duplicates": found.duplicates,
    }
    if json:
        print_json(summary)
    else:
        print_text("\n".join(f"{name:<11}{value}" for name, value in summary.items()))

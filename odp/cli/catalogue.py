"""`odp catalogue`: the items of a population's models by keys that stay, version by version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import print_result, print_text
from odp.cli.outputs import lines_of
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.protocol.catalogues.catalogue import Catalogue

app = typer.Typer(help="Make, change and publish the catalogue of a population's items.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Catalogue file; it holds all versions so far.")]
Server = Annotated[str, typer.Option(help="host:port of the server; several servers with commas between.")]
State = Annotated[Path, typer.Option(help="State folder of `odp up`, with the CA and the operator's token.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("make")
def make(
    file: File,
    population: Annotated[str, typer.Option(help="Population whose items these are.")],
    items: Annotated[Path, typer.Option(help="Text file with the key of each item, one per line, in order.")],
    json: Json = False,
) -> None:
    """Write version 1 of a new catalogue."""
    from odp.protocol.catalogues.catalogue import Catalogue

    if file.exists():
        raise ConfigurationError(f"{file} exists: `odp catalogue change {file}` adds a version to it")
    made = Catalogue.make(population, item_keys(items))
    made.save(file)
    _say(made, json=json)


@app.command("change")
def change(
    file: File,
    add: Annotated[list[str], typer.Option(help="Key of a new item; repeat for more.")] = [],  # noqa: B006  # typer copies it
    retire: Annotated[list[str], typer.Option(help="Key of an item that is gone; repeat for more.")] = [],  # noqa: B006
    withdraw: Annotated[
        list[int], typer.Option(help="Earlier version that no task may name any more; repeat for more.")
    ] = [],  # noqa: B006
    items: Annotated[
        Path | None,
        typer.Option(help="Text file with the keys of all items, one per line, in place of --add and --retire."),
    ] = None,
    json: Json = False,
) -> None:
    """Add the next version to a catalogue: items that come, items that go, versions that were wrong."""
    from odp.protocol.catalogues.catalogue import Catalogue

    catalogue = Catalogue.load(file)
    if items is not None and (add or retire):
        raise ConfigurationError("Expected --items, or --add and --retire, not both: --items names all items")
    if items is not None:
        changed = catalogue.change_to(item_keys(items), withdraw=withdraw)
    else:
        changed = catalogue.change(add=add, retire=retire, withdraw=withdraw)
    changed.save(file)
    _say(changed, json=json)


@app.command("show")
def show(
    file: File,
    version: Annotated[int | None, typer.Option(help="Show this version \\[default: the newest].")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the keys alone, one per line, in order.")] = False,
    json: Json = False,
) -> None:
    """Verify the chain of versions of a catalogue, and show one of them."""
    from odp.protocol.catalogues.catalogue import Catalogue

    whole = Catalogue.load(file)
    shown = whole if version is None else whole.at(version)
    if keys and not json:
        print_text("\n".join(shown.keys))
        return
    _say(shown, json=json, withdrawn=whole.withdrawn, keys=keys)


@app.command("publish")
def publish(
    file: File, server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False
) -> None:
    """Publish the versions that the server lacks: it signs them, and they are in its log for everyone to see."""
    from odp.protocol.catalogues.catalogue import Catalogue
    from odp.services.connection import connect

    catalogue = Catalogue.load(file)
    with connect(server, state=state) as connection:
        connection.publish_catalogue(catalogue)
    _say(catalogue, json=json)


def item_keys(path: Path) -> list[str]:
    """The lines of a file of keys. Raises ConfigurationError."""
    try:
        return lines_of(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"cannot read the items {path}: {reason}; give a text file, one key per line"
        ) from error


def _say(catalogue: Catalogue, *, json: bool, withdrawn: frozenset[int] | None = None, keys: bool = False) -> None:
    from odp.protocol.catalogues.step import Step

    step = Step.decode(catalogue.steps[-1])
    gone = sorted(catalogue.withdrawn if withdrawn is None else withdrawn)
    values: dict[str, Any] = {
        "population": catalogue.population,
        "version": catalogue.version,
        "sha256": catalogue.sha256.hex(),
        "items": catalogue.items,
        "added": len(step.added),
        "retired": len(step.retired),
        "withdrawn": gone,
    }
    text = (
        f"catalogue of {catalogue.population}, version {catalogue.version}: {catalogue.items} items, "
        f"{len(step.added)} added, {len(step.retired)} retired ({catalogue.sha256.hex()})"
    )
    withdrawn_line = f"\nwithdrawn: {', '.join(map(str, gone))}" if gone else ""
    print_result(values | ({"keys": list(catalogue.keys)} if keys else {}), text + withdrawn_line, json=json)

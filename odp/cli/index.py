"""`odp index`: item indexes that devices scan, and the differences that update them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import print_json, print_result, results_console
from odp.cli.outputs import output_file, writing_file
from odp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from odp.serving.item_index import ItemIndex

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
    from odp.serving.difference import described, difference as made
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
    from odp.serving.difference import update_file

    try:
        data = difference.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the difference {difference}: {error.strerror}") from error
    sha256 = update_file(index, data)
    print_result({"sha256": sha256}, f"{index} is now {sha256[:12]}", json=json)


@app.command("neighbours")
def neighbours(
    file: IndexFile,
    item: Annotated[
        list[str], typer.Option(help="Key of an item, or with --titles its title. Give it again for more items.")
    ],
    count: Annotated[int, typer.Option(min=1, help="How many neighbours of each.")] = 10,
    titles: Annotated[
        str | None,
        typer.Option(
            help="File or data set with the items' titles, found by key (columns item and title, or ratings)."
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option(callback=output_file, help="Page to write (.html).")] = None,
    json: Json = False,
) -> None:
    """Show which items the model takes for alike: those that move every person's predictions the same way."""
    from rich.markup import escape
    from rich.table import Table

    from odp.datasets.item_texts import ItemTitles, NamedItems
    from odp.pictures.page import document, heading, paragraph, table as page_table
    from odp.serving.index_file import open_index
    from odp.serving.neighbours import neighbours as nearest
    from odp.serving.ranking import IndexedModel

    index = open_index(file)
    model = IndexedModel.of(index).definition.name
    if titles is None:
        named = NamedItems({}, 0)
    else:
        named = ItemTitles.load(titles).of_model(index.keys, len(index), task=model)
    items = _numbers(index, item, named.titles)
    alike = [
        (index.keys[number], [(named.titles.get(each.item, each.item), each) for each in some])
        for number, some in zip(items, nearest(index, items, count), strict=True)
    ]
    if json:
        shown = [
            {"item": key, "neighbours": [{"name": name, **dataclasses.asdict(each)} for name, each in some]}
            for key, some in alike
        ]
        print_json({"items": shown, "items_without_title": named.missing})
    out = results_console(machine=json)
    if named.missing:
        out.print(f"note: {named.missing:,} items have no title in {titles} and go by their keys", markup=False)
    parts = []
    for key, some in alike:
        title = named.titles.get(key, key)
        rows = [(name, f"{each.similarity:.2f}", f"{each.trust:.2f}") for name, each in some]
        parts += [
            heading(title),
            page_table(f"Items that are most like {title}", _COLUMNS, rows) or paragraph(_UNLEARNT),
        ]
        table = Table(*_COLUMNS, title=escape(title), title_justify="left")
        for row in rows:
            table.add_row(*map(escape, row))
        out.print(table if rows else f"{escape(title)}: {_UNLEARNT}")
    if page is not None:
        with writing_file(page):
            page.write_text(document(f"Items that are alike: {model}", [*parts, paragraph(_ALIKE, "note")]), "utf-8")
        out.print(f"page: {page}", markup=False)


_COLUMNS = ("item", "similarity", "trust")
_UNLEARNT = "the model learnt nothing of it but how it is liked in general, so it has no neighbours"
_ALIKE = (
    "Similarity is the cosine of two items' rows in the released model, and says nothing of popularity. Trust, 0 to 1, "
    "is how much an item's row counts on devices: that of an item which few people have is mostly noise."
)


def _numbers(index: ItemIndex, wanted: Sequence[str], titles: Mapping[str, str]) -> list[int]:
    """The numbers of items by key, else by title. Raises ConfigurationError for the name of no item, or of several."""
    numbers: list[int] = index.keys.places(wanted).tolist()
    for place, name in enumerate(wanted):
        if numbers[place] >= 0:
            continue
        keys = [key for key, title in titles.items() if title == name]
        if len(keys) != 1:
            several = f"; {len(keys)} items have this title, such as {keys[0]!r}" if keys else ""
            raise ConfigurationError(
                f"Expected --item to be a key of the index, such as {index.keys[0]!r}, or with --titles the title of "
                f"one item (got {name!r}{several})"
            )
        numbers[place] = int(index.keys.places(keys)[0])
    return numbers

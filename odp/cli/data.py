"""`odp data`: data sets that researchers know, and tables of one's own.

`odp data check` of labelled examples: what is printed and written.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import print_json, print_result, print_text, results_console
from odp.cli.data_options import as_option, data_arguments, print_reading, takes_labelled_table, takes_table
from odp.cli.outputs import output_file, output_folder, writing, writing_file
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.datasets.labelled_tables import LabelledTable
    from odp.research.simulation.data_check import DataCheck
    from odp.research.simulation.labelled_check import LabelledCheck
    from odp.tasks.file import AnyTask

Data = Annotated[str, typer.Argument(help="A table, a folder or file of a known form, or a name such as 'synthetic'.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_ROLES = ("user", "item", "value", "time")

app = typer.Typer(help="List, fetch and inspect data sets.", no_args_is_help=True)


@app.command("list")
def list_data(json: Json = False) -> None:
    """List the data sets that can be fetched by name."""
    from rich.table import Table

    from odp.datasets import DATASETS

    if json:
        rows = [
            {"name": name, "licence": dataset.licence, "homepage": dataset.homepage}
            for name, dataset in DATASETS.items()
        ]
        print_json({"datasets": rows})
        return
    table = Table("name", "licence", "from")
    for name, entry in DATASETS.items():
        table.add_row(name, entry.licence, entry.homepage)
    results_console().print(table)


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


def _digests(digests: list[str]) -> str | dict[str, str] | None:
    named = [value for value in digests if "=" in value]
    if (named and len(named) < len(digests)) or (len(digests) > 1 and not named):
        raise ConfigurationError("Expected one --sha256 DIGEST, or --sha256 FILE=DIGEST for each file")
    if named:
        return dict(value.split("=", 1) for value in named)
    return digests[0] if digests else None


@app.command("features")
@takes_table
def features(
    columns: dict[str, Any],
    data: Data,
    file: Annotated[
        Path,
        typer.Argument(
            callback=output_file, help="The file to write: .npy, or .npz with the titles and --item-texts as well."
        ),
    ],
    item_texts: Annotated[
        Path | None,
        typer.Option(help="Public texts of items (.csv or .jsonl): a key 'item', the others are texts."),
    ] = None,
) -> None:
    """Write a data set's public item features for `item_features = "FILE"` of a task file.

    An .npy file has genres and years. An .npz file has groups by name: these, the titles, and each column of texts.
    """
    import numpy as np

    from odp.datasets import ItemTexts, auto_features, item_features, load

    ratings = load(data, **columns)
    print_reading(ratings.notes)
    if file.suffix != ".npz":
        if item_texts is not None:
            raise ConfigurationError(f"Expected a file that ends in .npz for texts of items (got {file})")
        matrix = item_features(ratings)
        with writing_file(file), file.open("wb") as opened:
            np.save(opened, matrix)
        print_text(f"{file}: {matrix.shape[0]} items x {matrix.shape[1]} features")
        return
    groups = auto_features(ratings, None if item_texts is None else ItemTexts.read(item_texts))
    # numpy.savez takes names as keywords, of which some are its own.
    with writing_file(file), zipfile.ZipFile(file, "w") as archive:
        for name, group in groups.items():
            with archive.open(f"{name}.npy", "w") as opened_group:
                np.lib.format.write_array(opened_group, group, allow_pickle=False)
    sizes = ", ".join(f"{name} {group.shape[1]}" for name, group in groups.items())
    print_text(f"{file}: {ratings.n_items} items; features by group: {sizes}")


@app.command("info")
@takes_table
def info(
    columns: dict[str, Any],
    data: Data,
    json: Json = False,
) -> None:
    """Read a data set and print its size."""
    from odp.datasets import load

    ratings = load(data, **columns)
    summary = {
        "name": ratings.name,
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "density": ratings.density,
        "low": ratings.low,
        "high": ratings.high,
        "implicit": ratings.implicit,
        "duplicates": ratings.duplicates,
    }
    print_reading(ratings.notes)
    text = "\n".join(f"{name:<11}{value}" for name, value in summary.items())
    print_result(summary | {"notes": list(ratings.notes)}, text, json=json)


@app.command("check")
@takes_labelled_table
def check(
    columns: dict[str, Any],
    data: Data,
    task: Annotated[
        Path | None, typer.Option(help="Task file: print how much of the data it can use, and why not all.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            callback=output_folder, help="Folder for task.toml and its catalogue, and for check.svg of ratings."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look at your own data before you train on them: counts, scale, bad rows, and the task and the ε that fit.

    With --output it writes the task file, and where items have ids or titles, the catalogue that the task names. With
    --label, the table has labelled examples: one per row, of which all other columns are features.

    The numbers are those of the data, without noise: for their owner, and no private release. Exits with 1 where rows
    are bad, unless they are to be skipped.
    """
    from odp.datasets.registry import load_reading
    from odp.research.simulation.data_check import check_data, usable_ratings
    from odp.tasks.file import load_task

    chosen = None if task is None else load_task(task)
    if chosen is not None and output is not None:
        raise ConfigurationError("Expected --task or --output, not both: one reads a task, and the other proposes one")
    if is_labelled(columns, chosen):
        raise typer.Exit(
            check_examples(data, columns, output=output, json=json)
            if chosen is None
            else check_usable(data, columns, chosen, json=json)
        )
    reading, ratings = load_reading(data, titles=True, **_skipping(data, columns))
    checked = check_data(ratings, reading)
    usable = None if chosen is None else usable_ratings(chosen, ratings)
    written = None if output is None else _write_check(checked, output, data)
    bad = 0 if reading is None or columns.get("on_error") == "skip" else reading.bad.total
    if json:
        print_json(checked.to_json() | ({} if usable is None else {"usable": usable.to_json()}))
    else:
        lines = _check_lines(checked) + ([] if usable is None else ["", *usable.lines()])
        _print_check(lines, bad, columns, written, lambda columns: _next_steps(checked, data, columns, output))
    raise typer.Exit(int(bad > 0))


def _print_check(
    lines: list[str],
    bad: int,
    columns: dict[str, Any],
    written: list[Path] | None,
    steps: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Prints what a check found and wrote, and the ``steps`` that follow with the options that the table needs."""
    print_text("\n".join(lines))
    if bad:
        print_text("note: other commands refuse a table with bad rows: mend them, or pass --on-error skip")
        columns = columns | {"on_error": "skip"}
    if written is not None:
        print_text(f"\nwritten: {', '.join(map(str, written))}")
    print_text("\nnext:\n" + "\n".join(f"  {line}" for line in steps(columns)))


def _skipping(data: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Options that read the whole table, so that every bad row is counted."""
    from odp.datasets.table_files import is_table_file

    return columns | ({"on_error": "skip"} if columns or is_table_file(Path(data)) or Path(data).is_dir() else {})


def _write_check(checked: DataCheck, output: Path, data: str) -> list[Path]:
    from odp.research.simulation.data_check import draw_check
    from odp.research.simulation.own_catalogue import own_task

    written = [output / "check.svg"]
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        draw_check(written[0], checked)
        if checked.task is not None:
            fitted_task = own_task(checked.task, checked.ratings, checked.reading, name=task_name(checked.ratings.name))
            written += fitted_task.write(output, comment=f"Fits {Path(data).name}; made by `odp data check`.")
    return written


def _check_lines(checked: DataCheck) -> list[str]:
    from odp.research.simulation.data_check import bars, item_counts

    ratings, reading = checked.ratings, checked.reading
    lines = []
    if reading is not None:
        names = {role: getattr(reading.columns, role) for role in _ROLES}
        named = ", ".join(f"{role} {name!r}" for role, name in names.items() if name is not None)
        lines += [f"rows        {reading.rows:,}, of which {reading.bad.total:,} are bad", f"columns     {named}"]
    scale = "implicit: a row says 'seen'" if ratings.implicit else f"ratings from {ratings.low:g} to {ratings.high:g}"
    lines += [
        f"users       {ratings.n_users:,}, each with {checked.activity} items",
        f"items       {ratings.n_items:,}, each with {checked.popularity} users",
        f"pairs       {ratings.n_ratings:,}, {ratings.density:.3%} of all; {ratings.duplicates:,} rows repeat a pair",
        f"scale       {scale}",
        f"order       {'by time' if ratings.order is not None else 'none: no column of times'}",
    ]
    for title, counts in (("items per user", ratings.counts()), ("users per item", item_counts(ratings))):
        rows = bars(counts)
        wide = max(len(label) for label, _, _ in rows)
        lines += ["", title, *(f"  {label:>{wide}}  {bar} {number:,}" for label, number, bar in rows)]
    lines.append("")
    if checked.epsilon is not None:
        lines.append(
            f"fits        ε = {checked.epsilon:g}, δ = {checked.delta:g}: an average item is heard through the noise"
        )
    lines.append(f"not tried   {', '.join(checked.not_tried)}: `odp compare` says whether one of them wins")
    lines += [f"note: {line}" for line in checked.advice]
    return lines


def _next_steps(checked: DataCheck, data: str, columns: dict[str, Any], output: Path | None) -> list[str]:
    source = data_arguments(data, columns)
    epsilon = checked.epsilon or 8.0
    task = "--preset auto" if output is None or checked.task is None else shlex.quote(str(output / "task.toml"))
    budget = f" --epsilon {epsilon:g} --delta {checked.delta:g}" if task.startswith("--") else ""
    return [
        f"odp compare {source} --delta {checked.delta:g} --output comparison",
        f"odp simulate {task} {source}{budget} --output run",
        "odp report run",
    ]


#: Options that say that the table has labelled examples.
_LABELLED = ("label", "text")


def is_labelled(columns: Mapping[str, Any], task: AnyTask | None) -> bool:
    """Whether a table is to be read as labelled examples: by its options, or by the task that is to use it."""
    from odp.research.simulation.labelled_check import reads_examples

    return any(name in columns for name in _LABELLED) or reads_examples(task)


def check_usable(data: str, columns: dict[str, Any], task: AnyTask, *, json: bool) -> int:
    """Prints what a task can use of a table, and why not all of it; returns the exit status."""
    from odp.datasets.labelled_tables import labelled_options
    from odp.models.example_tables import columns_of
    from odp.research.simulation.labelled_check import read_for, reads_examples, usable_rows

    if not reads_examples(task):
        raise ConfigurationError("Expected --task with a task that trains a model of labelled examples")
    table = read_for(task, data, labelled_options(columns))
    usable = usable_rows(task, columns_of(table))
    first, *others = usable.lines()
    left_out = [f"left out    {line}" for line in others]
    clamped = [
        f"clamped     {count:,} whose {name!r} is beyond its range, and counts as its end"
        for name, count in usable.clamped.items()
    ]
    text = "\n".join([*_head(table), f"usable      {first}", *left_out, *clamped, *_notes(table.notes)])
    print_result({"rows": table.rows, "bad_rows": table.bad.total, "usable": usable.to_json()}, text, json=json)
    return _status(table, columns)


def check_examples(data: str, columns: dict[str, Any], *, output: Path | None, json: bool) -> int:
    """Prints what a table holds and the task that fits it; returns the exit status."""
    from odp.datasets.labelled_tables import labelled_options
    from odp.models.example_tables import read_examples
    from odp.research.simulation.labelled_check import check_labelled

    table = read_examples(data, labelled_options(columns | {"on_error": "skip"}))
    checked = check_labelled(table)
    written = None if output is None else _write(checked, output, data)
    bad = _status(table, columns)
    if json:
        print_json(checked.to_json())
    else:
        _print_check(
            _lines(checked),
            bad,
            columns,
            None if written is None else [written],
            lambda columns: _next_labelled_steps(checked, data, columns, written),
        )
    return bad


def _status(table: LabelledTable, columns: Mapping[str, Any]) -> int:
    """1 where rows are bad and are not to be skipped."""
    return int(table.bad.total > 0 and columns.get("on_error") != "skip")


def _notes(notes: Iterable[str]) -> list[str]:
    return [f"note: {line}" for line in notes]


def _write(checked: LabelledCheck, output: Path, data: str) -> Path:
    from odp.research.simulation.labelled_check import proposed_text

    name = Path(data).name
    text = proposed_text(
        checked, name=task_name(checked.columns.name), comment=f"Fits {name}; made by `odp data check`."
    )
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        (output / "task.toml").write_text(text, encoding="utf-8")
    return output / "task.toml"


def task_name(name: str) -> str:
    """The data set's name as a task's: lower-case letters, digits and hyphens."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")
    return plain[:40] or "own-data"


def _lines(checked: LabelledCheck) -> list[str]:
    table = checked.table
    wide = max(map(len, checked.proposals), default=0)
    lines = [
        *_head(table),
        f"users       {checked.columns.n_users:,}, each with {checked.activity} examples",
        f"label       {checked.label}",
    ]
    for kind, proposed in (("feature", True), ("no feature", False)):
        lines += [
            f"{kind:<11} {name:<{wide}}  {proposal.description}"
            for name, proposal in checked.proposals.items()
            if (proposal.feature is not None) is proposed
        ]
    if checked.missing:
        lines.append("missing     " + ", ".join(f"{count:,} of {name!r}" for name, count in checked.missing.items()))
    lines.append("")
    if checked.epsilon is not None:
        lines.append(
            f"fits        ε = {checked.epsilon:g}, δ = {checked.delta:g}: the noise is at most a twentieth "
            "of the way that "
            "devices move the model"
        )
    return lines + _notes(checked.advice)


def _head(table: LabelledTable) -> list[str]:
    return [
        f"rows        {table.rows:,}, of which {table.bad.total:,} are bad",
        f"columns     user {table.columns.user!r}, label {table.columns.label!r}",
    ]


def _next_labelled_steps(
    checked: LabelledCheck, data: str, columns: Mapping[str, Any], written: Path | None
) -> list[str]:
    if checked.task is None:
        return ["mend what the notes say, and check again"]
    if written is None:
        options = [as_option(name, value) for name, value in columns.items()]
        return [" ".join(["odp data check", shlex.quote(data), *options, "--output check"])]
    source = data_arguments(data, {name: value for name, value in columns.items() if name != "label"})
    return [f"odp simulate {shlex.quote(str(written))} {source} --output run", "odp report run"]

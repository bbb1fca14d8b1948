"""`odp data check` of labelled examples: what is printed and written."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp.cli.console import print_json, print_text
from odp.cli.data_options import as_option, data_arguments
from odp.cli.outputs import writing

if TYPE_CHECKING:
    from odp.datasets.labelled_tables import LabelledTable
    from odp.research.simulation.labelled_check import LabelledCheck
    from odp.tasks.file import AnyTask

#: Options that say that the table has labelled examples.
_LABELLED = ("label", "text")


def is_labelled(columns: Mapping[str, Any], task: AnyTask | None) -> bool:
    """Whether a table is to be read as labelled examples: by its options, or by the task that is to use it."""
    from odp.research.simulation.labelled_check import reads_examples

    return any(name in columns for name in _LABELLED) or reads_examples(task)


def check_usable(data: str, columns: dict[str, Any], task: AnyTask, *, json: bool) -> int:
    """Prints what a task can use of a table, and why not all of it; returns the exit status."""
    from odp.datasets.labelled_tables import labelled_options
    from odp.errors import ConfigurationError
    from odp.models.example_tables import columns_of
    from odp.research.simulation.labelled_check import read_for, reads_examples, usable_rows

    if not reads_examples(task):
        raise ConfigurationError("Expected --task with a task that trains a model of labelled examples")
    table = read_for(task, data, labelled_options(columns))
    usable = usable_rows(task, columns_of(table))
    if json:
        print_json({"rows": table.rows, "bad_rows": table.bad.total, "usable": usable.to_json()})
    else:
        first, *others = usable.lines()
        left_out = [f"left out    {line}" for line in others]
        clamped = [
            f"clamped     {count:,} whose {name!r} is beyond its range, and counts as its end"
            for name, count in usable.clamped.items()
        ]
        print_text("\n".join([*_head(table), f"usable      {first}", *left_out, *clamped, *_notes(table.notes)]))
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
        return bad
    print_text("\n".join(_lines(checked)))
    if bad:
        print_text("note: other commands refuse a table with bad rows: mend them, or pass --on-error skip")
        columns = columns | {"on_error": "skip"}
    if written is not None:
        print_text(f"\nwritten: {written}")
    print_text("\nnext:\n" + "\n".join(f"  {line}" for line in _next_steps(checked, data, columns, written)))
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


def _next_steps(checked: LabelledCheck, data: str, columns: Mapping[str, Any], written: Path | None) -> list[str]:
    if checked.task is None:
        return ["mend what the notes say, and check again"]
    if written is None:
        options = [as_option(name, value) for name, value in columns.items()]
        return [" ".join(["odp data check", shlex.quote(data), *options, "--output check"])]
    source = data_arguments(data, {name: value for name, value in columns.items() if name != "label"})
    return [f"odp simulate {shlex.quote(str(written))} {source} --output run", "odp report run"]

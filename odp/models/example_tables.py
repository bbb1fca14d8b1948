"""Labelled examples of many users from a table, and the parts of them that a simulation of a task takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odp.datasets.columns import OnError
from odp.datasets.labelled_tables import (
    USUAL_TIME,
    LabelledColumns,
    LabelledTable,
    column_name,
    is_missing_word,
    is_plain_number,
    labelled_options,
    read_labelled,
)
from odp.datasets.splitting import OnlyTested, TimeCut
from odp.datasets.table_files import is_frame, is_table_file
from odp.errors import ConfigurationError, DataError
from odp.models.class_names import is_missing
from odp.models.example_columns import ExampleColumns
from odp.models.features import Category, Feature, Text
from odp.models.named_numbers import has_no_number, places_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from odp.datasets.examples import ExamplesSplit, UsersExamples
    from odp.models.examples import Examples


def load_examples(
    source: Any,
    *,
    user: str | None = None,
    label: str | None = None,
    time: str | None = None,
    text: Sequence[str] = (),
    on_error: OnError = "raise",
    name: str | None = None,
) -> ExampleColumns:
    """The labelled examples of a table, one in each row, and whose they are.

    Tables are CSV, TSV, JSON lines and Parquet files, and frames of pandas, Polars and Arrow. Columns get names that a
    task can have: ``Is spam?`` is ``is_spam``. ``odp.simulate`` takes the result with a task of ``odp.Examples``.

    Args:
      source: a path, or a table in memory.
      user: column of ids of users; by default the one of a usual name.
      label: column of labels, words or numbers; by default the one of a usual name, such as "label" or "target".
      time: column of times, numbers or dates; it is no feature. By default no column.
      text: columns that are text although most of their cells are numbers.
      on_error: "raise" refuses a table with bad rows by their lines, "skip" leaves them out and counts them in
        ``notes``. A missing number or label is no bad row: whoever uses the examples counts it.
      name: what reports call the examples.

    Raises:
      DataError: it is no table, a column is missing, or rows are bad.
      ConfigurationError: an option contradicts another, or the package that reads tables is missing.
    """
    columns = LabelledColumns(user=user, label=label, time=time, text=text, on_error=on_error)
    return columns_of(read_examples(source, columns, name=name))


def read_examples(source: Any, columns: LabelledColumns, *, name: str | None = None) -> LabelledTable:
    """As :func:`load_examples`, with how the table was read."""
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        if not is_table_file(path):
            raise DataError(f"{source}: expected a table of labelled examples (.csv, .tsv, .parquet or .jsonl)")
    elif not is_frame(source):
        raise DataError(f"Expected a path, or a pandas, Polars or Arrow table (got a {type(source).__name__})")
    return read_labelled(source, columns, name=name)


def columns_of(table: LabelledTable) -> ExampleColumns:
    """A table as columns of many users. Raises ConfigurationError, DataError: as ``ExampleColumns``."""
    ends = np.cumsum(np.bincount(table.users, minlength=len(table.user_ids)), dtype=np.int64)
    return ExampleColumns(
        table.values, np.argsort(table.users, kind="stable"), np.concatenate(([0], ends)), table.user_ids, table.name,
        table.notes, table.times, table.time_unit,
    )  # fmt: skip


def examples_for(data: Examples, source: Any, options: Mapping[str, Any], *, timed: bool = False) -> ExampleColumns:
    """The columns of a table that a task reads; its other columns may hold anything.

    Args:
      data: what the task reads.
      source: as of :func:`load_examples`.
      options: arguments of it.
      timed: read a column of times, by default the one of a usual name.

    Raises:
      DataError: as :func:`load_examples`; or there is no column of times.
      ConfigurationError: an option is unknown, or the label is another one than the task's.
    """
    columns = labelled_options(options)
    if timed and columns.time is None:
        columns = replace(columns, time=USUAL_TIME)
    return columns_of(
        read_for_task(source, columns, features=data.features, label=data.label, classes=tuple(map(str, data.classes)))
    )


def read_for_task(
    source: Any, columns: LabelledColumns, *, features: Mapping[str, Feature], label: str, classes: Sequence[str]
) -> LabelledTable:
    """The columns of a table that a task reads.

    Raises:
      DataError: as :func:`load_examples`, or a column is not read as what the task declares it to be.
      ConfigurationError: as :func:`examples_for`.
    """
    table = read_examples(source, of_task(columns, features=features, label=label))
    for name, feature in features.items():
        names = feature.classes if isinstance(feature, Category) and not isinstance(feature.classes, int) else ()
        _check_read(table, name, names, text=isinstance(feature, Text), numbers=not names)
    _check_read(table, label, classes, text=False, numbers=False)
    return table


def _check_read(table: LabelledTable, name: str, names: Sequence[str], *, text: bool, numbers: bool) -> None:
    """Raises DataError where a column is text in place of ``numbers``, or numbers in place of ``text`` or ``names``."""
    values, title = table.values[name], table.columns.by_name[name]
    where = f"{table.where}: column {title!r} is read as"
    hint = f"declare text=({title!r},) (--text {shlex.quote(title)})"
    if values.dtype.kind != "U":
        if text:
            raise DataError(f"{where} numbers, and the task reads text: {hint}")
        lost = [class_name for class_name in names if is_missing_word(class_name) or has_no_number(class_name)]
        if lost and np.isnan(places_of(values, names)).any():
            raise DataError(f"{where} numbers, none of which is called {lost[0]!r}, as the task names it: {hint}")
    elif numbers and not text:
        row = next((row for row, cell in enumerate(values.tolist()) if cell and not is_plain_number(cell)), None)
        cell = "its columns" if row is None else table.place(row)
        raise DataError(
            f"{where} text, and the task reads numbers: {cell} has none that is plain, as 7 for 007, 1234 for 1,234"
        )


def columns_of_task(source: Any, names: Sequence[str]) -> dict[str, Any]:
    """The columns of ``names`` that unlabelled examples have, a column called ``Is new?`` as ``is_new``.

    Args:
      source: columns by name, what :func:`load_examples` gives, or a frame of pandas, Polars or Arrow.
      names: of the columns that a task reads.

    Raises:
      DataError: it is none of these, lacks a column, or has two columns of one name.
    """
    if isinstance(source, ExampleColumns):
        source = source.columns
    if is_frame(source):
        source = {str(name): source[name].to_numpy() for name in getattr(source, "column_names", source.columns)}
    if not isinstance(source, Mapping):
        raise DataError(f"Expected columns of examples by name, or a data frame (got a {type(source).__name__})")
    columns: dict[str, Any] = {}
    for name in names:
        titles = [title for title in source if column_name(str(title)) == name or title == name]
        if len(titles) != 1:
            which = "a column" if not titles else "one column"
            raise DataError(
                f"Expected {which} {name!r}, as the task reads it (got {', '.join(map(str, titles or source))})"
            )
        columns[name] = source[titles[0]]
    return columns


def of_task(columns: LabelledColumns, *, features: Iterable[str], label: str) -> LabelledColumns:
    """The same without columns that a task does not read. Raises ConfigurationError for another label than its own."""
    if columns.label is not None and column_name(columns.label) != label:
        raise ConfigurationError(
            f"Expected label={columns.label!r} (--label) to be the task's label {label!r}; leave it out"
        )
    return replace(columns, label=label, only=(*features, label))


def split_for(data: Examples, columns: ExampleColumns, *, seed: int, cut: TimeCut | None = None) -> ExamplesSplit:
    """What a simulation of a task that reads ``data`` trains and tests on.

    A tenth of the examples is for tests; or those from ``cut`` on, and what they alone have is counted. Everybody takes
    part, also people without an example for training.

    Raises:
      DataError: a column is missing, or of another shape or kind than the task reads; or as ``TimeCut.tests``.
    """
    from odp.datasets.example_files import drawn_tests, split_examples

    users = columns.users_examples(data)
    if cut is None:
        return split_examples(users, drawn_tests(users, seed=seed), name=columns.name, where=columns.name)
    tests = cut.tests(columns, what="example")[users.rows]
    split = split_examples(users, tests, name=columns.name, where=columns.name)
    return replace(split, only_tested=_only_tested(data, users, tests))


def _only_tested(data: Examples, users: UsersExamples, tests: npt.NDArray[np.bool_]) -> OnlyTested:
    owners = np.repeat(np.arange(users.n_users), np.diff(users.offsets))
    sides = (owners[tests], owners[~tests])
    tested, trained = (np.bincount(side, minlength=users.n_users) > 0 for side in sides)
    counts = {"users": (int((tested & ~trained).sum()), users.n_users)}
    if data.label_range is None:
        labels = users.targets[users.rows]
        classes = places_of(labels, [str(name) for name in data.classes]) if data.classes else labels
        later, earlier = (np.unique(side[~is_missing(side)]) for side in (classes[tests], classes[~tests]))
        counts["classes"] = (len(np.setdiff1d(later, earlier)), len(np.union1d(later, earlier)))
    return OnlyTested(counts)

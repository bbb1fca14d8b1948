"""Reads JSON lines: at full speed where the ids of a column are of one kind, and record by record where not."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.datasets.ids import id_texts, value_texts
from odp.datasets.raw_table import Broken, C, Kind, RawTable, arrow
from odp.datasets.text_source import UTF8, TextSource, opened
from odp.datasets.text_tables import Quoting, record_lines
from odp.errors import DataError

#: Of what may be text or numbers.
_VALUES = (Kind.NUMBER, Kind.TEXT, Kind.TITLE, Kind.ANY)
#: Characters of a key in a message.
_SHOWN_KEY = 64


def read_json(path: Path, columns: C) -> RawTable[C]:
    """The columns of a file with one JSON object per line.

    Raises:
      DataError: the file is not UTF-8, no line is an object, a column is missing, or an id is neither a whole number
        nor text.
    """
    source = TextSource.at(path)
    if source.encoding != UTF8:
        raise DataError(f"{path}: JSON lines are UTF-8 text; convert the file")
    raw = _at_speed(path, columns, record_lines(source, Quoting()))
    return _by_record(path, columns) if raw is None else raw


def _at_speed(path: Path, columns: C, lines: npt.NDArray[np.int64]) -> RawTable[C] | None:
    """By Arrow, which is told the types of ids: it would read text like "2024-01-02" as a time, and 2**63 as a float.

    None where the ids are of several kinds, or anything else is unusual.
    """
    pa = arrow()
    import pyarrow.json as pa_json

    first = _first_record(path)
    try:
        guess = columns.within(list(first), where=str(path))
    except DataError:
        return None
    kinds = {str: pa.string(), int: pa.int64()}
    names = {name: guess.kind(role) for role, name in guess.roles.items()}
    if any(type(first[name]) not in kinds for name, kind in names.items() if kind is Kind.ID):
        return None
    # Numbers other than ids may be whole in the first record and fractions in others.
    fixed = {
        name: type(first[name])
        for name, kind in names.items()
        if kind is Kind.ID or (isinstance(first[name], str) and kind in _VALUES)
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in fixed.items()])
    try:
        table = pa_json.read_json(str(path), parse_options=pa_json.ParseOptions(explicit_schema=schema))
        matched = columns.within(table.column_names, where=str(path))
    except pa.ArrowInvalid:
        return None
    if any(matched.roles.get(role) != name for role, name in guess.roles.items()):
        return None
    # Arrow takes several objects in a line for rows, and one over several lines: which line a row has is then unknown.
    if len(lines) != table.num_rows:
        return None
    parts = {role: table.column(name) for role, name in matched.roles.items()}
    if any(pa.types.is_nested(part.type) for part in parts.values()):
        return None
    if any(pa.types.is_temporal(part.type) for role, part in parts.items() if matched.kind(role) in _VALUES):
        return None  # text that looks like a date
    return RawTable(str(path), matched, parts, "line", lambda: lines)


def _first_record(path: Path) -> dict[str, Any]:
    with closing(opened(path)) as file:
        line = next((line for line in file if line.strip()), b"")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _by_record(path: Path, columns: C) -> RawTable[C]:
    """One by one, so that the lines at fault can be named."""
    records: list[dict[str, Any]] = []
    numbers: list[int] = []
    broken: list[Broken] = []
    with closing(opened(path)) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=distinct_keys)
            except DoubledKey as error:
                broken.append(Broken(number, str(error)))
                continue
            except (ValueError, RecursionError):
                broken.append(Broken(number, "no JSON"))
                continue
            if isinstance(record, dict):
                records.append(record)
                numbers.append(number)
            else:
                broken.append(Broken(number, "no JSON object"))
    if not records:
        raise DataError(f"{path}: no line is a JSON object; expected one per line, with a user and an item")
    matched = columns.within(list(dict.fromkeys(name for record in records for name in record)), where=str(path))
    parts = {}
    for role, name in matched.roles.items():
        values = [record.get(name) for record in records]
        if any(isinstance(value, (dict, list)) for value in values):
            raise DataError(f"{path}: column {name!r} for the {role} is nested; write one plain value per line")
        if matched.kind(role) is Kind.ID:
            where = f"{path}: column {name!r} of ids"
            parts[role] = id_texts(values, where=where, place=lambda row: f"line {numbers[row]}")
        else:
            parts[role] = _one_kind(values, matched.kind(role))
    positions = np.array(numbers, dtype=np.int64)
    return RawTable(str(path), matched, parts, "line", lambda: positions, tuple(broken))


class DoubledKey(ValueError):
    """An object has a key twice: no value is the right one."""


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of ``pairs``, as ``object_pairs_hook`` of ``json.loads``. Raises DoubledKey."""
    record = dict(pairs)
    if len(record) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        doubled = next(key for key, count in counts.items() if count > 1)
        raise DoubledKey(f"the key {doubled[:_SHOWN_KEY]!r} twice in one object")
    return record


def _one_kind(values: list[Any], kind: Kind) -> Any:
    pa = arrow()
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        if kind in _VALUES:
            return value_texts(values)
        return pa.chunked_array([pa.array([None if value is None else str(value) for value in values])])

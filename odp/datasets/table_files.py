"""Reads the columns that matter of CSV, TSV, Parquet and JSON lines files and of data frames, by Apache Arrow.

A CSV file is read twice at most: at full speed, and line by line in order where the first reading met a bad row.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from odp.datasets.columns import Columns
from odp.errors import DataError
from odp.extras import require
from odp.numerics.archives import require_growth, require_gzip_growth

if TYPE_CHECKING:
    import pyarrow as pa

CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)

_DELIMITERS = (",", "\t", ";", "|")
_CHUNK = 2**24
_BLOCK = 2**24
_CELL_BYTES = 8


@dataclass(frozen=True)
class Broken:
    """A row that is no row of the table at all."""

    line: int
    why: str


@dataclass(frozen=True)
class RawTable:
    """Columns as they were found.

    Attributes:
      where: the table's name in messages.
      columns: with the names that were found.
      parts: Arrow columns by role: "user", "item", and where there are such columns, "value" and "time".
      counted: "line" (of a file, from 1) or "row" (from 0): what positions in messages are.
      positions: int64 [rows]: where each row was found; a function, since it is needed for bad rows alone.
      broken: rows that were left out of ``parts``.
      untyped: ids are text because the form of the file has no types.
    """

    where: str
    columns: Columns
    parts: dict[str, pa.ChunkedArray]
    counted: str
    positions: Callable[[], npt.NDArray[np.int64]]
    broken: tuple[Broken, ...] = ()
    untyped: bool = False


def arrow() -> Any:
    """The package ``pyarrow``. Raises ConfigurationError, with the way to install it, where it is missing."""
    require("pyarrow", to="read tables")
    import pyarrow

    return pyarrow


def is_table_file(path: Path) -> bool:
    """Whether the name ends as that of a table does."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def read_file(path: Path, columns: Columns) -> RawTable:
    """The columns of one file, whose form follows from the end of its name.

    Raises:
      DataError: the file is missing, empty, no table of its form, or lacks a column.
      ConfigurationError: ``pyarrow`` is not installed.
    """
    pa = arrow()
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    if size == 0:
        raise DataError(f"{path}: the file is empty")
    name = path.name.lower()
    try:
        if name.endswith(".gz"):
            require_gzip_growth(path)
        if name.endswith(PARQUET_SUFFIXES):
            return _read_parquet(path, columns)
        if name.endswith(JSON_SUFFIXES):
            return _read_json(path, columns)
        return _read_csv(path, columns)
    except (OSError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); check the file") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise DataError(f"{path}: not a readable table ({_first_line(error)})") from None


def read_frame(frame: object, columns: Columns, *, name: str) -> RawTable:
    """The columns of a pandas, Polars or Arrow table, or of anything with ``__arrow_c_stream__``.

    Raises:
      DataError: it is no table, it lacks a column, or a column holds no plain values.
      ConfigurationError: ``pyarrow`` is not installed.
    """
    pa = arrow()
    where = f"data frame {name!r}"
    names = _names_of(frame)
    if names is None:
        raise DataError(f"Expected a pandas, Polars or Arrow table, or a path (got a {type(frame).__name__})")
    try:
        found = columns.within(names, where=where)
    except DataError as error:
        index = [str(level) for level in getattr(getattr(frame, "index", None), "names", []) if level is not None]
        if any(wanted in index for wanted in (columns.user, columns.item, columns.value, columns.time)):
            raise DataError(f"{error}; the index is no column: pass frame.reset_index()") from None
        raise
    parts = {}
    for role, column in _roles(found).items():
        try:
            parts[role] = _chunked(pa, frame, column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
            raise DataError(
                f"{where}: column {column!r} holds values of several kinds or of none that a table knows "
                f"({_first_line(error)}); bring them to one type"
            ) from None
    rows = len(parts["user"])
    return RawTable(where, found, parts, "row", lambda: np.arange(rows, dtype=np.int64))


def is_frame(source: object) -> bool:
    """Whether ``source`` is a table in memory."""
    return _names_of(source) is not None


def _names_of(frame: object) -> list[str] | None:
    if not (hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__") or hasattr(frame, "iloc")):
        return None
    names = getattr(frame, "column_names", None)  # Arrow's tables
    if names is None:
        schema = getattr(frame, "schema", None)
        names = getattr(frame, "columns", None) if schema is None else getattr(schema, "names", None)
        if callable(names):
            names = names()
    if names is None:
        return None
    return [str(name) for name in names]


def _chunked(pa: Any, frame: Any, column: str) -> pa.ChunkedArray:
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        got = frame.column(column)
    elif hasattr(frame, "iloc"):
        # By position: a name may be no text, and ``frame[name]`` would then find nothing.
        got = pa.array(frame.iloc[:, [str(name) for name in frame.columns].index(column)], from_pandas=True)
    else:
        got = pa.table(frame.select([column]) if hasattr(frame, "select") else frame).column(column)
    return cast("pa.ChunkedArray", got if isinstance(got, pa.ChunkedArray) else pa.chunked_array([got]))


def _roles(columns: Columns) -> dict[str, str]:
    roles = {"user": columns.user, "item": columns.item, "value": columns.value, "time": columns.time}
    return {role: name for role, name in roles.items() if name is not None}


def _read_parquet(path: Path, columns: Columns) -> RawTable:
    pa = arrow()
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    found = columns.within(schema.names, where=str(path))
    roles = _roles(found)
    for role, name in roles.items():
        if pa.types.is_nested(schema.field(name).type):
            raise DataError(
                f"{path}: column {name!r} for the {role} is nested ({schema.field(name).type}); "
                "write one plain value per row"
            )
    # What each number and the place of each text takes, whatever it was packed to.
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    cells = file.metadata.num_rows * len(roles) * _CELL_BYTES
    require_growth(path, max(cells, sum(group.total_byte_size for group in groups)))
    texts = [name for name in roles.values() if pa.types.is_string(schema.field(name).type)]
    table = pq.read_table(path, columns=list(roles.values()), read_dictionary=texts)
    parts = {role: table.column(name) for role, name in roles.items()}
    return RawTable(str(path), found, parts, "row", lambda: np.arange(table.num_rows, dtype=np.int64))


def _read_json(path: Path, columns: Columns) -> RawTable:
    pa = arrow()
    import pyarrow.json as pa_json

    def whole() -> tuple[Columns, dict[str, Any]]:
        table = pa_json.read_json(str(path))
        found = columns.within(table.column_names, where=str(path))
        return found, {role: table.column(name) for role, name in _roles(found).items()}

    broken: tuple[Broken, ...] = ()
    try:
        found, parts = whole()
        lines: Callable[[], npt.NDArray[np.int64]] = lambda: _filled_lines(path)  # noqa: E731
    except pa.ArrowInvalid:
        # A row is malformed or its types differ from the others': find which.
        records, numbers, broken = _json_records(path)
        names = list(dict.fromkeys(name for record in records for name in record))
        found = columns.within(names, where=str(path))
        parts = {
            role: _one_kind(pa, [record.get(name) for record in records], name, path)
            for role, name in _roles(found).items()
        }
        positions = np.array(numbers, dtype=np.int64)
        lines = lambda: positions  # noqa: E731
    for role, name in _roles(found).items():
        if pa.types.is_nested(parts[role].type):
            raise DataError(f"{path}: column {name!r} for the {role} is nested; write one plain value per line")
    return RawTable(str(path), found, parts, "line", lines, broken)


def _one_kind(pa: Any, values: list[Any], name: str, path: Path) -> Any:
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pass
    if any(isinstance(value, (dict, list)) for value in values):
        raise DataError(f"{path}: column {name!r} is nested; write one plain value per line")
    return pa.chunked_array([pa.array([None if value is None else str(value) for value in values])])


def _json_records(path: Path) -> tuple[list[dict[str, Any]], list[int], tuple[Broken, ...]]:
    """The records of a file that Arrow refuses, one by one: the lines at fault have to be named."""
    records, numbers, broken = [], [], []
    with closing(_opened(path)) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                broken.append(Broken(number, "no JSON"))
                continue
            if isinstance(record, dict):
                records.append(record)
                numbers.append(number)
            else:
                broken.append(Broken(number, "no JSON object"))
    if not records:
        raise DataError(f"{path}: no line is a JSON object; expected one per line, with a user and an item")
    return records, numbers, tuple(broken)


def _read_csv(path: Path, columns: Columns) -> RawTable:
    pa = arrow()
    header, delimiter, encoding = _header(path)
    found = columns.within(header, where=str(path))
    roles = _roles(found)
    try:
        table = _csv_table(path, delimiter, encoding, roles, newlines=False, strict=True)
        parts = {role: table.column(name) for role, name in roles.items()}
        return RawTable(str(path), found, parts, "line", lambda: _filled_lines(path)[1:], untyped=True)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error) or "UTF-8" in str(error):
            raise _wrong_encoding(path) from None
    except UnicodeDecodeError:
        raise _wrong_encoding(path) from None
    return _read_bad_csv(path, found, delimiter, encoding)


def _read_bad_csv(path: Path, found: Columns, delimiter: str, encoding: str) -> RawTable:
    """The rows that can be read of a file with bad ones: in order, so that they are numbered, and values as text."""
    roles = _roles(found)
    broken: list[tuple[int, int, int]] = []
    table = _csv_table(path, delimiter, encoding, roles, newlines=False, strict=False, broken=broken)
    newlines = False
    if broken:
        quoted: list[tuple[int, int, int]] = []
        again = _csv_table(path, delimiter, encoding, roles, newlines=True, strict=False, broken=quoted)
        if len(quoted) < len(broken):
            table, broken, newlines = again, quoted, True
    rows = table.num_rows + len(broken)
    # Arrow numbers rows from 1, and the header is the first.
    absent = [number - 2 for number, _, _ in broken]

    def places() -> npt.NDArray[np.int64]:
        return np.arange(2, rows + 2, dtype=np.int64) if newlines else _filled_lines(path)[1:]

    every = places() if broken else np.empty(0, dtype=np.int64)
    return RawTable(
        str(path),
        found,
        {role: table.column(name) for role, name in roles.items()},
        "record" if newlines else "line",
        lambda: np.delete(places(), absent),
        tuple(
            Broken(int(every[number - 2]), f"{actual} fields where the header has {expected}")
            for number, expected, actual in broken
        ),
        untyped=True,
    )


def _csv_table(
    path: Path,
    delimiter: str,
    encoding: str,
    roles: dict[str, str],
    *,
    newlines: bool,
    strict: bool,
    broken: list[tuple[int, int, int]] | None = None,
) -> Any:
    pa = arrow()
    import pyarrow.csv as pa_csv

    def on_invalid(row: Any) -> str:
        assert broken is not None
        broken.append((row.number, row.expected_columns, row.actual_columns))
        return "skip"

    ids = pa.dictionary(pa.int32(), pa.string())
    types: dict[str, Any] = {roles["user"]: ids, roles["item"]: ids}
    if "value" in roles:
        types[roles["value"]] = pa.float32() if strict else pa.string()
    if "time" in roles and not strict:
        types[roles["time"]] = pa.string()
    read = pa_csv.ReadOptions(use_threads=strict, encoding=encoding, block_size=_BLOCK)
    parse = pa_csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=newlines, invalid_row_handler=None if strict else on_invalid
    )
    convert = pa_csv.ConvertOptions(include_columns=list(roles.values()), column_types=types)
    # A block at a time: reading all at once holds the text of most blocks beside their columns.
    with pa_csv.open_csv(str(path), read_options=read, parse_options=parse, convert_options=convert) as reader:
        return pa.Table.from_batches(list(reader), schema=reader.schema)


def _header(path: Path) -> tuple[list[str], str, str]:
    """(names of the columns, delimiter, encoding) of a CSV file, from its first line."""
    import csv

    with closing(_opened(path)) as file:
        first = file.read(2**16)
    encoding = "utf8"
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    if encoding == "utf8" and b"\x00" in first:
        raise DataError(f"{path}: not a text table (it holds zero bytes); expected CSV with a header line")
    try:
        text = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf8" else encoding)().decode(first)
    except UnicodeDecodeError:
        raise _wrong_encoding(path) from None
    line = next((line for line in text.splitlines() if line.strip()), "")
    if not line:
        raise DataError(f"{path}: holds no rows; expected a header line and rows")
    delimiter = max(_DELIMITERS, key=line.count)
    if not line.count(delimiter):
        raise DataError(f"{path}:1: one column only; expected at least a user and an item, separated by , tab ; or |")
    names = next(csv.reader([line], delimiter=delimiter))
    if all(_is_number(name) for name in names):
        raise DataError(f"{path}:1: the first line holds numbers; add a header line such as user,item,rating")
    return names, delimiter, encoding


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _wrong_encoding(path: Path) -> DataError:
    """Names the first line that is not UTF-8."""
    with closing(_opened(path)) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return DataError(
                    f"{path}:{number}: not UTF-8 text; convert the file, for example with "
                    f"`iconv -f latin1 -t utf-8 {path.name} > utf8.csv`"
                )
    return DataError(f"{path}: not UTF-8 text; convert the file first")


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


def _filled_lines(path: Path) -> npt.NDArray[np.int64]:
    """Numbers, from 1, of the lines that are not blank: those that Arrow counts as rows."""
    found = []
    number, carried = 0, b""
    for chunk in _chunks(path):
        text = carried + chunk
        end = text.rfind(b"\n") + 1
        text, carried = text[:end], text[end:]
        codes = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(codes == 10)
        starts = np.concatenate(([0], ends + 1))[: len(ends)]
        # A line of nothing but a carriage return is blank, too.
        blank = (ends == starts) | ((ends == starts + 1) & (codes[starts] == 13))
        found.append(number + 1 + np.flatnonzero(~blank))
        number += len(ends)
    if carried.strip():
        found.append(np.array([number + 1]))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)


def _chunks(path: Path) -> Iterator[bytes]:
    with closing(_opened(path)) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

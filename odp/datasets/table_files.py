"""Tables of files and of data frames as columns: CSV, TSV, JSON lines, Parquet, and pandas, Polars and Arrow."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from odp.datasets.ids import id_texts, value_texts
from odp.datasets.json_tables import read_json
from odp.datasets.raw_table import C, Kind, RawTable, arrow
from odp.datasets.text_tables import TextForm, read_text
from odp.errors import DataError
from odp.numerics.archives import require_growth, require_gzip_growth

if TYPE_CHECKING:
    import pyarrow as pa

CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)

_CELL_BYTES = 8


def is_table_file(path: Path) -> bool:
    """Whether the name ends as that of a table does."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def read_file(path: Path, columns: C, form: TextForm | None = None) -> RawTable[C]:
    """The columns of one file, whose form follows from the end of its name, unless ``form`` says it.

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
        if form is None and name.endswith(PARQUET_SUFFIXES):
            return _read_parquet(path, columns)
        if form is None and name.endswith(JSON_SUFFIXES):
            return read_json(path, columns)
        return read_text(path, columns, form)
    except (OSError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); check the file") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise DataError(f"{path}: not a readable table ({_first_line(error)})") from None


def read_frame(frame: object, columns: C, *, name: str) -> RawTable[C]:
    """The columns of a pandas, Polars or Arrow table, or of anything with ``__arrow_c_stream__``.

    Raises:
      DataError: it is no table, it lacks a column, or a column holds no plain values.
      ConfigurationError: ``pyarrow`` is not installed.
    """
    pa = arrow()
    where = f"data frame {name!r}"
    if hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "columns"):
        frame = pa.table(frame)  # a stream is read once, and its columns are asked for one by one
    if (names := _names_of(frame)) is None:
        raise DataError(f"Expected a pandas, Polars or Arrow table, or a path (got a {type(frame).__name__})")
    try:
        matched = columns.within(names, where=where)
    except DataError as error:
        index = [str(level) for level in getattr(getattr(frame, "index", None), "names", []) if level is not None]
        if any(wanted in index for wanted in columns.roles.values()):
            raise DataError(f"{error}; the index is no column: pass frame.reset_index()") from None
        raise
    parts = {}
    for role, column in matched.roles.items():
        try:
            parts[role] = _chunked(pa, frame, column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
            if matched.kind(role) is Kind.ID and hasattr(frame, "iloc"):
                ids = f"{where}: column {column!r} of ids"
                parts[role] = id_texts(_series(frame, column), where=ids, place=lambda row: f"row {row}")
                continue
            if matched.kind(role) is Kind.ANY and hasattr(frame, "iloc"):
                parts[role] = value_texts(_series(frame, column))
                continue
            raise DataError(
                f"{where}: column {column!r} holds values of several kinds or of none that a table knows "
                f"({_first_line(error)}); bring them to one type"
            ) from None
    rows = len(parts["user"])
    return RawTable(where, matched, parts, "row", lambda: np.arange(rows, dtype=np.int64))


def is_frame(source: object) -> bool:
    """Whether ``source`` is a table in memory."""
    return _names_of(source) is not None


def _names_of(frame: object) -> list[str] | None:
    if not (hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__") or hasattr(frame, "iloc")):
        return None
    if (names := getattr(frame, "column_names", None)) is None:  # those of Arrow's tables
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
        got = pa.array(_series(frame, column), from_pandas=True)
    else:
        got = pa.table(frame.select([column]) if hasattr(frame, "select") else frame).column(column)
    return cast("pa.ChunkedArray", got if isinstance(got, pa.ChunkedArray) else pa.chunked_array([got]))


def _series(frame: Any, column: str) -> Any:
    # By position: a name may be no text, and ``frame[name]`` would then find nothing.
    return frame.iloc[:, [str(name) for name in frame.columns].index(column)]


def _read_parquet(path: Path, columns: C) -> RawTable[C]:
    pa = arrow()
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    matched = columns.within(schema.names, where=str(path))
    roles = matched.roles
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
    return RawTable(str(path), matched, parts, "row", lambda: np.arange(table.num_rows, dtype=np.int64))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

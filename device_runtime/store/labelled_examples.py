"""Labelled examples in a store: rows of tensors and texts by name, in a namespace per service.

A row is one example, its numbers as bytes with their own type: an image of 28 x 28 bytes takes 784 bytes. Text is
UTF-8, and takes as many bytes as the longest text that was added with it. Beside them lies the *layout*: name, type and
shape of each column, in the order of the bytes. Rows of different layouts may share a namespace; a task reads those
that have its label and all of its features.

Examples of no service are what a device was given when it was set up.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from device_runtime.store.database import Bounds, Database, require_space
from odp import _validate
from odp.algorithms.seam import LocalRows
from odp.errors import DataError
from odp.models.example_columns import checked_columns
from odp.models.examples import service_of
from odp.models.features import Feature
from odp.models.named_numbers import places_of

#: Of a text that a task reads, per number that it makes of it, and of so many numbers at least.
TEXT_BYTES, _SHORT_TEXT = 64, 16
#: Of an example of which a task reads little. SQLite reads a row in one step, which nothing can interrupt.
LONG_ROW = 2**16


@dataclass(frozen=True)
class _Column:
    """A column of a layout: where its bytes are in a row."""

    start: int
    type: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.type.itemsize * math.prod(self.shape)

    def of(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The column [n, *shape] of rows of bytes uint8 [n, size]; text as text."""
        stored = np.ascontiguousarray(rows[:, self.start : self.end]).view(self.type).reshape(len(rows), *self.shape)
        return np.char.decode(stored, "utf-8", "ignore") if self.type.kind == "S" else stored


class LabelledExamples:
    """The examples of one service, or with "" of none, in an open store."""

    def __init__(self, database: Database, service: str, bounds: Bounds) -> None:
        self._database, self._service, self._bounds = database, service, bounds

    def add(self, columns: Mapping[str, npt.ArrayLike], *, time: float) -> int:
        """Adds examples in one transaction; returns their number.

        Args:
          columns: numbers [n, ..] or text [n] by name: features, and what tasks may have as their label.
          time: when they were made, seconds since the epoch.

        Raises:
          ConfigurationError: a column's name is no name.
          DataError: columns are neither numbers nor text, or differ in length; or an example, the namespace or the file
            would be too large; nothing was added.
          StateError: the store cannot be written.
        """
        _validate.finite(time=time)
        numbers = {name: _bytes(name, column) for name, column in checked_columns(columns).items()}
        if not (count := len(next(iter(numbers.values())))):
            return 0
        layout = json.dumps([[name, array.dtype.str, array.shape[1:]] for name, array in numbers.items()])
        sizes = [array.dtype.itemsize * math.prod(array.shape[1:]) for array in numbers.values()]
        size, most = sum(sizes), self._bounds.example_bytes
        if not 1 <= size <= most:
            raise DataError(
                f"Expected an example of {self._whose} to have 1 to example_bytes={most} bytes (got {size})"
            )
        rows = np.empty((count, size), dtype=np.uint8)
        for numeric, end, width in zip(numbers.values(), np.cumsum(sizes).tolist(), sizes, strict=True):
            rows[:, end - width : end] = numeric.reshape(count, -1).view(np.uint8).reshape(count, width)
        with self._database.transaction():
            require_space(self._database, count * (size + len(layout)), self._bounds, whose=self._whose)
            if self.count() + count > self._bounds.examples:
                raise DataError(
                    f"Expected at most examples={self._bounds.examples} of {self._whose}; nothing was added; a shorter "
                    "retention deletes examples earlier"
                )
            self._database.execute_many(
                "INSERT INTO examples (service, time, layout, data) VALUES (?, ?, ?, ?)",
                [(self._service, time, layout, row.tobytes()) for row in rows],
            )
        return count

    def count(self) -> int:
        """The number of examples."""
        row = self._database.first("SELECT count(*) FROM examples WHERE service = ?", (self._service,))
        return 0 if row is None else int(row[0])

    def read(
        self, features: Mapping[str, Feature], *, label: str, classes: Sequence[str] = (), most: int = -1
    ) -> LocalRows:
        """Of the newest ``most`` examples, or of all, those that have columns for all of ``features``, and ``label``
        as one number: oldest first.

        Tensors have the types in which they were stored; numbers of any size, also such that are none. Names and text
        become numbers (``odp.models.features``), and so do labels whose ``classes`` have names: another label is not a
        number (``odp.models.named_numbers``). No more is read than the task's own numbers say: neither the other
        columns of an example, nor what a text has beyond ``TEXT_BYTES`` for each number that is made of it. An example
        of more than ``LONG_ROW`` bytes is left out where the task reads less than a quarter of it: all would be read.

        Raises:
          StateError: the store cannot be read.
        """
        newest = "FROM examples WHERE service = ? ORDER BY time DESC, id DESC LIMIT ?"
        arguments = (self._service, most)
        layouts = self._database.all(
            f"SELECT layout, count(*) FROM (SELECT layout {newest}) GROUP BY layout", arguments
        )
        wanted: dict[str, tuple[int, ...]] = {
            name: tuple(wanted_feature.shape) for name, wanted_feature in features.items()
        } | {label: ()}
        places: list[tuple[float, int]] = []
        parts: list[dict[str, npt.NDArray[Any]]] = []
        for layout, _ in layouts:
            columns = _readable(_columns(layout)[0], features, label=label, names=bool(classes))
            if columns is None:
                continue
            pieces = _pieces(columns.values())
            size = sum(size for _, size in pieces)
            selected = ", ".join("substr(data, ?, ?)" for _ in pieces)
            rows = self._database.all(
                f"SELECT time, id, {selected} FROM examples WHERE id IN (SELECT id {newest}) AND layout = ? "
                "AND length(data) <= ?",
                (
                    *(number for start, size in pieces for number in (start + 1, size)), *arguments, layout,
                    max(LONG_ROW, 4 * size),
                ),
            )  # fmt: skip
            data = np.frombuffer(b"".join(piece for row in rows for piece in row[2:]), np.uint8).reshape(-1, size)
            read = {name: _moved(column, pieces).of(data) for name, column in columns.items()}
            part = {label: places_of(read[label], classes) if classes else read[label]}
            for name, feature in features.items():
                if (numbers := feature.numbers(read[name])) is not None:
                    part[name] = numbers
            if part.keys() == wanted.keys():
                places += [(row[0], row[1]) for row in rows]
                parts.append(part)
        order = np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)
        by_name = {name: _joined([part[name] for part in parts], shape)[order] for name, shape in wanted.items()}
        values = by_name.pop(label).astype(np.float64)
        unread = sum(count for _, count in layouts) - len(values)
        return LocalRows(np.arange(len(values), dtype=np.int64), values, by_name, unread)

    def everything(self) -> Iterator[dict[str, Any]]:
        """Every example, JSON-able, oldest first: single numbers as numbers, or None; others as base64."""
        stored = self._database.all(
            "SELECT time, layout, data FROM examples WHERE service = ? ORDER BY time, id", (self._service,)
        )
        for time, layout, data in stored:
            columns, size = _columns(layout)
            rows = np.frombuffer(data, dtype=np.uint8).reshape(1, size)
            yield {"time": time, "columns": {name: _exported(column, rows) for name, column in columns.items()}}

    @property
    def _whose(self) -> str:
        return f"service {self._service!r}" if self._service else "the device"


def examples_of(database: Database, table: str, bounds: Bounds | None = None) -> LabelledExamples:
    """The examples of a table, as tasks name it: ``examples``, or ``examples.SERVICE``.

    Raises:
      ConfigurationError: it is no table of examples.
    """
    return LabelledExamples(database, service_of(table), Bounds() if bounds is None else bounds)


def _bytes(name: str, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Text as UTF-8 [n]; numbers as they are. Raises DataError where text is none that UTF-8 has."""
    if column.dtype.kind != "U":
        return column
    try:
        encoded: npt.NDArray[Any] = np.char.encode(column, "utf-8")
    except UnicodeEncodeError:
        raise DataError(f"Expected column {name!r} of the examples to be text without lone surrogates") from None
    return encoded


def _columns(layout: str) -> tuple[dict[str, _Column], int]:
    """The columns of a layout, and the bytes of a row."""
    columns: dict[str, _Column] = {}
    end = 0
    for name, type, shape in json.loads(layout):
        columns[name] = _Column(end, np.dtype(type), tuple(shape))
        end = columns[name].end
    return columns, end


def _readable(
    columns: dict[str, _Column], features: Mapping[str, Feature], *, label: str, names: bool
) -> dict[str, _Column] | None:
    """The columns that a task reads, long texts cut; None where the layout has other ones than the task asks for."""
    if not columns.keys() >= {*features, label} or columns[label].shape:
        return None
    if columns[label].type.kind == "S" and not names:
        return None
    readable = {label: _cut(columns[label], numbers=1)}
    for name, feature in features.items():
        column = _cut(columns[name], numbers=feature.size)
        if column.shape not in ((), tuple(feature.shape)):
            return None
        readable[name] = column
    return readable


def _cut(column: _Column, *, numbers: int) -> _Column:
    """A column of which no more text is read than the numbers that are made of it need."""
    if column.type.kind != "S":
        return column
    size = min(column.type.itemsize, TEXT_BYTES * max(numbers, _SHORT_TEXT))
    return dataclasses.replace(column, type=np.dtype(f"S{size}"))


def _pieces(columns: Iterable[_Column]) -> list[tuple[int, int]]:
    """(start, size) of what is read of a row: adjacent columns together."""
    pieces: list[tuple[int, int]] = []
    for start, end in sorted({(column.start, column.end) for column in columns}):
        if pieces and sum(pieces[-1]) == start:
            start = pieces.pop()[0]
        pieces.append((start, end - start))
    return pieces


def _moved(column: _Column, pieces: Sequence[tuple[int, int]]) -> _Column:
    """Where a column lies in the pieces of its row."""
    before = 0
    for start, size in pieces:
        if start <= column.start < start + size:
            return dataclasses.replace(column, start=before + column.start - start)
        before += size
    raise ValueError("a column that is not read")


def _joined(parts: list[npt.NDArray[Any]], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros((0, *shape), dtype=np.float32)


def _exported(column: _Column, rows: npt.NDArray[np.uint8]) -> Any:
    numbers = column.of(rows)[0]
    if column.type.kind == "S":
        return str(numbers)
    if column.shape:
        data = base64.b64encode(numbers.tobytes()).decode()
        return {"type": column.type.str, "shape": list(column.shape), "base64": data}
    return numbers.item() if np.isfinite(numbers) else None

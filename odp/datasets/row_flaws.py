"""Rows of a table that cannot be used, with their places: a table is refused with them, or they are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from odp.datasets.ids import decoded
from odp.datasets.raw_table import RawTable, arrow
from odp.errors import DataError

NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$"
THOUSANDS = r"^\s*[+-]?(\d{1,3}(,\d{3})+(\.\d*)?|\d{1,3}(\.\d{3})+,\d*|\d{1,3}(\.\d{3}){2,})\s*$"
DECIMAL_COMMA = r"^\s*[+-]?\d+,\d+\s*$"
#: Places of bad rows that a message has.
SHOWN = 5


@dataclass(frozen=True)
class BadRows:
    """Rows that hold no interaction or no example, by reason.

    Attributes:
      counted: what ``places`` count: "line", "record" (both from 1) or "row" (from 0).
      total: how many.
      reasons: what was wrong, how often, and the first places.
    """

    counted: str
    total: int
    reasons: tuple[tuple[str, int, tuple[int, ...]], ...]

    def lines(self) -> list[str]:
        """One line per reason; never the data themselves."""
        return [
            f"{count:,} x {why}: {self.counted} {', '.join(map(str, places))}{', ..' if count > len(places) else ''}"
            for why, count, places in self.reasons
        ]


class Flaws:
    """What is wrong with which row; the first reason of a row counts."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.bad: npt.NDArray[np.bool_] | None = None
        self.reasons: list[tuple[str, npt.NDArray[np.int64]]] = []

    def add(self, mask: npt.NDArray[np.bool_], why: str) -> None:
        """Marks rows, bool [rows], as bad for a reason."""
        if not mask.any():
            return
        if self.bad is None:
            self.bad = np.zeros(self.rows, dtype=np.bool_)
        new = np.flatnonzero(mask & ~self.bad)
        if new.size:
            self.bad |= mask
            self.reasons.append((why, new))


def bad_rows(raw: RawTable[Any], flaws: Flaws) -> BadRows:
    """The rows of a table that are none, and those with flaws."""
    reasons: list[tuple[str, int, tuple[int, ...]]] = []
    for why in dict.fromkeys(row.why for row in raw.broken):
        lines = [row.line for row in raw.broken if row.why == why]
        reasons.append((why, len(lines), tuple(lines[:SHOWN])))
    if flaws.reasons:
        positions = raw.positions()
        for why, rows in flaws.reasons:
            reasons.append((why, len(rows), tuple(int(place) for place in positions[rows[:SHOWN]])))
    return BadRows(raw.counted, sum(count for _, count, _ in reasons), tuple(reasons))


def refusal(raw: RawTable[Any], report: BadRows, rows: int) -> DataError:
    """The error of a table with bad rows among its ``rows``: how many, why, and where the first are."""
    return DataError(
        f"{raw.where}: {report.total:,} of {rows:,} rows are bad: {'; '.join(report.lines())}. "
        "Mend them, or leave them out with on_error='skip' (--on-error skip)"
    )


def unusable(raw: RawTable[Any], reasons: Sequence[str], *, expected: str) -> DataError:
    """The error of a table without a row of what is ``expected``, with the reasons of all rows that were left out."""
    left_out = f": {'; '.join(reasons)}" if reasons else ""
    return DataError(f"{raw.where}: holds no usable rows; expected at least one user with one {expected}{left_out}")


def numbers(column: Any, name: str, where: str, flaws: Flaws, *, missing: bool = False) -> npt.NDArray[Any]:
    """A column of numbers, float32 or float64 [rows]; a row without one is bad, unless it may be ``missing``."""
    pa = arrow()
    import pyarrow.compute as pc

    column = decoded(column)
    kind = column.type
    if pa.types.is_string(kind):
        for pattern, why in (
            (THOUSANDS, "thousands are separated, write 1234.5 for 1,234.5 and for 1.234,5"),
            (DECIMAL_COMMA, "a decimal comma, write a point"),
        ):
            marked = pc.match_substring_regex(column, pattern).fill_null(False).to_numpy(zero_copy_only=False)
            flaws.add(marked, f"{why} (column {name!r})")
        absent = pc.is_null(column).to_numpy(zero_copy_only=False)
        fits = pc.match_substring_regex(column, NUMBER).fill_null(False)
        column = pc.if_else(fits, pc.utf8_trim_whitespace(column), pa.scalar(None, kind)).cast(pa.float64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    ):
        raise DataError(f"{where}: column {name!r} of values is of type {kind}; expected numbers")
    values = column.to_numpy() if kind == pa.float32() else column.cast(pa.float64(), safe=False).to_numpy()
    bad = ~np.isfinite(values)
    if missing:
        bad = np.isnan(values) & ~absent if pa.types.is_string(kind) else np.zeros(len(values), dtype=np.bool_)
    flaws.add(bad, f"no number as a value (column {name!r})")
    return cast("npt.NDArray[Any]", values)

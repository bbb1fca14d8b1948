"""A column of times: numbers, or dates with or without a time of the day and a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from odp.datasets.id_columns import decoded
from odp.datasets.raw_table import arrow
from odp.datasets.row_flaws import NUMBER, Flaws
from odp.errors import DataError
from odp.identity import LARGEST

_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def times_of(column: Any, name: str, where: str, flaws: Flaws) -> tuple[npt.NDArray[Any], str | None]:
    """(numbers that order the rows, int64 or float64 [rows]; what they count from 1970 on, where they were dates).

    A row without a time is bad. Raises DataError where the column holds no times at all.
    """
    pa = arrow()
    import pyarrow.compute as pc

    column = decoded(column)
    kind, unit = column.type, None
    if pa.types.is_string(kind):
        texts = column.drop_null()
        column, unit = _parsed_times(column)
        if len(texts) and column.null_count == len(column):
            raise DataError(
                f"{where}: column {name!r} has no time, but texts such as {texts[0].as_py()[:40]!r}; expected numbers, "
                "or dates such as 2001-03-01, 2001-03-01T12:00 or 2001-03-01T12:00+02:00"
            )
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us")) if pa.types.is_date(kind) else column
        unit = column.type.unit
        column = column.cast(pa.int64())
    elif pa.types.is_null(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_time(kind):
        raise DataError(f"{where}: column {name!r} holds times of the day without dates; expected numbers or dates")
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{where}: column {name!r} of times is of type {kind}; expected numbers or dates")
    missing = pc.is_null(column).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        missing = missing | ~np.isfinite(column.to_numpy())
        times = column.to_numpy()
    else:
        if column.type == pa.uint64():
            missing = missing | (pc.fill_null(column, 0).to_numpy() > LARGEST)
        times = pc.fill_null(column, 0).cast(pa.int64(), safe=False).to_numpy()
    flaws.add(missing, f"no time (column {name!r})")
    return cast("npt.NDArray[Any]", np.where(missing, 0, times) if missing.any() else times), unit


def _parsed_times(column: Any) -> tuple[Any, str | None]:
    """Times of text: numbers where any row is one, otherwise ISO 8601 dates; null where a row is neither."""
    pa = arrow()
    import pyarrow.compute as pc

    numeric = pc.match_substring_regex(column, NUMBER).fill_null(False)
    if pc.any(numeric).as_py():
        texts = pc.if_else(numeric, pc.utf8_trim_whitespace(column), pa.scalar(None, column.type))
        try:
            return texts.cast(pa.int64()), None
        except pa.ArrowInvalid:
            return texts.cast(pa.float64()), None
    shaped = pc.match_substring_regex(column, _DATE).fill_null(False)
    texts = pc.if_else(shaped, column, pa.scalar(None, column.type))
    # A date alone ends like a zone does: "-02".
    zoned = pc.match_substring_regex(texts, r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$").fill_null(False)
    unit = "ns" if pc.any(pc.match_substring_regex(texts, r"\.\d{7}")).as_py() else "us"
    if pc.any(zoned).as_py() and not pc.all(pc.or_(zoned, pc.is_null(texts))).as_py():
        return _calendar_times(texts), "us"
    try:
        kind = pa.timestamp(unit, tz="UTC") if pc.any(zoned).as_py() else pa.timestamp(unit)
        return texts.cast(kind).cast(pa.int64()), unit
    except pa.ArrowInvalid:
        # A date that no calendar has: such rows, one by one.
        return _calendar_times(texts), "us"


def _calendar_times(column: Any) -> Any:
    pa = arrow()
    moments: list[int | None] = []
    for text in column.to_pylist():
        try:
            moment = datetime.fromisoformat(text)
        except (TypeError, ValueError):
            moments.append(None)
            continue
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        moments.append((aware - _EPOCH) // timedelta(microseconds=1))
    return pa.array(moments, type=pa.int64())

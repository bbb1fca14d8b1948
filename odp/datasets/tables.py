"""Reads interactions of a person's own table: ids of any kind, any scale, and bad rows by their places.

A column of times: numbers, or dates with or without a time of the day and a zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from odp.datasets.columns import AS_WRITTEN, Columns, Scale, scale_of
from odp.datasets.ids import Ids, coded, decoded, used
from odp.datasets.raw_table import RawTable, arrow
from odp.datasets.repeats import repeated_rows
from odp.datasets.row_flaws import NUMBER, SHOWN, BadRows, Flaws, bad_rows, numbers, refusal, unusable
from odp.datasets.table_files import read_file, read_frame
from odp.datasets.text_tables import TextForm
from odp.errors import DataError
from odp.identity import LARGEST, normal

#: Texts by which other programs write that there is none.
_NO_IDS = ("NULL", "null", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "None", "\\N")


@dataclass(frozen=True)
class TableReading:
    """What was read of one table.

    Attributes:
      triples: the interactions, as arguments of ``Ratings.from_triples``.
      rows: rows of the table, with the bad ones.
      columns: with the names that were found.
      scale: what the values mean, and whether that was guessed.
      bad: rows that were left out.
      unseen: rows of implicit data whose value is 0 or less, which say nothing; left out, too.
      values: the least and the largest value in the table, or None.
      titles: of each item, in the order of ``triples``, "" where it has none; None where no column has titles.
    """

    triples: dict[str, Any]
    rows: int
    columns: Columns
    scale: Scale
    bad: BadRows
    unseen: int
    values: tuple[float, float] | None
    titles: tuple[str, ...] | None = None


def read_table(
    source: object, columns: Columns, *, name: str | None = None, form: TextForm | None = None
) -> TableReading:
    """Reads a file (CSV, TSV, Parquet, JSON lines) or a data frame (pandas, Polars, Arrow).

    Users and items are numbered in the order of their ids: numbers ascending, then other texts by code points.

    Args:
      source: a path or a table in memory.
      columns: which columns, which scale, and what to do with bad rows.
      name: what reports call the data set; by default the file's name without its ending, or "dataframe".
      form: of a text file whose columns are known.

    Raises:
      DataError: it is no table, a column is missing, or rows are bad and ``columns.on_error`` is "raise".
      ConfigurationError: ``pyarrow`` is missing, or the settings contradict the table.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        return _assembled(read_file(path, columns, form), name or stem(path))
    return _assembled(read_frame(source, columns, name=name or "dataframe"), name or "dataframe")


def stem(path: Path) -> str:
    """A file's name without its ending."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def _assembled(raw: RawTable[Columns], name: str) -> TableReading:
    parts, columns, where = raw.parts, raw.columns, raw.where
    rows = len(parts["user"])
    flaws = Flaws(rows)
    ids: dict[str, Ids] = {}
    codes: dict[str, npt.NDArray[np.int32]] = {}
    for role in ("user", "item"):
        column = f"{where}: column {_named(columns, role)!r}"
        ids[role], codes[role] = coded(parts.pop(role), where=column, place=raw.place)
        code = codes[role]
        flaws.add(code < 0, f"no {role} (column {_named(columns, role)!r})")
    values = numbers(parts.pop("value"), _named(columns, "value"), where, flaws) if "value" in parts else None
    times, unit = None, None
    if "time" in parts:
        times, unit = times_of(parts.pop("time"), _named(columns, "time"), where, flaws)
    titles = parts.pop("title", None)
    bad = flaws.bad
    scale = scale_of(values if values is None or bad is None else values[~bad], columns, where=where)
    extremes: tuple[float, float] | None = None
    if values is not None and rows:
        usable = np.isfinite(values)
        extremes = (float(values[usable].min()), float(values[usable].max())) if usable.any() else None
        if not scale.implicit:
            with np.errstate(invalid="ignore"):
                outside = (values < scale.low) | (values > scale.high)
            limits = "what 32 bits hold" if scale == AS_WRITTEN else f"[{scale.low:g}, {scale.high:g}]"
            flaws.add(outside, f"value outside {limits} (column {columns.value!r})")
    report = bad_rows(raw, flaws)
    if report.total and columns.on_error == "raise":
        raise refusal(raw, report, rows + len(raw.broken))
    good = None if flaws.bad is None else ~flaws.bad
    unseen = 0
    if scale.implicit and values is not None:
        happened = values > 0
        unseen = int((~happened).sum()) - (0 if good is None else int((~happened & ~good).sum()))
        if unseen:
            good = happened if good is None else good & happened
        values = None
    if good is not None:
        codes = {role: code[good] for role, code in codes.items()}
        values = None if values is None else values[good]
        times = None if times is None else times[good]
    arrow().default_memory_pool().release_unused()
    if not len(codes["user"]):
        raise unusable(raw, [*report.lines(), *_unseen_notes(unseen)], expected="item")
    for role in ("user", "item"):
        ids[role], codes[role] = used(ids[role], codes[role])
    titled, several = (None, 0) if titles is None else _titles(titles, good, codes["item"], len(ids["item"]))
    if columns.repeats == "refuse":
        _refuse_repeats(raw, codes, ids, good)
    triples = {
        "name": name,
        "users": codes["user"],
        "items": codes["item"],
        "values": _plain(values, len(codes["user"])),
        "low": scale.low,
        "high": scale.high,
        "n_users": len(ids["user"]),
        "n_items": len(ids["item"]),
        "times": times,
        "time_unit": unit,
        "repeats": columns.repeats,
        "implicit": scale.implicit,
        "user_ids": ids["user"],
        "item_ids": ids["item"],
        "notes": (
            *_notes(scale, columns, report, unseen),
            *_id_notes(ids, columns),
            *([f"{several:,} further titles of items that have one are left out"] if several else []),
            *raw.notes,
        ),
        "inferred": ("items", "scale") if scale.guessed else ("items",),
    }
    return TableReading(triples, rows + len(raw.broken), columns, scale, report, unseen, extremes, titled)


def _titles(
    column: Any, good: npt.NDArray[np.bool_] | None, items: npt.NDArray[np.int32], count: int
) -> tuple[tuple[str, ...], int]:
    """(the first title of each of ``count`` items, how many items have several titles)."""
    pa = arrow()
    import pyarrow.compute as pc

    texts = pc.fill_null(decoded(column).cast(pa.string()), "")
    texts = (texts if good is None else texts.filter(pa.array(good))).combine_chunks()
    coded_texts = texts.dictionary_encode()
    distinct, code = coded_texts.dictionary.to_pylist(), coded_texts.indices.to_numpy()
    names = [normal(text.strip()) for text in distinct]
    titled = np.array([bool(name) for name in names], dtype=np.bool_)[code]
    pairs, first = np.unique(items[titled].astype(np.int64) * len(names) + code[titled], return_index=True)
    pairs = pairs[np.argsort(first, kind="stable")]
    owners, place = np.unique(pairs // max(len(names), 1), return_index=True)
    first_titles = [""] * count
    for item, pair in zip(owners.tolist(), pairs[place].tolist(), strict=True):
        first_titles[item] = names[pair % len(names)]
    return tuple(first_titles), len(pairs) - len(owners)


def _plain(values: npt.NDArray[Any] | None, rows: int) -> npt.NDArray[np.float32]:
    return np.ones(rows, dtype=np.float32) if values is None else values.astype(np.float32, copy=False)


def _refuse_repeats(
    raw: RawTable[Columns],
    codes: dict[str, npt.NDArray[np.int32]],
    ids: dict[str, Ids],
    good: npt.NDArray[np.bool_] | None,
) -> None:
    again = repeated_rows(codes["user"], codes["item"], len(ids["user"]), len(ids["item"]))
    if len(again):
        positions = raw.positions() if good is None else raw.positions()[good]
        shown = ", ".join(str(place) for place in positions[again[:SHOWN]])
        raise DataError(
            f"{raw.where}: {len(again):,} rows name a user and an item again: {raw.counted} {shown}"
            f"{', ..' if len(again) > SHOWN else ''}; mend them, or say what they come to with repeats='newest', "
            "'oldest', 'mean' or 'sum' (--repeats)"
        )


def _notes(scale: Scale, columns: Columns, report: BadRows, unseen: int) -> list[str]:
    notes = []
    if scale.guessed and scale.implicit:
        what = "there are no values" if columns.value is None else f"{columns.value!r} looks like counts"
        notes.append(f"guessed: {what}, so a row says 'seen' and no opinion (implicit; --explicit says otherwise)")
    elif scale.guessed:
        notes.append(
            f"guessed: ratings in {columns.value!r} are from {scale.low:g} to {scale.high:g}; "
            "declare the scale with --low and --high, as a guess depends on the data"
        )
    if report.total:
        notes.append(f"{report.total:,} bad rows were left out: {'; '.join(report.lines())}")
    return [*notes, *_unseen_notes(unseen)]


def _unseen_notes(unseen: int) -> list[str]:
    return [f"{unseen:,} rows have a value of 0 or less, and do not count as seen"] if unseen else []


def _id_notes(ids: dict[str, Ids], columns: Columns) -> list[str]:
    """Ids that are as they were written, and probably not as they were meant."""
    notes = []
    for role, role_ids in ids.items():
        if role_ids.dtype.kind != "T":
            continue
        column = repr(_named(columns, role))
        if words := sorted({*_NO_IDS}.intersection(role_ids.tolist())):
            notes.append(f"ids in column {column} are called {', '.join(map(repr, words))}; a missing id is empty")
        if spaced := int((np.strings.strip(role_ids) != role_ids).sum()):
            notes.append(f"{spaced:,} ids in column {column} have spaces at their ends, which are a part of them")
    return notes


def _named(columns: Columns, role: str) -> str:
    return cast(str, getattr(columns, role))


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

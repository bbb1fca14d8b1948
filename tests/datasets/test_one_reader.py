"""Each form of table goes through one reader: the same rows, ids by their text, and no row that is lost in silence."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import odp
from odp.datasets.columns import Columns
from odp.datasets.ids import checked_ids, id_keys
from odp.datasets.movielens import load_movielens
from odp.datasets.splitting import TimeCut
from odp.datasets.text_tables import read_text
from odp.errors import ConfigurationError, DataError
from odp.evaluation.users import chosen_entries, draw_users, user_seeds
from odp.identity import id_text
from odp.privacy.events import Sampling

Row = tuple[str, str, float, int]
NAMES = ("user", "item", "rating", "time")
FORMS = (
    "csv", "quoted.csv", "csv.gz", "utf16.csv", "semicolon.csv", "tsv", "jsonl", "numbers.jsonl", "parquet", "pandas",
    "polars", "categories", "arrow", "u.data", "ratings.dat", "ratings.csv",
)  # fmt: skip


def rows_of(ratings: odp.data.Ratings) -> set[tuple[str, str, float]]:
    assert ratings.user_ids is not None
    assert ratings.item_ids is not None
    users, items = ratings.user_ids[ratings.users()].tolist(), ratings.item_ids[ratings.items].tolist()
    return {
        (str(user), str(item), value) for user, item, value in zip(users, items, ratings.values.tolist(), strict=True)
    }


def field(text: str, mark: str, *, always: bool) -> str:
    special = always or text[:1] == '"' or any(one in text for one in (mark, '"', "\n", "\r"))
    return '"' + text.replace('"', '""') + '"' if special else text


def written(rows: list[Row], form: str, folder: Path) -> Any:
    """The rows in one form, as a path or a frame."""
    columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
    path = folder / f"table.{form}"
    mark = {"tsv": "\t", "semicolon.csv": ";", "u.data": "\t", "ratings.dat": "::"}.get(form, ",")
    header = {"u.data": [], "ratings.dat": [], "ratings.csv": [("userId", "movieId", "rating", "timestamp")]}
    lines = [*header.get(form, [NAMES]), *(tuple(map(str, row)) for row in rows)]
    text = "".join(mark.join(field(one, mark, always=form == "quoted.csv") for one in line) + "\n" for line in lines)
    match form:
        case "u.data" | "ratings.dat" | "ratings.csv":
            (folder / form).write_bytes(text.encode())
            return folder
        case "csv.gz":
            path.write_bytes(gzip.compress(text.encode()))
        case "utf16.csv":
            path.write_bytes(codecs.BOM_UTF16_LE + text.encode("utf-16-le"))
        case "jsonl":
            path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows))
        case "numbers.jsonl":
            typed = [(number(user), number(item), value, time) for user, item, value, time in rows]
            path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in typed))
        case "parquet":
            pq.write_table(pa.table(columns), path)
        case "pandas":
            # As people have them: numbers where a cell is one, and objects where a column has both.
            ids = {name: [number(one) for one in columns[name]] for name in ("user", "item")}
            return pd.DataFrame(columns | ids)
        case "polars":
            return pl.DataFrame(columns | {"rating": [str(row[2]) for row in rows]})
        case "categories":
            kind = {name: pl.Enum(sorted(set(columns[name]))) for name in ("user",)} | {"item": pl.Categorical}
            text = {name: [str(one) for one in columns[name]] for name in ("rating", "time")}
            return pl.DataFrame(columns | text).cast(kind | dict.fromkeys(text, pl.Categorical))  # type: ignore[arg-type]
        case "arrow":
            return pa.table(columns)
        case _:
            path.write_bytes(text.encode())
    return path


def number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"0|-?[1-9][0-9]*", text) else text


def read(source: Any) -> odp.data.Ratings:
    if isinstance(source, Path) and source.is_dir():
        return load_movielens(source)
    return odp.load(source, low=0.5, high=5)


ordinary = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers(2**53 - 2, 2**53 + 2).map(str),
    st.integers(2**63 - 2, 2**63 + 2).map(str),
    st.integers(-(2**63) - 2, -(2**63) + 2).map(str),
    st.sampled_from(["007", "1.10", "1.1", "1e3", "+7", "-0", "2024-01-02", "nan", "NA", "null", "true", "guest"]),
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters=':"'), min_size=1, max_size=6),
)  # fmt: skip
quoted = st.one_of(ordinary, st.sampled_from(['"x"', 'a"b', "a,b", "a;b", "a\nb", "a b", 'x"', '"x', "a\tb"]))


def tables(ids: st.SearchStrategy[str]) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(ids, ids, st.sampled_from([1.0, 1.5, 2.5, 4.0, 5.0]), st.integers(1, 10**9))
    return st.lists(row, min_size=1, max_size=12, unique_by=lambda row: row[:2])


def written_in_two_ways(rows: list[Row]) -> bool:
    import unicodedata

    def folded(text: str) -> str:
        return re.sub(r"^(-?[0-9]+)\.0+$", r"\1", unicodedata.normalize("NFC", text))

    columns = [{row[place] for row in rows} for place in (0, 1)]
    return any(len({folded(one) for one in column}) < len(column) for column in columns)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(ordinary))
@pytest.mark.slow
def test_every_form_of_a_table_gives_the_same_rows_for_any_kind_of_id(
    rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if written_in_two_ways(rows):
        return
    expected = {row[:3] for row in rows}
    keys, places = None, None
    for form in FORMS:
        ratings = read(written(rows, form, tmp_path_factory.mktemp("form")))
        assert rows_of(ratings) == expected, form
        assert keys is None or (ratings.user_keys.tolist(), ratings.item_keys.tolist()) == keys, form
        assert places is None or ratings.items.tolist() == places, form
        keys, places = (ratings.user_keys.tolist(), ratings.item_keys.tolist()), ratings.items.tolist()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(quoted))
def test_what_has_to_be_quoted_is_the_same_in_every_form_that_quotes(
    rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if written_in_two_ways(rows):
        return
    for form in ("csv", "quoted.csv", "utf16.csv", "semicolon.csv", "jsonl", "parquet", "polars", "ratings.csv"):
        assert rows_of(read(written(rows, form, tmp_path_factory.mktemp("form")))) == {row[:3] for row in rows}, form


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=tables(ordinary), other=ordinary, place=st.integers(0, 11), seed=st.integers(0, 2**40), plays=st.booleans(),
    form=st.sampled_from(["csv", "pandas", "numbers.jsonl"]),
)  # fmt: skip
@pytest.mark.slow
def test_one_user_more_or_less_changes_no_key_no_part_no_seed_and_no_coin_of_another(
    rows: list[Row], other: str, place: int, seed: int, plays: bool, form: str, tmp_path: Path
) -> None:
    """On the code of before, one user `guest` among numbers moved a third of the others' ratings."""
    more = [*rows[:place], (other, "1", 2.5, 7), *rows[place:]]
    if written_in_two_ways(more) or any(row[0] == other for row in rows):
        return
    scale: dict[str, Any] = {"implicit": True} if plays else {"low": 0.5, "high": 5}

    def facts(table: list[Row]) -> tuple[dict[tuple[str, str], list[object]], dict[str, list[object]], list[str]]:
        ratings = odp.load(written(table, form, tmp_path), **scale)
        assert ratings.user_ids is not None
        assert ratings.item_ids is not None
        names, items = [str(one) for one in ratings.user_ids.tolist()], [str(one) for one in ratings.item_ids.tolist()]
        split = odp.data.random_split(ratings, seed=seed)
        cut = TimeCut(number=5 * 10**8)
        found: dict[tuple[str, str], list[object]] = {
            (names[user], items[item]): [value]
            for user, item, value in zip(ratings.users(), ratings.items, ratings.values.tolist(), strict=True)
        }
        parts = [split.train, split.validation, split.test]
        if len({row[3] >= 5 * 10**8 for row in rows}) == 2:
            by_time = cut.split(ratings, seed=seed)
            parts += [by_time.train, by_time.validation, by_time.test]
        for number, part in enumerate(parts):
            for user, item in zip(part.users().tolist(), part.items.tolist(), strict=True):
                found[names[user], items[item]].append(number)
        for entry in chosen_entries(ratings, 1, seed=seed).tolist():
            found[names[ratings.users()[entry]], items[ratings.items[entry]]].append("chosen")
        coins = np.isin(np.arange(len(names)), draw_users(ratings, Sampling(0.5, 500, 500), round=3, seed=seed))
        each = zip(ratings.user_keys.tolist(), user_seeds(ratings, seed).tolist(), coins.tolist(), strict=True)
        own: dict[str, list[object]] = {name: [*facts] for name, facts in zip(names, each, strict=True)}
        return (
            {pair: known for pair, known in found.items() if pair[0] != other},
            {name: known for name, known in own.items() if name != other},
            [name for name in names if name != other],
        )

    assert facts(more) == facts(rows)


def test_a_guest_among_numbers_moves_nobody(tmp_path: Path) -> None:
    """The issue's own case: 691 of 2,000 ratings changed between training and test."""
    lines = [f"{user},{item},{1 + (user + item) % 5}" for user in range(1, 101) for item in range(20)]
    tables = {"without": lines, "guest": [*lines, "guest,3,4"], "999": [*lines, "999,3,4"]}
    parts = {}
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,rating", *text]) + "\n")
        split = odp.data.random_split(odp.load(tmp_path / f"{name}.csv", low=1, high=5), seed=1)
        parts[name] = [
            {row for row in rows_of(part) if row[0] not in ("guest", "999")} for part in (split.train, split.test)
        ]
    assert parts["without"] == parts["guest"] == parts["999"]


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_no_float_holds_stay_apart(form: str, tmp_path: Path) -> None:
    rows = [(str(2**53 + number), "10", 4.0, 5) for number in (0, 1)] + [(str(2**63 + 1), "10", 3.0, 5)]
    assert rows_of(read(written(rows, form, tmp_path))) == {row[:3] for row in rows}


TITLES = "user\titem\ttitle\trating\n{}u9\tN9\tz\t1\n"


def test_a_quote_that_does_not_end_its_field_joins_no_lines(tmp_path: Path) -> None:
    """The issue's case: (u2, N2) got u5's rating, and u3 to u5 vanished."""
    rows = ["u1\tN1\ta\t5", 'u2\tN2\t"Quote begins\t1', "u3\tN3\tb\t2", "u4\tN4\tc\t3", 'u5\tN5\tit ends" here\t4']
    (tmp_path / "a.tsv").write_text(TITLES.format("\n".join(rows) + "\n"))
    ratings = odp.load(tmp_path / "a.tsv", low=1, high=5)
    expected = {("u1", "N1", 5), ("u2", "N2", 1), ("u3", "N3", 2), ("u4", "N4", 3), ("u5", "N5", 4), ("u9", "N9", 1)}
    assert rows_of(ratings) == expected
    assert any("quotes are read as text" in note for note in ratings.notes)


cells = st.one_of(
    st.sampled_from(["a", "b", "1", ""]),
    st.text('a"b, \t', max_size=4),
    st.text("a,;\t\n", max_size=4).map(lambda text: f'"{text}"'),
    st.just('"a""b"'),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    notes=st.lists(cells, min_size=1, max_size=5), mark=st.sampled_from(",;\t"), blank=st.integers(0, 5),
    end=st.sampled_from(["\n", "\r\n", "\r"]), chunk=st.sampled_from([7, 16, 2**24]),
)  # fmt: skip
def test_what_is_read_of_any_quotes_is_what_the_csv_module_reads_and_where(
    notes: list[str], mark: str, end: str, chunk: int, blank: int, tmp_path: Path
) -> None:
    lines = [mark.join(["user", "item", "note"]), *(mark.join([f"u{n}", "i", note]) for n, note in enumerate(notes))]
    lines.insert(blank, "")
    text = end.join(lines)
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odp.datasets.text_source._CHUNK", chunk)
        try:
            raw = read_text(tmp_path / "a.csv", Columns())
        except DataError as error:
            refusal = str(error)
        else:
            refusal = ""
    if refusal:
        assert re.search(r"a\.csv:\d+: (lines \d+ to \d+ are one row if|a field begins with a quote)", refusal)
        return
    found = list(zip(raw.parts["user"].to_pylist(), raw.positions().tolist(), strict=True))
    as_text = any("quotes are read as text" in note for note in raw.notes)
    assert mark == "\t" or not as_text
    quoting = csv.QUOTE_NONE if as_text else csv.QUOTE_MINIMAL
    expected, broken, last = [], [], 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, quoting=quoting, strict=not as_text)
    for row in reader:
        if len(row) == 3:
            expected.append((row[0], last + 1))
        elif row:
            broken.append(last + 1)
        last = reader.line_num
    assert found == expected[1:]
    assert [row.line for row in raw.broken] == broken


@pytest.mark.parametrize("mark", ["\t", ",", ";"])
def test_lines_that_would_be_rows_by_themselves_are_not_joined_in_silence(tmp_path: Path, mark: str) -> None:
    text = 'user\titem\ttitle\trating\nu1\tN1\ta\t5\nu2\tN2\t"Heroes\t1\nu3\tN3\tLodger"\t2\n'
    (tmp_path / "a.csv").write_text(text.replace("\t", mark))
    with pytest.raises(DataError, match=r"a\.csv:3: lines 3 to 4 are one row if .* and 2 rows if it is text"):
        odp.load(tmp_path / "a.csv", low=1, high=5)


def test_a_field_over_several_lines_is_one_row_and_is_told_and_lines_are_lines(tmp_path: Path) -> None:
    rows = ['u1,i1,"good,\nbad,\n\nand ugly",4', "", 'u2,i2,"a ""fine"" film",5', 'u3,i3,"7"" single",9', ""]
    text = "\n".join(["user,item,review,rating", *rows])
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=r"1 of 3 rows are bad: 1 x value outside \[1, 5\] .*: line 8"):
        odp.load(tmp_path / "a.csv", low=1, high=5)
    ratings = odp.load(tmp_path / "a.csv", low=1, high=5, on_error="skip")
    assert rows_of(ratings) == {("u1", "i1", 4), ("u2", "i2", 5)}
    assert "3 lines go on in the next one, inside of quotes (the first is line 2)" in ratings.notes


def test_quotes_inside_of_fields_have_no_meaning(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('user,item,title,rating\nu1,i1,7" single,4\nu2,i2,"a, b",5\n"u3",i3,"c",6" disc"\n')
    with pytest.raises(DataError, match=r"no number as a value .*: line 4"):
        odp.load(tmp_path / "a.csv", low=1, high=5)
    ratings = odp.load(tmp_path / "a.csv", low=1, high=5, on_error="skip")
    assert rows_of(ratings) == {("u1", "i1", 4), ("u2", "i2", 5)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('user,item,title,rating\nu1,i1,a,4\nu2,i2,"Heroes,5\nu3,i3,b,4\n', r"a\.csv:3: a field begins with a quote"),
        ('user,item,title,rating\nu1,i1,"a" b,4\n', r"a\.csv:2: a field begins with a quote"),
        ("user,item\nA\u0301,1\n\u00c1,1\n", r"'user' writes one id in two ways, in line 2 and in line 3"),
        ("user,item\n1,12\n2,13\n3,12.0\n", r"'item' writes one id in two ways, in line 2 and in line 4"),
        ("user,item\n1,12\n2, 12\n", r"'item' writes one id in two ways, in line 2 and in line 3"),
        ("user;item;rating\n1;2;4\n1;3;4,5\n", r"a decimal comma, write a point \(column 'rating'\): line 3"),
        ("user,item,rating\n1,2,4\n1,3,4,5\n", r"4 fields where the header has 3: line 3"),
    ],
)  # fmt: skip
def test_what_has_two_meanings_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        odp.load(tmp_path / "a.csv")


def test_text_that_is_no_utf_8_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    """In a column that nobody reads, and far behind the header, too."""
    many = b"user,item,title\n" + b"1,2,abc\n" * 20_000
    (tmp_path / "a.csv").write_bytes(many + b"1,3,caf\xe9\n")
    with pytest.raises(DataError, match=r"a\.csv:20002: not UTF-8"):
        odp.load(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes("user,item\n1,2\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="zero bytes"):
        odp.load(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF16_LE + "user,item\n1,2\n".encode("utf-16-le")[:-1])
    with pytest.raises(DataError, match=r"a\.csv: not UTF-16"):
        odp.load(tmp_path / "a.csv")
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / "a.csv").write_bytes('user,item,rating\n"Zoë",i,4\nb,i,x\n'.encode(encoding))
        with pytest.raises(DataError, match=r"no number as a value .*: line 3"):
            odp.load(tmp_path / "a.csv")
        assert rows_of(odp.load(tmp_path / "a.csv", on_error="skip", low=1, high=5)) == {("Zoë", "i", 4)}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_kind_of_line_end_ends_lines(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_bytes(end.join(["user,item,rating", "1,2,4", "", "1,3,x", ""]).encode())
    with pytest.raises(DataError, match=r"1 of 2 rows .*: line 4"):
        odp.load(tmp_path / "a.csv", low=1, high=5)


def test_of_repeated_pairs_the_newest_counts_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,rating,time\n1,10,5,300\n1,20,2,1\n1,10,1,100\n1,10,3,200\n")

    def value(**options: Any) -> float:
        rows = rows_of(odp.load(tmp_path / "a.csv", low=1, high=10, **options))
        return next(value for _, item, value in rows if item == "10")

    found = {repeats: value(repeats=repeats) for repeats in ("newest", "oldest", "mean", "sum")}
    assert found == {"newest": 5, "oldest": 1, "mean": 3, "sum": 9}
    assert value() == 5
    assert odp.load(tmp_path / "a.csv", low=1, high=5).duplicates == 2
    with pytest.raises(DataError, match=r"2 rows name a user and an item again: line 4, 5; .*--repeats"):
        value(repeats="refuse")
    with pytest.raises(ConfigurationError, match="repeats='latest' to be one of newest"):
        value(repeats="latest")
    (tmp_path / "a.csv").write_text("user,item,rating\n1,10,5\n1,10,1\n")
    assert value() == 1


def test_json_ids_are_what_the_file_says(tmp_path: Path) -> None:
    def users(*values: str) -> list[str]:
        (tmp_path / "a.jsonl").write_text("".join(f'{{"user": {value}, "item": 1}}\n' for value in values))
        ids = odp.load(tmp_path / "a.jsonl").user_ids
        assert ids is not None
        return [str(one) for one in ids.tolist()]

    assert users(str(2**63 + 5), "7") == ["7", str(2**63 + 5)]
    assert users('"2024-01-02"', '"2024-01-03"') == ["2024-01-02", "2024-01-03"]
    assert users("7", "12.0", '"guest"', "1e3") == ["7", "12", "1000", "guest"]
    with pytest.raises(DataError, match=r"'user' writes one id in two ways, in line 1 and in line 2"):
        users("12", '"12.0"')
    for wrong, why in (("1.5", "float"), ("true", "bool"), ("1e300", "not exact")):
        with pytest.raises(DataError, match=rf"'user' of ids: line 2: .*{why}"):
            users("7", wrong)
    (tmp_path / "a.jsonl").write_bytes(b'{"user": "caf\xe9", "item": 1}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: not UTF-8"):
        odp.load(tmp_path / "a.jsonl")


def test_each_type_of_number_in_a_frame_is_its_digits() -> None:
    for column in (
        pa.array([7, 12], pa.int8()), pa.array([7, 12], pa.uint64()), pa.array([7.0, 12.0]), pa.array(["7", "12"]),
        pa.array([Decimal("7.00"), Decimal("12.00")]), pa.array(["7", "12"]).dictionary_encode(),
        pa.array([7, 12]).dictionary_encode(), pa.array(["7", "12"], pa.string_view()),
    ):  # fmt: skip
        assert odp.load(pa.table({"user": column, "item": [1, 1]})).user_keys.tolist() == [7, 12]
    mixed = pd.DataFrame({"user": pd.Series([7, "guest", 12.0, None], dtype=object), "item": [1, 1, 1, 1]})
    ratings = odp.load(mixed, on_error="skip")
    assert ratings.user_ids is not None
    assert ratings.user_ids.tolist() == ["7", "12", "guest"]
    single = pa.array(np.array([7, 12], dtype=np.float16))
    assert odp.load(pa.table({"user": single, "item": [1, 1]})).user_keys.tolist() == [7, 12]
    ends = pa.py_buffer(np.array([0, 1], dtype=np.int32).tobytes())
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xe9")])
    big = pa.table({"user": pa.array([7, 2**63 + 5], pa.uint64()), "item": [1, 1]})
    assert odp.load(big).user_keys[0] == 7
    for wrong, message in (
        (pa.array([1.5]), "fractions"), (pa.array([2.0**60]), "not exact"), (pa.array([Decimal("1.5")]), "fractions"),
        (pa.array([True]), "bool"), (pa.array([1], pa.timestamp("s")), "timestamp"),
        (pa.array([2.0**24], pa.float32()), r"floats of 2\*\*24 or more"), (invalid, "not UTF-8"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            odp.load(pa.table({"user": wrong, "item": [1]}))


def test_an_id_is_one_text_and_one_key_in_whatever_array_it_comes() -> None:
    texts = [id_text(value) for value in (12, 12.0, np.int8(12), np.float32(12), np.uint64(12), Decimal("12.0"), "12")]
    assert texts == ["12"] * 7
    arrays = (
        np.array([3, 12]),
        np.array([3.0, 12.0]),
        ["3", "12"],
        np.array([3, "12"], dtype=object),
        np.uint8([3, 12]),
    )
    for array in arrays:
        ids = checked_ids(array, what="user_ids", where="here")
        assert id_keys(ids, 2).tolist() == [3, 12]
    mixed = id_keys(checked_ids(["3", "guest"], what="user_ids", where="here"), 2)
    assert mixed[0] == 3
    assert id_keys(checked_ids(["007", "7"], what="user_ids", where="here"), 2)[0] != 7
    for wrong in (True, None, 1.5, float("nan"), b"7", np.float32(2**24), 2.0**53):
        with pytest.raises(DataError):
            id_text(wrong)

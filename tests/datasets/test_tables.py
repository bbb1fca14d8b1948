"""Own data: tables of any ids and scales become the same ratings whatever their form, and bad rows are named."""

from __future__ import annotations

import gzip
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.datasets.columns import Columns
from odp.datasets.tables import TableReading, read_table
from odp.errors import ConfigurationError, DataError

ROWS = {
    "user_id": ["zoë", "adam", "zoë", "李", "adam", "zoë"],
    "movie": ["π", "b", "b", "π", "π", "π"],
    "stars": [1.0, 2.5, 5.0, 4.0, 3.0, 2.0],
    "ts": [30, 10, 10, 5, 20, 40],
}
NAMED: dict[str, Any] = {"item": "movie", "value": "stars"}


def write(path: Path, form: str) -> Path:
    table = pa.table(ROWS)
    match form:
        case "csv" | "csv.gz" | "tsv":
            mark = "\t" if form == "tsv" else ","
            text = pd.DataFrame(ROWS).to_csv(index=False, sep=mark).encode()
            path.write_bytes(gzip.compress(text) if form == "csv.gz" else text)
        case "parquet":
            pq.write_table(table, path)
        case "jsonl":
            path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in table.to_pylist()), "utf-8")
    return path


def interactions(ratings: odp.data.Ratings) -> list[tuple[object, object, float, int]]:
    assert ratings.user_ids is not None
    assert ratings.item_ids is not None
    assert ratings.order is not None
    users, items = ratings.user_ids[ratings.users()], ratings.item_ids[ratings.items]
    return list(zip(users.tolist(), items.tolist(), ratings.values.tolist(), ratings.order.tolist(), strict=True))


EXPECTED = [
    ("adam", "b", 2.5, 0),
    ("adam", "π", 3.0, 1),
    ("zoë", "b", 5.0, 0),
    ("zoë", "π", 2.0, 1),
    ("李", "π", 4.0, 0),
]


@pytest.mark.parametrize("form", ["csv", "csv.gz", "tsv", "parquet", "jsonl"])
def test_each_form_of_file_gives_the_same_ratings(tmp_path: Path, form: str) -> None:
    ratings = odp.load(write(tmp_path / f"club.{form}", form), **NAMED)
    assert interactions(ratings) == EXPECTED
    assert (ratings.name, ratings.low, ratings.high, ratings.duplicates) == ("club", 1.0, 5.0, 1)
    assert "guessed" in ratings.notes[0]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, lambda rows: pa.RecordBatch.from_pydict(rows)])
def test_each_data_frame_gives_the_same_ratings(make: Any) -> None:
    ratings = odp.data.Ratings.from_dataframe(make(ROWS), **NAMED, low=1, high=5)
    assert interactions(ratings) == EXPECTED
    assert ratings.notes == (
        "1 rows name a user and an item again: the newest row of each pair counts, by time or else by row (--repeats)",
    )
    assert interactions(odp.load(make(ROWS), **NAMED)) == EXPECTED


def test_an_odd_index_and_categories_of_pandas_change_nothing() -> None:
    frame = pd.DataFrame(ROWS, index=[7] * 6)
    frame["user_id"] = pd.Categorical(frame["user_id"], categories=["zoë", "unused", "李", "adam"])
    frame["movie"] = frame["movie"].astype("category")
    assert interactions(odp.load(frame, **NAMED)) == EXPECTED


def test_an_index_is_no_column_and_the_error_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"reset_index"):
        odp.load(pd.DataFrame(ROWS).set_index("user_id"), user="user_id", item="movie")


def test_doubled_columns_are_refused() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
    with pytest.raises(DataError, match=r"item.*or.*item|two columns"):
        odp.load(frame)


def test_whole_numbers_of_a_csv_are_numbers_and_others_text(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("user,item\n10,007\n9,7\n10,7\n")
    ratings = odp.load(file)
    assert ratings.user_ids is not None
    assert ratings.user_ids.tolist() == [9, 10]
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == ["7", "007"]
    assert ratings.implicit
    assert ratings.item_name(1) == "007"


def test_floats_that_pandas_made_of_whole_numbers_are_ids() -> None:
    frame = pd.DataFrame({"user": [3.0, 1.0, None], "item": [1, 2, 3]})
    with pytest.raises(DataError, match=r"1 of 3 rows are bad: 1 x no user \(column 'user'\): row 2"):
        odp.load(frame)
    assert odp.load(frame, on_error="skip").user_keys.tolist() == [1, 3]
    with pytest.raises(DataError, match="fractions"):
        odp.load(pd.DataFrame({"user": [1.5], "item": [1]}))


BAD = """user,item,rating,time
a,x,5,2024-01-02

b,x,nine,2024-01-02
c,x,3
,x,4,2024-01-02
d,,4,2024-01-02
e,x,,2024-01-02
f,x,6,2024-01-02
g,x,nan,2024-01-02
h,x,2,2024-13-45
i,x,1,2024-01-03T10:00:00
"""


def test_bad_rows_are_counted_and_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(BAD)
    with pytest.raises(DataError) as refused:
        odp.load(file, low=1, high=5)
    for part in (
        "8 of 10 rows are bad",
        "1 x 3 fields where the header has 4: line 5",
        "1 x no user (column 'user'): line 6",
        "1 x no item (column 'item'): line 7",
        "3 x no number as a value (column 'rating'): line 4, 8, 10",
        "1 x no time (column 'time'): line 11",
        "1 x value outside [1, 5] (column 'rating'): line 9",
        "--on-error skip",
    ):
        assert part in str(refused.value)
    assert "nine" not in str(refused.value)
    ratings = odp.load(file, low=1, high=5, on_error="skip")
    assert ratings.user_ids is not None
    assert ratings.user_ids.tolist() == ["a", "i"]
    assert any("8 bad rows were left out" in note for note in ratings.notes)


def test_missing_values_alone_keep_the_lines_of_a_clean_file(tmp_path: Path) -> None:
    file = tmp_path / "gaps.csv"
    file.write_bytes(b"user;item;rating\r\n\r\n1;2;3\r\n1;;3\r\n")
    with pytest.raises(DataError, match=r"no item .*: line 4"):
        odp.load(file)


def test_line_breaks_inside_quotes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "quoted.csv"
    file.write_text('user,item,rating\n"a\nb",x,4\nc,"y,z",5\n')
    ratings = odp.load(file)
    assert ratings.user_ids is not None
    assert ratings.user_ids.tolist() == ["a\nb", "c"]
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == ["x", "y,z"]


def test_bad_json_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"user": 1, "item": "a"}\n\n{"user": 2\n[1]\n{"user": 3, "item": "b"}\n')
    with pytest.raises(DataError, match=r"2 of 4 rows are bad: 1 x no JSON: line 3; 1 x no JSON object: line 4"):
        odp.load(file)
    assert odp.load(file, on_error="skip").n_users == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n\n", "no rows"),
        (b"user,item\n", "no usable rows"),
        (b"1,2,3\n4,5,6\n", "header line"),
        (b"just text\nmore\n", "one column only"),
        (b"user,film\n1,2\n", "no column of items"),
        (b"user,item\n\xe9,1\n", r"a\.csv:2: not UTF-8"),
        (b"user,item\n1,2\n3,\xff\xff\n", r"a\.csv:3: not UTF-8"),
        (b"\x89PNG\x00\x00\x00\x01", "not a text table|UTF-8"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        odp.load(file)
    assert "\n" not in str(refused.value)


def test_files_of_another_form_than_their_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.jsonl", "a.csv.gz"):
        (tmp_path / name).write_bytes(b"user,item\n1,2\n")
        with pytest.raises(DataError, match=name):
            odp.load(tmp_path / name)


def test_nested_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [[1], [2]], "item": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="'user' for the user is nested"):
        odp.load(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"user": {"id": 1}, "item": 2}\n')
    with pytest.raises(DataError, match="'user' for the user is nested"):
        odp.load(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="of ids is of type list"):
        odp.load(pa.table({"user": [[1], [2]], "item": [1, 2]}))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1, 5], 1, 5),
        ([0.5, 4], 0.5, 5),
        ([0, 1], 0, 1),
        ([1, 9], 1, 10),
        ([0, 7], 0, 10),
        ([-3, 3], -10, 10),
        ([0, 88.5], 0, 100),
    ],
)
def test_the_scale_is_guessed_among_usual_ones(values: list[float], low: float, high: float) -> None:
    ratings = odp.load(pa.table({"user": [1, 2], "item": [1, 1], "rating": pa.array(values, pa.float64())}))
    assert (ratings.low, ratings.high, ratings.implicit) == (low, high, False)


def test_counts_and_single_values_are_guessed_to_say_seen() -> None:
    counts = pa.table({"user": [1, 2, 3], "item": [1, 1, 2], "rating": [0, 3, 512]})
    ratings = odp.load(counts)
    assert ratings.implicit
    assert ratings.n_ratings == 2
    assert "1 rows have a value of 0 or less" in " ".join(ratings.notes)
    assert odp.load(counts, low=0, high=1000).n_ratings == 3
    with pytest.raises(DataError, match="fit no usual scale"):
        odp.load(counts, implicit=False)
    assert odp.load(pa.table({"user": [1, 2], "item": [1, 1], "rating": [1, 1]})).implicit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1}, "both low and high"),
        ({"low": 5, "high": 1}, "low=5"),
        ({"low": 1, "high": 5, "implicit": True}, "no low and high"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"user": "item", "item": "item"}, "different columns"),
        ({"value": None, "low": 1, "high": 5}, "need a column of values"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        odp.load(pa.table({"user": [1], "item": [1]}), **options)


def test_a_missing_column_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no column 'user_ids' for the user.*user_id"):
        odp.load(pa.table({"user_id": [1], "item": [1]}), user="user_ids")


def test_without_arrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"pip install 'odp-platform\[data\]'"):
        odp.load(tmp_path / "a.csv")


def test_text_ids_survive_files_splits_and_choices(tmp_path: Path) -> None:
    ratings = odp.load(pa.table(ROWS), **NAMED)
    ratings.save(tmp_path / "a.npz")
    ratings.save_folder(tmp_path / "folder")
    for again in (odp.data.Ratings.load(tmp_path / "a.npz"), odp.data.Ratings.open_folder(tmp_path / "folder")):
        assert interactions(again) == EXPECTED
        assert again.user_keys.tolist() == ratings.user_keys.tolist()
    one = ratings.select_users([2])
    assert one.user_ids is not None
    assert one.user_ids.tolist() == ["李"]
    assert one.user_keys.tolist() == [ratings.user_keys[2]]
    parts = odp.data.random_split(ratings, seed=3)
    assert parts.train.n_ratings + parts.validation.n_ratings + parts.test.n_ratings == 5


def test_whoever_names_columns_means_a_table(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.5,4\n")
    assert odp.load(tmp_path).name == tmp_path.name
    assert odp.load(tmp_path / "ratings.csv", item="movieId").name == "ratings"
    with pytest.raises(ConfigurationError, match="columns are known: leave out item"):
        odp.load(tmp_path, item="movieId")
    (tmp_path / "ratings.csv").write_text("customer,product,rating\n1,2,3.5\n")
    assert odp.load(tmp_path, item="product").n_users == 1


ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(ids, ids, st.integers(1, 5), st.integers(-(2**40), 2**40)), min_size=1, max_size=30))
def test_any_text_is_an_id_and_is_given_back(rows: list[tuple[str, str, int, int]]) -> None:
    users, items, values, times = map(list, zip(*rows, strict=True))
    table = pa.table({"user": users, "item": items, "rating": values, "time": times})
    for column in (users, items):
        if len({unicodedata.normalize("NFC", one.strip()) for one in column}) < len(set(column)):
            with pytest.raises(DataError, match="writes one id in two ways, in row"):
                read_table(table, Columns(low=1, high=5))
            return
    found = odp.data.Ratings.from_triples(**read_table(table, Columns(low=1, high=5)).triples)
    in_time = sorted(enumerate(rows), key=lambda one: (one[1][3], one[0]))
    latest = {(user, item): (value, time, row) for row, (user, item, value, time) in in_time}
    assert {(str(user), str(item)): value for user, item, value, _ in interactions(found)} == {
        pair: value for pair, (value, _, _) in latest.items()
    }
    for user in set(users):
        seen = sorted((time, row, item) for (who, item), (_, time, row) in latest.items() if who == user)
        ranked = sorted((order, str(item)) for who, item, _, order in interactions(found) if str(who) == user)
        assert [item for _, item in ranked] == [item for _, _, item in seen]


def test_what_was_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(BAD)
    reading = read_table(tmp_path / "bad.csv", Columns(low=1, high=5, on_error="skip"))
    assert isinstance(reading, TableReading)
    assert (reading.rows, reading.bad.total, reading.bad.counted) == (10, 8, "line")
    assert reading.values == (1.0, 6.0)
    assert reading.columns.value == "rating"
    assert not reading.scale.guessed


def test_many_rows_are_ordered_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.Generator(np.random.PCG64(5))
    rows = 4000
    columns = [chance.integers(0, high, rows) for high in (50, 60)]
    times = chance.integers(0, 300, rows)
    values = chance.integers(1, 6, rows)

    def made() -> odp.data.Ratings:
        return odp.data.Ratings.from_triples("many", *columns, values, low=1, high=5, times=times)

    few = made()
    monkeypatch.setattr("odp.datasets.repeats._MANY", 0)
    many = made()
    for field in ("offsets", "items", "values", "order"):
        np.testing.assert_array_equal(getattr(few, field), getattr(many, field))
    assert few.duplicates == many.duplicates > 0


def test_a_table_without_a_usable_row_is_refused_with_the_reasons_and_lines_of_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("user,item,rating\na,x,many\n,x,3\nb,,4\na,x,few\na,x\n")
    message = (
        r"bad.csv: holds no usable rows; expected at least one user with one item: 1 x 2 fields where .*: line 6; "
        r"1 x no user \(column 'user'\): line 3; 1 x no item \(column 'item'\): line 4; "
        r"2 x no number as a value \(column 'rating'\): line 2, 5$"
    )
    with pytest.raises(DataError, match=message):
        odp.load(file, on_error="skip")
    file.write_text("user,item,plays\na,x,0\nb,,4\nb,x,-1\n")
    with pytest.raises(DataError, match=r"one item: 1 x no item .*: line 3; 2 rows have a value of 0 or less"):
        odp.load(file, value="plays", implicit=True, on_error="skip")


@pytest.mark.parametrize(
    "doubled",
    ['"item": "x", "item": "y"', '"item": "x", "it\\u0065m": "x"', '"item": "x", "n": {"item": 1, "item": 2}'],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_key_twice_in_one_json_object_is_a_bad_row(tmp_path: Path, doubled: str, first: bool) -> None:
    file = tmp_path / "seen.jsonl"
    lines = ['{"user": "b", "item": "z"}', f'{{"user": "a", {doubled}}}']
    file.write_text("\n".join(lines[::-1] if first else lines) + "\n")
    line = 1 if first else 2
    with pytest.raises(DataError, match=rf"1 of 2 rows are bad: 1 x the key 'item' twice in one object: line {line}\."):
        odp.load(file)
    ratings = odp.load(file, on_error="skip")
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == ["z"]
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text('{"user": 1, "x": 1, "label": 0}\n{"user": 1, "x": 2, "label": 0, "label": 1}\n')
    with pytest.raises(DataError, match="'label' twice in one object: line 2"):
        odp.data.load_examples(labelled)

"""Tables as people have them: the right value, or one refusal that names the place; never a wrong number in silence."""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
from datetime import UTC, datetime, time as time_of_day
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import odp
from odp.datasets.example_files import examples_of_name
from odp.datasets.examples import label_column
from odp.datasets.splitting import TimeCut
from odp.errors import DataError, OdpError
from odp.models.examples import ExamplesTerms
from odp.v1 import common_pb2

SCALE: dict[str, Any] = {"low": 1, "high": 5}
HEADER = "user,item,rating,time\n"


def written(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(ratings: odp.data.Ratings) -> list[tuple[str, str, float]]:
    assert ratings.user_ids is not None
    assert ratings.item_ids is not None
    users, items = ratings.user_ids[ratings.users()].tolist(), ratings.item_ids[ratings.items].tolist()
    return [(str(user), str(item), value) for user, item, value in zip(users, items, ratings.values, strict=True)]


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [5, 3]} | columns)


# Numbers of 64 bits without a sign became negative.


def test_times_beyond_63_bits_are_refused_and_not_put_before_all_others() -> None:
    times = np.array([2**63 + 5, 3], np.uint64)
    with pytest.raises(DataError, match=r"1 of 2 rows are bad: 1 x no time \(column 'time'\): row 0"):
        odp.load(frame(user=[1, 1], item=[1, 1], time=times), **SCALE)
    with pytest.raises(DataError, match=r"Expected times to be below 2\*\*63"):
        odp.data.Ratings.from_triples("t", [0, 0], [0, 1], [1.0, 2.0], times=times, **SCALE)
    with pytest.raises(DataError, match=r"1 of 2 users .* are out of range"):
        odp.data.Ratings.from_triples("t", times, [0, 1], [1.0, 2.0], **SCALE)


@pytest.mark.parametrize("column", ["user", "item", "order", "timestamp"])
def test_arrays_of_movielens_beyond_63_bits_are_refused(column: str, tmp_path: Path) -> None:
    arrays = {name: np.array([1, 2]) for name in ("user", "item", "order", "timestamp")}
    arrays |= {"rating_halfstars": np.array([10, 7]), column: np.array([2**63 + 1, 1], np.uint64)}
    np.savez(tmp_path / "ratings.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"ratings\.npz: expected {column} to be whole numbers below 2\*\*63"):
        odp.load(tmp_path)


@pytest.mark.parametrize("column", [np.array([0.5, 1.0]), np.array([2**63 + 1, 1], np.uint64), np.array(["1", "2"])])
def test_ids_of_gowalla_are_whole_numbers(column: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "interactions.npz", user=column, item=np.array([0, 1]), split=np.array([0, 2]))
    with pytest.raises(DataError, match="expected user to be whole numbers below"):
        odp.load(tmp_path / "interactions.npz")


def test_stars_that_are_text_are_refused(tmp_path: Path) -> None:
    ones = np.ones(2, np.int64)
    np.savez(tmp_path / "ratings.npz", user=ones, item=[1, 2], order=ones, rating_halfstars=["10", "7"])
    with pytest.raises(DataError, match="expected rating_halfstars to be numbers"):
        odp.load(tmp_path)


# The file that was named is the file that is read.


def test_a_file_of_movielens_that_is_named_is_read_whatever_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "1::10::5::100\n", "ratings.dat")
    named = written(tmp_path, "7\t70\t2\t100\n", "u.data")
    latest = written(tmp_path, "userId,movieId,rating,timestamp\n8,80,0.5,100\n", "ratings.csv")
    arrays = {"user": [9], "item": [90], "order": [0], "rating_halfstars": [6]}
    np.savez(tmp_path / "mine.npz", **{name: np.array(numbers) for name, numbers in arrays.items()})  # type: ignore[arg-type]
    assert rows_of(odp.load(named)) == [("7", "70", 2.0)]
    assert rows_of(odp.load(latest)) == [("8", "80", 0.5)]
    assert rows_of(odp.load(tmp_path / "mine.npz")) == [("9", "90", 3.0)]
    assert rows_of(odp.load(tmp_path)) == [("1", "10", 5.0)]


@pytest.mark.parametrize("form", ["plain", "mark", "utf16", "quoted", "returns"])
def test_movielens_is_recognised_in_every_encoding_of_its_header(form: str, tmp_path: Path) -> None:
    header = "userId,movieId,rating,timestamp\n"
    text = {"quoted": '"userId","movieId","rating","timestamp"\n'}.get(form, header) + "1,10,4,100\n1,20,0.5,100\n"
    coded = {"mark": codecs.BOM_UTF8 + text.encode(), "utf16": text.encode("utf-16")}.get(form, text.encode())
    written(tmp_path, coded.replace(b"\n", b"\r") if form == "returns" else coded, "ratings.csv")
    written(tmp_path, 'movieId,title,genres\r\n10,"A\nB",War\r\n20,C,War\r\n', "movies.csv")
    ratings = odp.load(tmp_path)
    assert (ratings.low, ratings.high, ratings.implicit) == (0.5, 5.0, False)
    assert ratings.titles == ("A\nB", "C")


def test_what_is_no_file_is_one_refusal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in ("/dev/null", tmp_path / "pipe.csv"):
        with pytest.raises(DataError, match="no file, and data are read several times"):
            odp.load(path, **SCALE)
    for options in ({}, SCALE):
        with pytest.raises(DataError, match=r"^'a+' cannot be read \(File name too long\)"):
            odp.load("a" * 5000 + ".csv", **options)
    with pytest.raises(DataError, match=r"^'' is neither a known data set nor an existing path"):
        odp.load("")  # an unset variable of a shell, and not the folder that it runs in
    for name in ("a.csv", "b.csv"):
        written(tmp_path, HEADER + "1,2,3,4\n", name)
    with pytest.raises(DataError, match=r"holds 2 tables, such as a\.csv and b\.csv; give the path of one"):
        odp.load(tmp_path)


# JSON.


def test_several_objects_in_a_line_are_no_row(tmp_path: Path) -> None:
    one = json.dumps({"user": 1, "item": 2, "rating": 3})
    path = written(tmp_path, f"{one}\n{one.replace('2', '3')} {one.replace('2', '9')}\n", "table.jsonl")
    with pytest.raises(DataError, match="1 of 2 rows are bad: 1 x no JSON: line 2"):
        odp.load(path, **SCALE)
    path = written(tmp_path, f"{one}\n{one.replace('2', '3')}{one.replace('3', '9')}\n", "table.jsonl")
    with pytest.raises(DataError, match="no JSON: line 2"):
        odp.load(path, **SCALE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"user":"\\ud800","item":1,"rating":5}', r"line 1: half a character"),
        ('{"user":1,"item":1,"x":' + "[" * 10**5 + "]" * 10**5 + "}", "1 x no JSON: line 1"),
    ],
    ids=["half a character", "deep"],
)
def test_json_that_python_cannot_hold_is_refused_by_line(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, line + '\n{"user":"b","item":1,"rating":5}\n', "table.jsonl")
    with pytest.raises(DataError, match=message):
        odp.load(path, **SCALE)


# Frames.


@pytest.mark.parametrize("others", [["a "], ["12.0", "12"], ["x" * 2000], ["\0"]])
def test_a_category_of_no_row_is_not_looked_at(others: list[str]) -> None:
    users = pd.Categorical(["a", "b"], categories=["a", "b", *others])
    assert rows_of(odp.load(frame(user=users), **SCALE)) == [("a", "1", 5.0), ("b", "2", 3.0)]
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["b", "a", *others]))
    table = pa.table({"user": coded, "item": [1, 2], "rating": [5, 3]})
    assert rows_of(odp.load(table, **SCALE)) == [("a", "1", 5.0), ("b", "2", 3.0)]


def test_a_stream_of_arrow_is_read_whole() -> None:
    table = pa.table({"user": ["a", "b"], "item": [1, 2], "rating": [5, 3]})
    assert rows_of(odp.load(table.to_reader(), **SCALE)) == [("a", "1", 5.0), ("b", "2", 3.0)]


def test_ids_that_are_missing_are_missing_in_every_kind_of_column() -> None:
    for missing in (None, float("nan"), pd.NA, pd.NaT):
        ratings = odp.load(frame(user=np.array(["a", missing], object)), on_error="skip", **SCALE)
        assert rows_of(ratings) == [("a", "1", 5.0)]
        mixed = frame(user=np.array([7, missing], object), item=np.array([1, "b"], object))
        assert rows_of(odp.load(mixed, on_error="skip", **SCALE)) == [("7", "1", 5.0)]
    with pytest.raises(DataError, match="2 of 2 rows are bad: 2 x no user"):
        odp.load(frame(user=[float("nan")] * 2), **SCALE)
    with pytest.raises(DataError, match=r"row 1: expected whole numbers or text \(got a ndarray\)"):
        odp.load(frame(user=pd.Series(["a", np.zeros(2)], dtype=object)), **SCALE)


# Times.


@pytest.mark.parametrize("bad", [False, True])
def test_times_are_the_same_whether_or_not_another_row_is_bad(bad: bool, tmp_path: Path) -> None:
    times = ("2024-01-02T00:00:00.000000002+05", "2024-01-02T00:00:00.000000001+05")
    rows = "".join(f"{user},1,3,{when}\n" for user, when in enumerate(times)) + "9,1,x,2024-01-01T00:00:00+05\n" * bad
    ratings = odp.load(written(tmp_path, HEADER + rows), on_error="skip", **SCALE)
    assert ratings.time_unit == "ns"
    assert ratings.times is not None
    assert ratings.times.tolist() == [1704135600000000002, 1704135600000000001]


def test_times_of_the_day_and_empty_columns_of_times_are_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "1,1,5,12:00\n1,1,3,11:00\n")
    day = [time_of_day(12), time_of_day(11)]
    polars = pl.DataFrame({"user": [1, 1], "item": [1, 1], "rating": [5, 3], "time": day})
    for table in (path, frame(time=day), polars):
        with pytest.raises(DataError, match="column 'time' holds times of the day without dates"):
            odp.load(table, **SCALE)
    for table in (written(tmp_path, HEADER + "1,1,5,\n"), frame(time=[None, None])):
        with pytest.raises(DataError, match=r"rows are bad: . x no time"):
            odp.load(table, **SCALE)


def test_a_number_does_not_cut_dates() -> None:
    dates = [datetime(2001, 9, day, tzinfo=UTC) for day in (1, 20)]
    ratings = odp.load(frame(time=dates), **SCALE)
    for cut in ("time:2001", "time:20010910", "time:1000000000"):
        with pytest.raises(DataError, match="are dates: cut them at one, such as time:2001-03-01"):
            TimeCut.parse(cut).split(ratings, seed=1)
    seconds = odp.load(frame(time=[999_999_000, 1_000_000_001]), **SCALE)
    for known in (seconds, dataclasses.replace(seconds, time_unit="s")):
        assert TimeCut.parse("time:1000000000").split(known, seed=1).test.n_ratings == 1


# Text tables.


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"1,234"', "thousands are separated"),
        ('"1.234,5"', "thousands are separated"),
        ("1.234.567", "thousands are separated"),
        ('"4,5"', "a decimal comma"),
    ],
)
def test_a_number_with_marks_is_named_as_what_it_is(value: str, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"user,item,plays\n1,1,{value}\n1,2,3\n")
    with pytest.raises(DataError, match=rf"1 x {reason}.*: line 2"):
        odp.load(path, value="plays", implicit=True)


def test_the_delimiter_is_the_one_that_makes_the_columns(tmp_path: Path) -> None:
    for mark in (";", "\t", "|"):
        for last in ("a,b,c,d,e,f", '"a,b,c,d,e,f"'):
            path = written(tmp_path, f"user;item;rating;{last}\n7;b;5;x\n".replace(";", mark))
            assert rows_of(odp.load(path, **SCALE)) == [("7", "b", 5.0)]


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_header_of_a_hundred_thousand_columns_is_read_whole(place: str, tmp_path: Path) -> None:
    others = ",".join(f"c{number}" for number in range(10**5)), ",".join(["1"] * 10**5)
    known = "user,item,rating", "7,b,5"
    pairs = zip(known, others, strict=True) if place == "first" else zip(others, known, strict=True)
    path = written(tmp_path, "".join(",".join(pair) + "\n" for pair in pairs))
    assert rows_of(odp.load(path, **SCALE)) == [("7", "b", 5.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "holds no usable rows"),
        (HEADER.strip(), "holds no rows; expected rows after the header line"),
        ((HEADER + "1,2,3,4\n").encode("utf-32"), "UTF-32 text; save the file as UTF-8"),
        ((HEADER + "1,2,3,4\n").encode("utf-16-le"), "or in UTF-16 with its mark"),
        (HEADER + "12,b,5,1\n12.,c,4,1\n", "writes one id in two ways, in line 2 and in line 3"),
    ],
)
def test_other_files_are_refused_for_what_is_wrong(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        odp.load(written(tmp_path, text), **SCALE)


def test_ids_that_look_like_none_and_spaces_around_ids_are_told(tmp_path: Path) -> None:
    ratings = odp.load(written(tmp_path, "user,item,rating\nNULL,a,5\nnan,a,3\nu, b,1\n"), **SCALE)
    assert rows_of(ratings) == [("NULL", "a", 5.0), ("nan", "a", 3.0), ("u", " b", 1.0)]
    assert ratings.notes == (
        "ids in column 'user' are called 'NULL', 'nan'; a missing id is empty",
        "1 ids in column 'item' have spaces at their ends, which are a part of them",
    )


def test_an_id_that_a_file_would_change_is_not_saved(tmp_path: Path) -> None:
    ids = np.array(["a\0", "a"], dtype=np.dtypes.StringDType())
    ratings = odp.data.Ratings.from_triples("t", [0, 1], [0, 1], [1.0, 2.0], user_ids=ids, **SCALE)
    with pytest.raises(DataError, match="an id ends with a zero byte"):
        ratings.save(tmp_path / "ratings.npz")
    with pytest.raises(DataError, match="an id ends with a zero byte"):
        ratings.save_folder(tmp_path / "folder")


# Labels and categories.


def test_labels_of_objects_are_text_or_numbers_and_missing_ones_are_missing() -> None:
    for missing in (None, float("nan"), pd.NA):
        assert label_column(np.array(["yes", missing, "no"], object)).tolist() == ["yes", "", "no"]
        assert np.isnan(label_column(np.array([1, missing, True], object))).tolist() == [False, True, False]
    assert label_column(pd.array([True, None], dtype="boolean"))[0] == 1.0
    assert label_column(np.array([2**60, 2**60 + 1], object)).tolist() == [str(2**60), str(2**60 + 1)]
    assert label_column(np.array([Fraction(1, 2), 1], object)).tolist() == [0.5, 1.0]
    with pytest.raises(DataError, match="numbers or text, and not both"):
        label_column(np.array(["yes", 1], object))


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2024-01-01", "2024-01-02"], "M8[D]"), np.array([1, 2], "m8[s]"), np.array([1 + 2j, 0]),
        np.array([b"a", b"b"], object), [datetime(2024, 1, 1, tzinfo=UTC)] * 2, [[1], [1, 2]],
    ],
    ids=["dates", "spans", "complex", "bytes", "objects", "ragged"],
)  # fmt: skip
def test_labels_of_another_kind_are_no_numbers(labels: Any) -> None:
    with pytest.raises(DataError, match="Expected labels to be numbers or text"):
        label_column(labels)


def test_truth_values_are_not_positions_among_names(tmp_path: Path) -> None:
    truth = np.array([True, False])
    assert odp.Category(("yes", "no")).numbers(truth) is None
    for names in ("1", "0"), ("true", "false"):
        places = odp.Category(names).numbers(truth)
        assert places is not None
        assert places.tolist() == [0.0, 1.0]
    definition = common_pb2.TaskDefinition()
    odp.Examples({"is_new": odp.Category(("yes", "no"))}, label_low=0, label_high=1).write(definition)
    arrays = {"is_new": truth, "label": np.zeros(2), "user": np.arange(2), "test": truth}
    np.savez(tmp_path / "people.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"expected 'is_new' to be as the task declares it \(got bool\)"):
        examples_of_name(str(tmp_path / "people.npz"), ExamplesTerms.of(definition.examples), classes=None)


@pytest.mark.parametrize(
    "users", [[0.0, 1.5], ["5", "7"], ["a", "b"], [True, False], [10**12, 1], [0, float("nan")], [-1, 0], [0]]
)
def test_users_of_examples_are_whole_numbers(users: list[Any]) -> None:
    """1.5 was the user 1, and so two people were one."""
    for made in (
        lambda: odp.data.UsersExamples.of_users(np.zeros((2, 1), np.float32), [0, 1], users),
        lambda: odp.data.ExampleColumns.of_users({"x": [0, 1], "label": [0, 1]}, users),
    ):
        with pytest.raises(DataError, match=r"Expected users (from 0|below)"):
            made()


def test_whole_numbers_that_name_classes_keep_their_digits_on_devices() -> None:
    days = np.array([20240103.0, 20240102.0, np.nan])
    people = odp.data.ExampleColumns.of_users({"day": days, "label": [0, 1, 1]}, [0, 1, 1])
    numbers = odp.Category(("20240102", "20240104")).numbers(people.columns["day"])
    assert numbers is not None
    np.testing.assert_array_equal(numbers, [np.nan, 0, np.nan])
    people = odp.data.ExampleColumns.of_users({"x": np.array([0.1, 1e300, -2.5]), "label": [0, 1, 1]}, [0, 1, 1])
    assert people.columns["x"].dtype == np.float32


# Anything.


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    body=st.lists(
        st.sampled_from([*'1;5{,\n\r\t"', "-0", "1e3", "007", " x", "3,5", "NA", "\u00e9", "e\u0301"]),
        max_size=30,
    ),
    form=st.sampled_from(["csv", "tsv", "jsonl"]),
    skip=st.booleans(),
)
def test_any_bytes_are_a_table_or_one_refusal(body: list[str], form: str, skip: bool, tmp_path: Path) -> None:
    path = written(tmp_path, "user,item,rating\n1,2,3\n" + "".join(body), f"any.{form}")
    try:
        found = repr(odp.load(path, on_error="skip" if skip else "raise", **SCALE))
    except OdpError as error:
        found = str(error)
    assert len(found.splitlines()) == 1

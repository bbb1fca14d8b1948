"""One moment for everybody: nobody is trained on what comes after it, and a cut at a date is each rating's own."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.experiment import NamedData
from odp.datasets import Ratings, Split
from odp.datasets.splitting import TimeCut, only_tested
from odp.errors import ConfigurationError, DataError
from odp.models.example_tables import split_for

START = int(datetime(2001, 1, 1, tzinfo=UTC).timestamp())
DAY = 86_400


def ratings_of(days: list[tuple[int, int, int]], *, unit: str | None = "s", scale: int = 1) -> Ratings:
    """From (user, item, day)."""
    users, items, when = (np.array(column) for column in zip(*days, strict=True))
    return Ratings.from_triples(
        "timed", users, items, np.ones(len(days)), low=0, high=1, n_users=8, n_items=30,
        times=(START + when * DAY) * scale, time_unit=unit,
    )  # fmt: skip


def facts(split: Split) -> dict[tuple[int, int], str]:
    found = {}
    for field in dataclasses.fields(split):
        part = getattr(split, field.name)
        keys = zip(part.user_keys[part.users()].tolist(), part.item_keys[part.items].tolist(), strict=True)
        found |= dict.fromkeys(keys, field.name)
    return found


ROWS = st.tuples(st.integers(0, 7), st.integers(0, 29), st.integers(0, 99))
DAYS = st.lists(ROWS, min_size=2, max_size=60, unique_by=lambda row: row[:2])


@settings(max_examples=60, deadline=None)
@given(days=DAYS, cut=st.integers(1, 99), user=st.integers(0, 7), seed=st.integers(0, 2**40))
def test_a_date_cuts_everybody_at_once_and_one_user_changes_nobody_elses_parts(
    days: list[tuple[int, int, int]], cut: int, user: int, seed: int
) -> None:
    if len({day < cut for _, _, day in days}) < 2:
        return
    at = TimeCut.parse("time:" + (datetime(2001, 1, 1, tzinfo=UTC) + timedelta(days=cut)).isoformat())
    ratings = ratings_of(days)
    expected = facts(at.split(ratings, seed=seed))
    assert {pair for pair, part in expected.items() if part == "test"} == {row[:2] for row in days if row[2] >= cut}
    fewer = [row for row in days if row[0] != user]
    if len({day < cut for _, _, day in fewer}) == 2:
        found = facts(at.split(ratings_of(fewer), seed=seed))
        assert found == {pair: part for pair, part in expected.items() if pair[0] != user}


@settings(max_examples=60, deadline=None)
@given(days=DAYS, share=st.sampled_from([0.5, 0.8, 0.9]))
def test_a_share_is_one_cut_of_all_ratings(days: list[tuple[int, int, int]], share: float) -> None:
    moments = sorted(day for _, _, day in days)
    moment = moments[min(round(share * len(days)), len(days) - 1)]
    ratings = ratings_of(days)
    cut = TimeCut.parse(f"time:{share}")
    if moment == moments[0]:
        with pytest.raises(DataError, match="no rating before the cut"):
            cut.split(ratings, seed=1)
        return
    split = cut.split(ratings, seed=1)
    assert {pair for pair, part in facts(split).items() if part == "test"} == {
        row[:2] for row in days if row[2] >= moment
    }
    assert any("follows from everybody's times" in note for note in cut.notes(ratings, only_tested(split)))


def test_one_in_nine_of_the_past_is_for_validation_and_the_rest_is_counted() -> None:
    days = [(user, item, item) for user in range(7) for item in range(28)] + [(7, 29, 50), (7, 28, 51), (0, 29, 60)]
    split = TimeCut.parse("time:2001-01-27").split(ratings_of(days), seed=1)
    assert 5 <= split.validation.n_ratings <= 40
    assert split.train.n_ratings + split.validation.n_ratings == 7 * 26
    later = only_tested(split)
    assert later.counts == {"users": (1, 8), "items": (4, 30)}
    notes = TimeCut.parse("time:2001-01-27").notes(ratings_of(days), later)
    assert notes == ["only the test part has 1 of 8 users and 4 of 30 items"]


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_the_unit_of_numbers_is_recognised_and_told(scale: int) -> None:
    days = [(0, 1, 3), (1, 2, 9), (2, 3, 30)]
    cut = TimeCut.parse("time:2001-01-10")
    ratings = ratings_of(days, unit=None, scale=scale)
    split = cut.split(ratings, seed=3)
    assert split.test.n_ratings == 2
    unit = {1: "s", 10**3: "ms", 10**6: "us", 10**9: "ns"}[scale]
    assert f"guessed: times count from 1970 in {unit}" in cut.notes(ratings, only_tested(split))


def test_times_that_are_no_dates_are_cut_by_number_and_not_by_date() -> None:
    frame = pa.table({"user": [1, 2, 3], "item": [1, 1, 1], "rating": [1, 2, 3], "time": [1, 20, 30]})
    ratings = odp.load(frame, low=1, high=5)
    with pytest.raises(DataError, match="not all are dates"):
        TimeCut.parse("time:2001-01-01").split(ratings, seed=1)
    assert TimeCut.parse("time:20").split(ratings, seed=1).test.n_ratings == 2
    with pytest.raises(DataError, match="no rating from the cut"):
        TimeCut.parse("time:31").split(ratings, seed=1)
    with pytest.raises(DataError, match="has no times"):
        TimeCut.parse("time:20").split(odp.load(frame.drop_columns(["time"]), low=1, high=5), seed=1)


@pytest.mark.parametrize(
    "column",
    [
        ["2001-03-01", "2001-03-02", "2001-03-03"],
        ["2001-03-01T23:59:59.999999", "2001-03-02T00:00:00", "2001-03-03T00:00:00"],
        ["2001-03-01T23:30:00Z", "2001-03-01T23:30:00-01:00", "2001-03-03T00:00:00+00:00"],
        pa.array([11382, 11383, 11384], pa.int32()).cast(pa.date32()),
        pa.array([983491199, 983491200, 983577600], pa.timestamp("s")),
        pa.array([983491199999999999, 983491200000000000, 983577600000000000], pa.timestamp("ns")),
    ],
)
def test_dates_of_every_form_are_cut_in_utc(column: Any, tmp_path: Path) -> None:
    table = pa.table({"user": [1, 2, 3], "item": [1, 1, 1], "rating": [1, 2, 3], "time": column})
    ratings = odp.load(table, low=1, high=5)
    cut = TimeCut.parse("time:2001-03-02")
    split = cut.split(ratings, seed=1)
    assert split.test.user_keys[split.test.users()].tolist() == [2, 3]
    ratings.save(tmp_path / "a.npz")
    ratings.save_folder(tmp_path / "a")
    for again in (Ratings.load(tmp_path / "a.npz"), Ratings.open_folder(tmp_path / "a")):
        assert facts(cut.split(again, seed=1)) == facts(split)


def test_movielens_is_cut_by_its_seconds(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t10\t3\t978300000\n2\t10\t4\t978400000\n3\t10\t4\t978500000\n")
    named = NamedData(str(tmp_path), cut=TimeCut.parse("time:2001-01-02"))
    assert named.split(1).test.counts().tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "text", ["time:", "time:0", "time:1.5e400", "time:nan", "time:2001-13-01", "date:2001-01-01", "0.9", "time:-1"]
)
def test_what_is_no_cut_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="to be time:DATE"):
        TimeCut.parse(text)


def test_a_moment_finer_than_the_clock_of_a_cut_is_refused_and_not_cut_off() -> None:
    with pytest.raises(ConfigurationError, match="to the microsecond at most"):
        TimeCut.parse("time:2001-03-05T00:00:00.0000005")


@pytest.mark.parametrize(
    "text", ["03/{:02}/2001", "2001-{:02}", "2001-03-{:02}T00:00:00 EST", "2001-03-{:02} 00:00 +0500"]
)
def test_a_column_without_any_readable_time_is_refused_with_a_sample_and_the_forms(text: str) -> None:
    frame = pa.table(
        {"user": [1, 2, 3], "x": [1, 2, 3], "label": [0, 1, 1], "sent": [text.format(day) for day in (1, 2, 3)]}
    )
    with pytest.raises(
        DataError, match=r"column 'sent' has no time, but texts such as .*expected numbers, or dates such as"
    ):
        odp.data.load_examples(frame, user="user", label="label", time="sent", on_error="skip")


CLASSES = odp.Examples({"x": odp.Tensor((), 0.0, 100.0)}, classes=("no", "yes", "maybe"))
LABELLED = st.tuples(st.integers(0, 7), st.integers(0, 99), st.sampled_from(CLASSES.classes))


def labelled(rows: list[tuple[int, int, str]]) -> odp.data.ExampleColumns:
    """From (user, day, label); the feature is the day, so that parts can be told."""
    users, days, labels = zip(*rows, strict=True)
    moments = [datetime(2001, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in days]
    table = pa.table({"user": [f"u{one}" for one in users], "x": days, "label": labels, "when": moments})
    return odp.data.load_examples(table, time="when", name="timed")


def parts_of(split: odp.data.ExamplesSplit, columns: odp.data.ExampleColumns) -> dict[str, list[float]]:
    assert columns.user_ids is not None
    ids = [str(one) for one in columns.user_ids.tolist()]
    assert split.train.n_users == len(ids)
    return {name: sorted(split.train.of(user)[0][:, 0].tolist()) for user, name in enumerate(ids)}


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(LABELLED, min_size=2, max_size=40), cut=st.integers(1, 99), user=st.integers(0, 7))
def test_examples_are_cut_at_a_date_as_ratings_are(rows: list[tuple[int, int, str]], cut: int, user: int) -> None:
    if len({day < cut for _, day, _ in rows}) < 2:
        return
    at = TimeCut.parse("time:" + (datetime(2001, 1, 1, tzinfo=UTC) + timedelta(days=cut)).isoformat())
    columns = labelled(rows)
    split = split_for(CLASSES, columns, seed=1, cut=at)
    trained = parts_of(split, columns)
    assert trained == {
        f"u{one}": sorted(float(day) for other, day, _ in rows if other == one and day < cut) for one, _, _ in rows
    }
    assert sorted(split.test.features[:, 0].tolist()) == sorted(float(day) for _, day, _ in rows if day >= cut)
    early = [row for row in rows if row[1] < cut]
    late = [row for row in rows if row[1] >= cut]
    assert split.only_tested is not None
    assert split.only_tested.counts == {
        "users": (len({row[0] for row in late} - {row[0] for row in early}), len({row[0] for row in rows})),
        "classes": (len({row[2] for row in late} - {row[2] for row in early}), len({row[2] for row in rows})),
    }
    fewer = [row for row in rows if row[0] != user]
    if len({day < cut for _, day, _ in fewer}) == 2:
        others = labelled(fewer)
        found = parts_of(split_for(CLASSES, others, seed=1, cut=at), others)
        assert found == {name: part for name, part in trained.items() if name != f"u{user}"}


def test_labels_that_are_numbers_count_no_classes_and_a_share_says_that_it_is_everybodys() -> None:
    table = pa.table({"user": [1, 1, 2, 3], "x": [1, 2, 3, 4], "label": [0.5, 0.25, 1.0, 0.0], "time": [1, 2, 3, 4]})
    columns = odp.data.load_examples(table, time="time")
    assert "time" not in columns.columns
    data = odp.Examples({"x": odp.Tensor((), 0.0, 9.0)}, label_low=0.0, label_high=1.0)
    cut = TimeCut.parse("time:0.5")
    later = split_for(data, columns, seed=1, cut=cut).only_tested
    assert later is not None
    assert later.counts == {"users": (2, 3)}
    notes = cut.notes(columns, later)
    assert notes[0] == "only the test part has 2 of 3 users"
    assert any("follows from everybody's times" in note for note in notes)


def test_rows_without_a_time_are_bad_where_times_are_read(tmp_path: Path) -> None:
    file = tmp_path / "visits.csv"
    file.write_text("user,x,label,when\na,1,0,2001-01-01\nb,2,1,\nc,3,1,2001-13-40\n")
    assert odp.data.load_examples(file, text=("when",)).n_users == 3
    with pytest.raises(DataError, match=r"2 x no time \(column 'when'\): line 3, 4"):
        odp.data.load_examples(file, time="when")
    columns = odp.data.load_examples(file, time="when", on_error="skip")
    assert columns.n_users == 1
    assert columns.times is not None
    assert len(columns.times) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "whan"}, "no column 'whan' for the time; did you mean 'when'"),
        ({"time": "label", "label": "label"}, "different columns"),
        ({"time": "Label?", "label": "label"}, "is the user's or the time's, and cannot be the label"),
        ({"time": "user"}, "different columns"),
    ],
)
def test_a_column_that_cannot_be_the_time_is_refused(options: dict[str, str], message: str) -> None:
    table = pa.table({"user": [1, 2], "x": [1, 2], "label": [0, 1], "when": [1, 2]})
    label = "Label?" if options["time"] == "Label?" else "label"
    with pytest.raises((ConfigurationError, DataError), match=message):
        odp.data.load_examples(table.rename_columns(["user", "x", label, "when"]), **{"user": "user", **options})

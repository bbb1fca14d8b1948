"""Data sets in the order of their time stamps: who trains, and what is tested."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from odp.datasets import monthly_ratings
from odp.errors import ConfigurationError, DataError

# (user, item, stars, date): user 7 joins in January, 8 in February, 9 in March; nobody rates in May.
ROWS = [
    (7, 10, 5, "2001-01-31"),
    (7, 20, 4, "2001-02-01"),
    (8, 10, 3, "2001-02-28"),
    (8, 30, 2, "2001-03-01"),
    (9, 30, 1, "2001-03-15"),
    (7, 10, 1, "2001-03-20"),
    (9, 10, 4, "2001-04-02"),
    (8, 20, 5, "2001-06-30"),
]


def _seconds(date: str) -> int:
    return int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"{user}::{item}::{stars}::{_seconds(date)}" for user, item, stars, date in ROWS]
    (tmp_path / "ratings.dat").write_text("\n".join(lines) + "\n")
    return tmp_path


def _rows(ratings: object) -> set[tuple[int, int, float]]:
    users, items = ratings.user_ids[ratings.users()], ratings.item_ids[ratings.items]
    return set(zip(users.tolist(), items.tolist(), ratings.values.tolist(), strict=True))


def test_each_month_trains_on_the_past_and_tests_people_who_were_there_on_the_next_month(folder: Path) -> None:
    months = list(monthly_ratings(folder, first_users=1))
    assert [(month.name, month.joined) for month in months] == [
        ("2001-01", 1), ("2001-02", 1), ("2001-03", 1), ("2001-04", 0), ("2001-05", 0),
    ]  # fmt: skip
    january, february, march, april, may = months
    assert _rows(january.split.train) == {(7, 10, 5)}
    assert _rows(january.split.test) == {(7, 20, 4)}, "8 joins in February and is not tested"
    assert january.split.train.user_ids.tolist() == [7]
    assert _rows(february.split.test) == {(8, 30, 2)}, "7 rates 10 again, which it holds already"
    assert _rows(march.split.test) == {(9, 10, 4)}
    assert not april.split.test.n_ratings
    assert _rows(may.split.test) == {(8, 20, 5)}
    assert {month.split.train.n_items for month in months} == {3}
    assert all(month.split.validation.n_ratings == 0 for month in months)


def test_trainings_begin_with_enough_people(folder: Path) -> None:
    assert [month.name for month in monthly_ratings(folder, first_users=2)] == [
        "2001-02",
        "2001-03",
        "2001-04",
        "2001-05",
    ]
    with pytest.raises(DataError, match="first_users=4 to be at most the 3 people"):
        monthly_ratings(folder, first_users=4)
    with pytest.raises(ConfigurationError, match="first_users"):
        monthly_ratings(folder, first_users=0)


def test_rows_without_a_time_stamp_are_left_out(tmp_path: Path) -> None:
    user, item = np.array([1, 1, 2, 2, 3]), np.array([5, 6, 5, 7, 8])
    arrays = {"user": user, "item": item, "rating_halfstars": np.full(5, 8), "order": np.array([0, 1, 0, 1, 0])}
    times = [_seconds("2001-01-05"), _seconds("2001-02-05"), _seconds("2001-01-07"), _seconds("2001-02-09"), 0]
    np.savez(tmp_path / "ratings.npz", timestamp=np.array(times), **arrays)
    (month,) = monthly_ratings(tmp_path, first_users=1)
    assert month.split.train.user_ids.tolist() == [1, 2]
    assert month.split.train.n_items == 4, "the catalogue is the whole one"
    np.savez(tmp_path / "ratings.npz", **arrays)
    with pytest.raises(DataError, match="an order and no times"):
        monthly_ratings(tmp_path)
    np.savez(tmp_path / "ratings.npz", timestamp=np.zeros(5, dtype=np.int64), **arrays)
    with pytest.raises(DataError, match="no rating has a time stamp"):
        monthly_ratings(tmp_path)
    np.savez(tmp_path / "ratings.npz", timestamp=np.zeros(4, dtype=np.int64), **arrays)
    with pytest.raises(DataError, match="5 whole numbers"):
        monthly_ratings(tmp_path)


def test_other_data_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("user,item,rating,time\n1,1,5,100\n")
    for source in ("synthetic", tmp_path / "own.csv"):
        with pytest.raises(DataError, match="to be MovieLens"):
            monthly_ratings(source)

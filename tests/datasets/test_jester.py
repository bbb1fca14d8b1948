"""Jester: arrays, CSV and workbook forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odp.datasets import load
from odp.datasets.jester import load_jester
from odp.errors import DataError

CSV = "2,-7.82,99,8.79\n0,99,99,99\n3,0,10,-10\n"


def test_the_csv_form_drops_unrated_cells_and_keeps_users_without_ratings(tmp_path: Path) -> None:
    (tmp_path / "jester-data-1.csv").write_text(CSV)
    ratings = load_jester(tmp_path)
    assert ratings.offsets.tolist() == [0, 2, 2, 5]
    assert ratings.items.tolist() == [0, 2, 0, 1, 2]
    assert np.allclose(ratings.values, [-7.82, 8.79, 0, 10, -10])
    assert (ratings.low, ratings.high, ratings.order) == (-10.0, 10.0, None)


def test_the_array_form_equals_the_csv_form(tmp_path: Path) -> None:
    (tmp_path / "jester-data-1.csv").write_text(CSV)
    table = np.array([[-782, 9900, 879], [9900] * 3, [0, 1000, -1000]], dtype=np.int16)
    np.savez(tmp_path / "jester1.npz", rating_x100=table)
    text, arrays = load(tmp_path / "jester-data-1.csv"), load(tmp_path / "jester1.npz")
    assert np.array_equal(text.values, arrays.values)
    assert np.array_equal(text.items, arrays.items)
    assert np.array_equal(text.offsets, arrays.offsets)


def test_a_joke_that_nobody_rated_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "jester-data-1.csv").write_text("2,1.5,99,2\n1,99,99,3\n")
    ratings = load_jester(tmp_path)
    assert ratings.n_items == 2
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == [1, 3]
    whole = load_jester(tmp_path, whole_catalogue=True)
    assert (whole.n_items, whole.items.tolist()) == (3, [0, 2, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,99\n1,2\n", r"jester-data-1\.csv:2: 2 fields"),
        ("1,2,99\n1,x,99\n", r"jester-data-1\.csv:2: field 2"),
        ("1,2,99\n2,5,99\n", r"jester-data-1\.csv:2: the first column does not count"),
        ("1,2,99\n1,10.5,99\n", r"jester-data-1\.csv:2: rating outside \[-10, 10\]"),
        ("5\n", r"jester-data-1\.csv:1: expected a count and"),
        ("", "holds no rows"),
    ],
)
def test_a_malformed_csv_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "jester-data-1.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load_jester(tmp_path)


def test_an_empty_folder_and_other_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Jester file here"):
        load_jester(tmp_path)
    np.savez(tmp_path / "jester1.npz", ratings=np.ones(3))
    with pytest.raises(DataError, match="rating_x100"):
        load_jester(tmp_path)
    np.savez(tmp_path / "jester1.npz", rating_x100=np.ones(3))
    with pytest.raises(DataError, match=r"to be \[users, jokes\]"):
        load_jester(tmp_path)


def test_the_real_file_has_its_published_counts_in_both_forms(shared_data: Path, tmp_path: Path) -> None:
    ratings = load(shared_data / "jester-1")
    assert (ratings.n_ratings, ratings.n_users, ratings.n_items) == (1_810_455, 24_983, 100)
    assert int(ratings.counts().min()) == 36
    with np.load(shared_data / "jester-1" / "jester1.npz") as file:
        table = file["rating_x100"][:300] / 100.0
    rows = (
        f"{(row != 99).sum()}," + ",".join("99" if cell == 99 else f"{cell:.2f}" for cell in row) + "\n"
        for row in table
    )
    (tmp_path / "jester-data-1.csv").write_text("".join(rows))
    text, arrays = load(tmp_path), ratings.select_users(np.arange(300))
    assert np.array_equal(text.values, arrays.values)
    assert np.array_equal(text.items, arrays.items)

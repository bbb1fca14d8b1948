"""Gowalla: both forms, and the published split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odp.datasets import load, load_split
from odp.datasets.gowalla import load_gowalla, load_gowalla_split
from odp.errors import DataError


def write_text(folder: Path, *, valid: str | None = "0 5\n1\n") -> Path:
    (folder / "train.txt").write_text("0 4 0\n1 1 \n2 0 1\n")
    (folder / "test.txt").write_text("0 1\n2 5\n")
    if valid is not None:
        (folder / "valid.txt").write_text(valid)
    return folder


def test_the_text_form_is_read_with_its_split(tmp_path: Path) -> None:
    ratings = load_gowalla(write_text(tmp_path))
    assert ratings.implicit
    assert set(ratings.values.tolist()) == {1.0}
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == [0, 1, 4, 5]
    assert [ratings.user(user)[0].tolist() for user in range(3)] == [[0, 1, 2, 3], [1], [0, 1, 3]]
    split = load_gowalla_split(tmp_path)
    assert [split.train.user(user)[0].tolist() for user in range(3)] == [[0, 2], [1], [0, 1]]
    assert [split.validation.user(user)[0].tolist() for user in range(3)] == [[3], [], []]
    assert [split.test.user(user)[0].tolist() for user in range(3)] == [[1], [], [3]]


def test_without_a_validation_file_the_validation_part_is_empty(tmp_path: Path) -> None:
    split = load_split(write_text(tmp_path, valid=None))
    assert (split.train.n_ratings, split.validation.n_ratings, split.test.n_ratings) == (5, 0, 2)


def test_the_array_form_equals_the_text_form(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "arrays").mkdir()
    text = load_split(write_text(tmp_path / "text"))
    rows = np.array([(2, 5, 2), (0, 4, 0), (0, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), (0, 5, 1), (0, 1, 2)])
    np.savez(tmp_path / "arrays" / "interactions.npz", user=rows[:, 0], item=rows[:, 1], split=rows[:, 2])
    arrays = load_split(tmp_path / "arrays")
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(text, part).items, getattr(arrays, part).items), part
        assert np.array_equal(getattr(text, part).offsets, getattr(arrays, part).offsets), part


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ("0 5\n1 x\n", r"valid\.txt:2: expected a user number"),
        ("0 5\n\n1 2\n", r"valid\.txt:2: expected a user number"),
        ("0 -5\n", r"valid\.txt:1: expected a user number"),
        ("0 4\n", r"1 \(user, item\) pairs occur more than once"),
        ("", r"valid\.txt: holds no rows"),
    ],
)
def test_malformed_text_is_refused(tmp_path: Path, valid: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_gowalla(write_text(tmp_path, valid=valid))


def test_a_missing_part_and_wrong_arrays_are_refused(tmp_path: Path) -> None:
    write_text(tmp_path)
    (tmp_path / "test.txt").unlink()
    with pytest.raises(DataError, match=r"test\.txt is missing"):
        load_gowalla(tmp_path)
    np.savez(tmp_path / "interactions.npz", user=[0], item=[0], split=[3])
    with pytest.raises(DataError, match="split 0, 1 or 2"):
        load_gowalla(tmp_path)
    np.savez(tmp_path / "interactions.npz", user=[0], item=[0])
    with pytest.raises(DataError, match="arrays user, item and split"):
        load_gowalla(tmp_path)


def test_the_real_files_have_their_published_counts(shared_data: Path) -> None:
    ratings = load(shared_data / "gowalla")
    assert (ratings.n_ratings, ratings.n_users, ratings.n_items) == (1_027_370, 29_858, 40_981)
    split = load_split(shared_data / "gowalla")
    assert [part.n_ratings for part in (split.train, split.validation, split.test)] == [719_081, 91_047, 217_242]

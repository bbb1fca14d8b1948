"""From names and paths to data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from odp.datasets import DATASETS, load, load_split, random_split, synthetic_movielens
from odp.errors import ConfigurationError, DataError


def test_synthetic_takes_options_in_its_name_and_as_arguments() -> None:
    expected = synthetic_movielens(n_users=30, n_items=20, ratings_per_user=6, seed=3, half_stars=True)
    named = load("synthetic:n_users=30, n_items=20,ratings_per_user=6.0,seed=3,half_stars=true")
    mixed = load("synthetic:n_users=30,n_items=20,seed=3", ratings_per_user=6, half_stars=True)
    assert np.array_equal(named.values, expected.values)
    assert np.array_equal(mixed.values, expected.values)
    assert load("synthetic").n_users == 1000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:n_user=3", "Unknown key 'n_user' .* did you mean 'n_users'"),
        ("synthetic:n_users", "key=value"),
        ("synthetic:n_users=many", "n_users='many'"),
        ("synthetic:n_users=0", "n_users=0"),
        ("ml-1", r"'ml-1' is neither .*did you mean 'ml-1m'\?; known: synthetic, ml-1m, .*ratings\.dat"),
        ("no/such/folder", "'no/such/folder' is neither a known data set nor an existing path"),
        ("mnist", r"holds images, not ratings; read it with odp\.datasets\.load_mnist"),
    ],
)
def test_names_that_cannot_be_loaded_are_refused_with_what_is_valid(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        load(name)
    assert "\n" not in str(raised.value)


def test_a_known_set_that_is_not_in_the_cache_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not in the cache .*`odp data fetch ml-100k`"):
        load("ml-100k", cache=tmp_path)


def test_a_known_set_is_loaded_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("1\t1\t5\t0\n")
    assert load("ml-100k", cache=tmp_path).n_ratings == 1


def test_options_of_a_path_are_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected no options .*seed"):
        load(tmp_path, seed=3)


def test_saved_files_and_the_folders_around_them_are_recognised(tmp_path: Path) -> None:
    ratings = synthetic_movielens(n_users=10, n_items=20, ratings_per_user=5)
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    ratings.save(tmp_path / "outer" / "inner" / "mine.npz")
    for path in (tmp_path / "outer" / "inner" / "mine.npz", tmp_path / "outer" / "inner", tmp_path / "outer"):
        assert np.array_equal(load(path).values, ratings.values)
        assert np.array_equal(load(str(path)).values, ratings.values)


def test_a_rating_file_itself_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t1\t5\t0\n")
    (tmp_path / "train.txt").write_text("0 1\n")
    (tmp_path / "test.txt").write_text("0 2\n")
    assert load(tmp_path / "u.data").name == "ml-100k"
    assert load(tmp_path / "train.txt").name == tmp_path.name


def test_data_whose_items_follow_from_who_rated_what_have_no_whole_catalogue(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0 1\n")
    (tmp_path / "test.txt").write_text("0 2\n")
    with pytest.raises(DataError, match="its items are those of the data"):
        load(tmp_path, whole_catalogue=True)
    declared = synthetic_movielens(n_users=10, n_items=20, ratings_per_user=5)
    declared.save(tmp_path / "mine.npz")
    assert load(tmp_path / "mine.npz", whole_catalogue=True).n_items == 20
    assert load("synthetic:n_users=10,n_items=20,ratings_per_user=5", whole_catalogue=True).n_items == 20


def test_folders_and_files_of_no_known_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    np.savez(tmp_path / "other.npz", a=np.ones(1))
    for path in (tmp_path, tmp_path / "notes.md", tmp_path / "other.npz"):
        with pytest.raises(DataError, match="no data set recognised"):
            load(path)
    (tmp_path / "broken.npz").write_text("x")
    with pytest.raises(DataError, match="not a readable npz"):
        load(tmp_path / "broken.npz")


def test_without_a_published_split_the_split_is_random() -> None:
    text = "synthetic:n_users=30,n_items=20,ratings_per_user=6"
    split, expected = load_split(text, seed=5), random_split(load(text), seed=5)
    assert np.array_equal(split.test.values, expected.test.values)


def test_the_table_is_read_only_and_every_entry_has_files_and_terms() -> None:
    assert list(DATASETS) == ["ml-1m", "ml-100k", "ml-latest-small", "jester", "gowalla", "mnist"]
    for source in DATASETS.values():
        assert source.files
        assert source.licence
        assert source.homepage
        for file in source.files:
            assert file.url.startswith("https://")
            assert file.name
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32
    with pytest.raises(TypeError):
        DATASETS["x"] = DATASETS["ml-1m"]  # type: ignore[index]


def test_importing_the_package_loads_numpy_and_nothing_heavier() -> None:
    heavy = "pooch, requests, scipy, numba, matplotlib, sqlalchemy, dp_accounting"
    code = f"import sys, odp.datasets; print([name for name in {heavy.split(', ')!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

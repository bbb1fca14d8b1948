"""Small files that would take much memory are refused before they are unpacked, whoever sent them (R357)."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.datasets import Ratings
from odp.datasets.example_files import examples_of_name
from odp.datasets.gowalla import load_gowalla
from odp.datasets.jester import load_jester
from odp.datasets.mnist import load_mnist
from odp.datasets.movielens import load_movielens
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns
from odp.models.examples import Examples, ExamplesTerms
from odp.models.features import Tensor
from odp.numerics import archives
from odp.tasks import file as task_file
from odp.v1 import common_pb2

_NUMBERS = 2**22
_LIMIT = 2**18


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a bomb of 16 MiB stands for one of gigabytes."""
    monkeypatch.setattr(archives, "ALWAYS_BYTES", _LIMIT)


def npz(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: np.zeros(_NUMBERS, dtype=np.float32) for name in names})


def text(path: Path, line: bytes, *, first: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(first + line * (_NUMBERS * 4 // len(line))))


def saved_ratings(folder: Path) -> Callable[[], object]:
    npz(folder / "a.npz", "format", "name", "offsets", "items", "values", "bounds", "counts")
    return lambda: Ratings.load(folder / "a.npz")


def any_npz(folder: Path) -> Callable[[], object]:
    npz(folder / "a.npz", "format")
    return lambda: odp.load(folder / "a.npz")


def columns(folder: Path) -> Callable[[], object]:
    npz(folder / "a.npz", "user", "x")
    return lambda: ExampleColumns.load(folder / "a.npz")


def labelled(folder: Path) -> Callable[[], object]:
    npz(folder / "a.npz", "user", "x", "kind")
    definition = common_pb2.TaskDefinition()
    Examples({"x": Tensor((), 0.0, 1.0)}, label="kind").write(definition)
    definition.examples.label_high = 1.0
    terms = ExamplesTerms.of(definition.examples)
    return lambda: examples_of_name(str(folder / "a.npz"), terms, classes=None)


def halfstars(folder: Path) -> Callable[[], object]:
    npz(folder / "ratings.npz", "user", "item", "rating_halfstars", "order")
    return lambda: load_movielens(folder)


def jokes(folder: Path) -> Callable[[], object]:
    npz(folder / "jester-data-1.npz", "rating_x100")
    return lambda: load_jester(folder / "jester-data-1.npz")


def check_ins(folder: Path) -> Callable[[], object]:
    npz(folder / "interactions.npz", "user", "item", "split")
    return lambda: load_gowalla(folder)


def gzip_ratings(folder: Path) -> Callable[[], object]:
    text(folder / "ratings.dat.gz", b"1::1::5::978300760\n")
    return lambda: load_movielens(folder)


def pictures(folder: Path) -> Callable[[], object]:
    text(folder / "train-images-idx3-ubyte.gz", bytes(16))
    text(folder / "train-labels-idx1-ubyte.gz", bytes(16))
    return lambda: load_mnist(folder)


def csv(folder: Path) -> Callable[[], object]:
    text(folder / "a.csv.gz", b"1,2,3\n", first=b"user,item,rating\n")
    return lambda: odp.load(folder / "a.csv.gz")


def parquet(folder: Path) -> Callable[[], object]:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odp-platform[data]'")
    import pyarrow.parquet as pq

    zeros = np.zeros(_NUMBERS, dtype=np.int64)
    pq.write_table(pa.table({"user": zeros, "item": zeros}), folder / "a.parquet")
    return lambda: odp.load(folder / "a.parquet")


BOMBS = [saved_ratings, any_npz, columns, labelled, halfstars, jokes, check_ins, gzip_ratings, pictures, csv, parquet]


@pytest.mark.parametrize("bomb", BOMBS, ids=[bomb.__name__ for bomb in BOMBS])
@pytest.mark.slow
def test_r357_a_small_file_of_much_memory_is_refused_before_it_is_unpacked(
    bomb: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    read = bomb(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bytes would take .* MiB of memory or more, over 64 times as much"):
            read()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**23 < 4 * _NUMBERS


def test_r357_groups_of_item_features_of_a_task_file_are_bounded(tmp_path: Path) -> None:
    npz(tmp_path / "groups.npz", "genre")
    with pytest.raises(ConfigurationError, match="over 64 times as much"):
        task_file._array("item_features", "groups.npz", at="task.toml", folder=tmp_path)


def test_data_that_is_only_somewhat_regular_is_read(tmp_path: Path) -> None:
    ratings = odp.data.synthetic_movielens(n_users=2000, n_items=60, ratings_per_user=30)
    ratings.save(tmp_path / "a.npz")
    assert archives.unpacked_bytes(tmp_path / "a.npz") > _LIMIT
    assert Ratings.load(tmp_path / "a.npz").n_ratings == ratings.n_ratings

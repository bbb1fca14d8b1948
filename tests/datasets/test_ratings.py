"""The sparse form of ratings: what it refuses, and that no operation loses or invents an entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import Ratings, load, merge, permutation_split, random_split
from odp.errors import DataError
from tests.models import hostile_archives

ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(1, 5), st.integers(0, 3)), min_size=0, max_size=60
)


def make(**changes: Any) -> Ratings:
    fields: dict[str, Any] = {
        "name": "small",
        "offsets": np.array([0, 2, 2, 5]),
        "items": np.array([0, 3, 1, 2, 3]),
        "values": np.array([1, 2, 3, 4, 5], dtype=np.float64),
        "n_items": 4,
        "low": 1.0,
        "high": 5.0,
    }
    return Ratings(**(fields | changes))


def triples(rows: list[tuple[int, int, int, int]], **options: Any) -> Ratings:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Ratings.from_triples(
        "drawn", columns[0], columns[1], columns[2], low=1, high=5, n_users=7, n_items=9, times=columns[3], **options
    )


def entries(ratings: Ratings) -> dict[tuple[int, int], float]:
    return {
        (user, int(item)): float(value)
        for user in range(ratings.n_users)
        for item, value in zip(*ratings.user(user), strict=True)
    }


def test_a_user_s_items_and_values_are_views_of_the_flat_arrays() -> None:
    ratings = make()
    items, values = ratings.user(2)
    assert items.tolist() == [1, 2, 3]
    assert values.tolist() == [3, 4, 5]
    assert np.shares_memory(items, ratings.items)
    assert np.shares_memory(values, ratings.values)
    assert ratings.user(1)[0].size == 0
    assert (ratings.n_users, ratings.n_ratings, ratings.density) == (3, 5, 5 / 12)
    types = [array.dtype.name for array in (ratings.offsets, ratings.items, ratings.values)]
    assert types == ["int64", "int32", "float32"]


@pytest.mark.parametrize("user", [-1, 3])
def test_a_user_out_of_range_is_refused(user: int) -> None:
    with pytest.raises(DataError, match=f"user={user} to be from 0 to 2"):
        make().user(user)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": [1, 2, np.nan, 4, np.inf]}, r"2 of 5 values .*2 of them NaN or infinite; first in row 2"),
        ({"values": [1, 2, 3, 5.5, 0.5]}, r"2 of 5 values .* outside \[1, 5\] \(first in row 3\): declare the true"),
        ({"values": [1, 2, 3, 4, 1e300]}, r"1 of 5 values .*NaN or infinite"),
        ({"values": ["1", "2", "3", "4", "5"]}, "values to be real numbers"),
        ({"low": 5.0, "high": 1.0}, r"low=5.0 <= high=1.0"),
        ({"high": float("inf")}, "both finite"),
        ({"items": [0, 4, 1, 2, 3]}, r"1 of 5 items .* row 1\): expected from 0 to 3"),
        ({"items": [0, -1, 1, 2, 3]}, r"1 of 5 items .* row 1\)"),
        ({"items": [0.0, 1.0, 1.0, 2.0, 3.0]}, "items to be whole numbers"),
        ({"items": [0, 3, 2, 1, 3]}, "ascending and unique .* user 2"),
        ({"items": [3, 3, 1, 2, 3]}, "ascending and unique .* user 0"),
        ({"items": [0, 1]}, r"items to have shape \[5\]"),
        ({"offsets": [0, 3, 2, 5]}, "decrease .* after user 1"),
        ({"offsets": [0, 2, 2, 4]}, "run from 0 to the number of values, 5"),
        ({"offsets": [1, 2, 2, 5]}, "run from 0"),
        ({"offsets": []}, r"int64 \[n_users \+ 1\]"),
        ({"order": [0, 1, 0, 1]}, "order to have shape"),
        ({"order": [0, 1, 0, -1, 2]}, "order .* out of range"),
        ({"titles": ("a", "b")}, "titles to have shape"),
        ({"features": np.ones((3, 2))}, r"features to be \[4, p\]"),
        ({"features": np.full((4, 2), np.nan)}, "features to be finite .* item 0"),
        ({"feature_names": ("a",)}, "pass both or neither"),
        ({"features": np.ones((4, 2)), "feature_names": ("a",)}, "feature_names to have shape"),
        ({"user_ids": np.arange(4)}, r"user_ids to have shape \[3\]"),
        ({"item_ids": np.arange(3)}, r"item_ids to have shape \[4\]"),
        ({"n_items": -1}, "n_items=-1"),
    ],
)
def test_arrays_that_break_a_rule_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        make(**changes)
    assert "\n" not in str(raised.value)


def test_a_message_about_bad_values_does_not_show_them() -> None:
    with pytest.raises(DataError) as raised:
        make(values=[1, 2, 3, 4, 4711.25])
    assert "4711" not in str(raised.value)


def test_a_bound_that_float32_cannot_hold_still_admits_itself() -> None:
    assert make(values=[0.1, 0.1, 0.2, 0.3, 0.3], low=0.1, high=0.3).n_ratings == 5


@pytest.mark.parametrize("repeats", ["newest", "oldest", "mean", "sum"])
@settings(max_examples=80, deadline=None)
@given(rows=ROWS)
def test_repeated_pairs_come_to_what_was_asked_for(rows: list[tuple[int, int, int, int]], repeats: Any) -> None:
    """By time, and by row where times are the same: the issue's `1,10,5,300 .. 1,10,1,100` keeps 5."""
    groups: dict[tuple[int, int], list[int]] = {}
    for user, item, value, _ in sorted(rows, key=lambda row: row[3]):
        groups.setdefault((user, item), []).append(value)
    come_to = {"newest": lambda own: own[-1], "oldest": lambda own: own[0], "mean": np.mean, "sum": sum}[repeats]
    expected = {pair: float(np.float32(come_to(values))) for pair, values in groups.items()}
    if max(expected.values(), default=0) > 5:
        with pytest.raises(DataError, match="outside"):
            triples(rows, repeats=repeats)
        return
    ratings = triples(rows, repeats=repeats)
    assert entries(ratings) == expected
    assert ratings.duplicates == len(rows) - len(expected)
    assert ratings.offsets[-1] == len(expected)


@settings(max_examples=80, deadline=None)
@given(ROWS)
def test_order_ranks_the_kept_rows_of_a_user_by_time_then_by_row(rows: list[tuple[int, int, int, int]]) -> None:
    ratings = triples(rows)
    assert ratings.order is not None
    in_time = sorted(enumerate(rows), key=lambda one: (one[1][3], one[0]))
    last = {(user, item): (time, row) for row, (user, item, _, time) in in_time}
    for user in range(ratings.n_users):
        items, _ = ratings.user(user)
        when = [last[user, int(item)] for item in items]
        order = ratings.order[ratings.offsets[user] : ratings.offsets[user + 1]]
        assert [when.index(moment) for moment in sorted(when)] == np.argsort(order).tolist()
        assert sorted(order.tolist()) == list(range(len(items)))
        assert ratings.times is not None
        assert ratings.times[ratings.offsets[user] : ratings.offsets[user + 1]].tolist() == [time for time, _ in when]


@settings(max_examples=60, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_without_repeated_pairs_the_order_of_rows_does_not_matter(rows: list[Any], random: Any) -> None:
    unique = list({(row[0], row[1]): row for row in rows}.values())
    shuffled = random.sample(unique, len(unique))
    assert entries(triples(unique)) == entries(triples(shuffled))


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    st.integers(0, 2**31),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.0, 0.5), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)]),
    st.sampled_from([random_split, permutation_split]),
)
def test_a_split_is_a_partition_that_merge_undoes(rows: list[Any], seed: int, fractions: Any, cut: Any) -> None:
    whole = triples(rows)
    split = cut(whole, fractions=fractions, seed=seed)
    parts = [entries(part) for part in (split.train, split.validation, split.test)]
    assert sum(map(len, parts)) == whole.n_ratings
    assert parts[0] | parts[1] | parts[2] == entries(whole)
    for part, share in zip(parts, fractions, strict=True):
        assert share or not part
        assert cut is random_split or abs(len(part) - share * whole.n_ratings) <= 1
    assert {part.n_users for part in (split.train, split.validation, split.test)} == {whole.n_users}
    again = merge(merge(split.test, split.train), split.validation)
    assert entries(again) == entries(whole)
    assert again.order is not None
    assert whole.order is not None
    assert again.order.tolist() == whole.order.tolist()


@settings(max_examples=60, deadline=None)
@given(ROWS, st.lists(st.integers(0, 6), max_size=9))
def test_selected_users_keep_their_entries_in_the_order_asked_for(rows: list[Any], chosen: list[int]) -> None:
    whole = triples(rows, user_ids=np.arange(100, 107))
    part = whole.select_users(chosen)
    assert part.n_users == len(chosen)
    assert part.n_items == whole.n_items
    assert part.user_ids is not None
    assert part.user_ids.tolist() == [100 + user for user in chosen]
    for place, user in enumerate(chosen):
        for got, expected in zip(part.user(place), whole.user(user), strict=True):
            assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.5), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5), (0.5, 0.5)])
def test_fractions_that_are_no_shares_are_refused(fractions: Any) -> None:
    for cut in (random_split, permutation_split):
        with pytest.raises(DataError, match="three shares"):
            cut(make(), fractions=fractions)


def test_parts_that_overlap_or_differ_in_shape_are_not_merged() -> None:
    with pytest.raises(DataError, match=r"5 .*pairs are in both"):
        merge(make(), make())
    with pytest.raises(DataError, match="same users, items and bounds"):
        merge(make(), make(high=6.0))


@pytest.mark.parametrize(
    ("mask", "indices"), [([True], [3]), ([1, 1, 0, 0, 1], [-1]), (np.ones((5, 1), bool), [0.5]), (["a"] * 5, [[0]])]
)
def test_masks_and_indices_of_the_wrong_kind_are_refused(mask: Any, indices: Any) -> None:
    with pytest.raises(DataError, match="Expected mask"):
        make().take(mask)
    with pytest.raises(DataError, match="Expected indices"):
        make().select_users(indices)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 1], [0, 1], [1.0, 9.0]), r"1 of 2 values .* row 1\)"),
        (([0, -1], [0, 1], [1.0, 2.0]), r"1 of 2 users .* row 1\)"),
        (([0, 1], [0, 5], [1.0, 2.0]), r"1 of 2 items .* from 0 to 2"),
        (([0], [0, 1], [1.0, 2.0]), "users to have shape"),
        (([0.5, 1.0], [0, 1], [1.0, 2.0]), "users to be whole numbers"),
    ],
)
def test_bad_triples_are_refused_by_their_row(columns: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ratings.from_triples("bad", *columns, low=1, high=5, n_items=3)


def test_a_saved_file_gives_the_same_ratings_back(tmp_path: Path) -> None:
    ratings = make(
        implicit=True,
        order=np.array([1, 0, 2, 0, 1]),
        titles=("a", "b", "ç", ""),
        features=np.eye(4),
        feature_names=("w", "x", "y", "z"),
        user_ids=np.array([5, 6, 9]),
        item_ids=np.array([1, 2, 3, 8]),
        duplicates=3,
    )
    ratings.save(tmp_path / "file.npz")
    again = Ratings.load(tmp_path / "file.npz")
    for name in ("name", "n_items", "low", "high", "implicit", "titles", "feature_names", "duplicates"):
        assert getattr(again, name) == getattr(ratings, name), name
    for name in ("offsets", "items", "values", "order", "features", "user_ids", "item_ids"):
        got, expected = getattr(again, name), getattr(ratings, name)
        assert got.dtype == expected.dtype, name
        assert got.tolist() == expected.tolist(), name
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]


def test_a_file_without_options_loads_without_them(tmp_path: Path) -> None:
    make().save(tmp_path / "file.npz")
    again = Ratings.load(tmp_path / "file.npz")
    assert again.order is None
    assert again.titles is None
    assert again.features is None


def test_files_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    make().save(tmp_path / "whole.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-200])
    np.savez(tmp_path / "lacking.npz", format=np.array("odp-ratings-1"), name=np.array("x"))
    for name, message in (
        ("text", "not a readable"), ("other", "not a file of format"), ("cut", "not a readable"),
        ("lacking", "missing or malformed"), ("absent", "no such file"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message) as raised:
            Ratings.load(tmp_path / f"{name}.npz")
        assert f"{name}.npz" in str(raised.value)


def test_the_repr_names_sizes_and_no_data() -> None:
    assert (
        repr(make(user_ids=np.array([7001, 7002, 7003]))) == "Ratings('small', 3 users x 4 items, 5 ratings in [1, 5])"
    )


def test_a_folder_gives_back_every_field_with_entries_left_on_disk(tmp_path: Path) -> None:
    ratings = Ratings.from_triples(
        "films",
        [0, 0, 2, 2, 2],
        [1, 0, 2, 1, 1],
        [5, 3, 1, 2, 4],
        low=1,
        high=5,
        n_users=4,
        times=[9, 8, 1, 2, 3],
        titles=("a", "b", "c"),
        features=np.eye(3, dtype=np.float32),
        feature_names=("x", "y", "z"),
        user_ids=np.arange(4) * 7,
        item_ids=np.arange(3) + 9,
    )
    ratings.save_folder(tmp_path / "films")
    opened = Ratings.open_folder(tmp_path / "films")
    for field in ("name", "n_items", "low", "high", "implicit", "duplicates", "titles", "feature_names"):
        assert getattr(opened, field) == getattr(ratings, field)
    for field in ("offsets", "items", "values", "order", "features", "user_ids", "item_ids"):
        np.testing.assert_array_equal(getattr(opened, field), getattr(ratings, field))
        assert getattr(opened, field).dtype == getattr(ratings, field).dtype
    for field in ("offsets", "items", "values"):
        assert isinstance(getattr(opened, field).base, np.memmap), "a copy would defeat the purpose"


def test_a_folder_of_an_empty_data_set_opens(tmp_path: Path) -> None:
    Ratings.from_triples("none", [], [], [], low=1, high=5, n_users=2, n_items=3).save_folder(tmp_path)
    assert Ratings.open_folder(tmp_path).n_users == 2


def test_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    ratings = Ratings.from_triples("films", [0, 1], [1, 0], [5, 3], low=1, high=5)
    with pytest.raises(DataError, match="no meta"):
        Ratings.open_folder(tmp_path / "missing")
    folder = tmp_path / "films"
    ratings.save_folder(folder)
    with pytest.raises(DataError, match="new or empty"):
        ratings.save_folder(folder)
    meta = (folder / "meta.json").read_text()
    for text, complaint in (("{", "not readable"), ("{}", "not a folder of format"), ("[1]", "not a folder of format")):
        (folder / "meta.json").write_text(text)
        with pytest.raises(DataError, match=complaint):
            Ratings.open_folder(folder)
    (folder / "meta.json").write_text(meta)
    np.save(folder / "items.npy", np.array([1, 7], dtype=np.int32))
    with pytest.raises(DataError, match="out of range"):
        Ratings.open_folder(folder)
    (folder / "items.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match="missing or damaged"):
        Ratings.open_folder(folder)
    (folder / "items.npy").unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        Ratings.open_folder(folder)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_checks_find_the_same_faults_whatever_their_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("odp.datasets._check._CHUNK", chunk)
    offsets, values = np.array([0, 2, 2, 5, 5]), np.ones(5, dtype=np.float32)
    for items in ([4, 5, 0, 1, 2], [0, 1, 2, 3, 4]):
        assert Ratings("films", offsets, np.array(items), values, n_items=6, low=1, high=5).n_ratings == 5
    for items, user in (([5, 4, 0, 1, 2], 0), ([4, 5, 0, 0, 2], 2), ([4, 5, 0, 3, 2], 2)):
        with pytest.raises(DataError, match=f"those of user {user} are not"):
            Ratings("films", offsets, np.array(items), values, n_items=6, low=1, high=5)
    with pytest.raises(DataError, match=r"first in row 4"):
        Ratings("films", offsets, np.array([4, 5, 0, 1, 6]), values, n_items=6, low=1, high=5)


@pytest.mark.parametrize("kind", hostile_archives.KINDS)
@pytest.mark.parametrize("read", [Ratings.load, load], ids=["own form", "any form"])
def test_a_hostile_file_is_refused_by_its_name(tmp_path: Path, read: Callable[[Path], object], kind: str) -> None:
    with pytest.raises(DataError, match=r"hostile\.npz"):
        read(hostile_archives.write(tmp_path, kind, "format"))

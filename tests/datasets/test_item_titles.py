"""Titles are found by the id that a file gives an item, whatever row it stands in; and data by a catalogue's keys."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import odp
from odp.datasets import Split, catalogue_keys, numbered_by, random_split
from odp.datasets.item_texts import ItemTitles
from odp.errors import DataError

KEYS = ("A7", "B2", "C1")


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("more.csv", "item,title\nX0,Xanadu\nA7,Alien\nB2,Brazil\nC1,Casablanca\n"),
        ("order.csv", "item,title\nC1,Casablanca\nB2,Brazil\nA7,Alien\n"),
        ("columns.csv", "year,title,item\n1979,Alien,A7\n1942,Casablanca,C1\n1985,Brazil,B2\n"),
        ("lines.jsonl", '{"item": "B2", "title": "Brazil"}\n{"item": "C1", "title": "Casablanca"}\n'
         '{"item": "A7", "title": "Alien"}\n'),
        ("ratings.csv", "user,item,title,rating\nu9,X0,Xanadu,1\nu1,C1,Casablanca,5\nu1,B2,Brazil,3\nu2,A7,Alien,4\n"),
    ],
)  # fmt: skip
def test_a_file_with_one_item_more_or_in_another_order_names_the_right_items(
    tmp_path: Path, name: str, text: str
) -> None:
    named = ItemTitles.load(written(tmp_path / name, text)).of_model(KEYS, 3, task="films")
    assert named.names(["B2", "C1", "A7"]) == ("Brazil", "Casablanca", "Alien")
    assert named.missing == 0


def test_items_without_a_title_are_counted_and_called_by_their_key(tmp_path: Path) -> None:
    file = written(tmp_path / "titles.csv", "item,title\nC1,Casablanca\nB2,  \n")
    with pytest.raises(DataError, match=r"titles\.csv:3: item 'B2' has no text"):
        ItemTitles.load(file)
    named = ItemTitles.load(written(tmp_path / "few.csv", "item,title\nC1,Casablanca\n")).of_model(KEYS, 3, task="x")
    assert (named.names(["A7", "C1"]), named.missing) == (("A7", "Casablanca"), 2)


def test_titles_of_other_items_are_refused(tmp_path: Path) -> None:
    titles = ItemTitles.load(written(tmp_path / "titles.csv", "item,title\nQ1,Quiz\n"))
    with pytest.raises(DataError, match=r"items such as 'Q1', and the items of task 'films' are such as 'A7'"):
        titles.of_model(KEYS, 3, task="films")


def test_ids_name_no_items_of_a_task_that_knows_numbers_alone(tmp_path: Path) -> None:
    titles = ItemTitles.load(written(tmp_path / "titles.csv", "item,title\n0,Alien\n1,Brazil\n2,Casablanca\n"))
    with pytest.raises(DataError, match=r"task 'films' knows its 3 items by number alone"):
        titles.of_model(None, 3, task="films")
    # The items of invented data are numbers.
    invented = ItemTitles.load("synthetic:n_users=20,n_items=9,ratings_per_user=5")
    assert invented.of_model(None, 9, task="films").names([3])[0].startswith("Film 0004")
    with pytest.raises(DataError, match=r"has 9 items, and task 'films' knows its 8"):
        invented.of_model(None, 8, task="films")


def test_titles_of_movielens_are_found_by_id_or_by_title() -> None:
    ratings = odp.data.synthetic_movielens(n_users=20, n_items=9, ratings_per_user=5)
    titles = ItemTitles("ml", ({"Alien (1979)": "Alien (1979)"}, {"17": "Alien (1979)"}))
    assert titles.of_model(["17"], 1, task="x").names(["17"]) == ("Alien (1979)",)
    assert titles.of_model(["Alien (1979)"], 1, task="x").names(["Alien (1979)"]) == ("Alien (1979)",)
    assert ratings.titles is not None


def test_data_get_the_numbers_of_a_catalogue_by_key_and_count_what_it_lacks() -> None:
    ratings = odp.data.synthetic_movielens(n_users=40, n_items=12, ratings_per_user=6, seed=1)
    keys = catalogue_keys(ratings)
    catalogue = odp.items.Catalogue.make("films", [*keys[:1:-1], "new"])
    numbered = numbered_by(ratings, catalogue)
    lost = int((ratings.items < 2).sum())
    assert numbered.n_items == 11
    assert numbered.notes == (
        f"2 items, with {lost} ratings, are left out: catalogue version 1 of 'films' does not have them",
    )
    for user in range(40):
        before = {(keys[item], value) for item, value in zip(*ratings.user(user), strict=True) if item >= 2}
        after = {(catalogue.keys[item], value) for item, value in zip(*numbered.user(user), strict=True)}
        assert after == before
    assert numbered.features is not None
    assert ratings.features is not None
    np.testing.assert_array_equal(numbered.features[0], ratings.features[11])
    assert not numbered.features[10].any()
    assert numbered_by(numbered, catalogue) is numbered
    with pytest.raises(DataError, match="no item of the data set 'synthetic', such as 'Film 0001"):
        numbered_by(ratings, odp.items.Catalogue.make("films", ["a", "b"]))


def test_a_simulation_brings_data_in_any_order_to_the_numbers_of_its_catalogue() -> None:
    ratings = odp.data.synthetic_movielens(n_users=120, n_items=12, ratings_per_user=6, seed=1)
    catalogue = odp.items.Catalogue.make("films", catalogue_keys(ratings)[::-1])
    task = odp.Task(
        name="films", model=odp.MatrixFactorization(items=12, rank=1, catalogue=catalogue), data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6), training=odp.DPAM(steps=1), cohort=odp.Cohort(minimum=100),
    )  # fmt: skip
    plain = dataclasses.replace(task, model=odp.MatrixFactorization(items=12, rank=1))
    in_order = odp.simulate(plain, numbered_by(ratings, catalogue), noise=False)
    run = odp.simulate(task, ratings, noise=False)
    np.testing.assert_array_equal(run.model.keyed.rows, in_order.model.keyed.rows)
    split = random_split(ratings, seed=1)
    parts = Split(*(numbered_by(part, catalogue) for part in (split.train, split.validation, split.test)))
    np.testing.assert_array_equal(
        odp.simulate(task, split, noise=False).model.keyed.rows,
        odp.simulate(plain, parts, noise=False).model.keyed.rows,
    )
    fewer = odp.items.Catalogue.make("films", catalogue_keys(ratings)[:1:-1])
    small = dataclasses.replace(task, model=odp.MatrixFactorization(items=10, rank=1, catalogue=fewer))
    lost = int((ratings.items < 2).sum())
    told = f"2 items, with {lost} ratings, are left out"
    for data in (ratings, split):
        assert told in odp.simulate(small, data).notes[0]
    with pytest.raises(DataError, match="no item of the data set"):
        odp.simulate(small, odp.load(pa.table({"user": [1], "item": ["milk"], "rating": [1.0]}), low=0, high=5))

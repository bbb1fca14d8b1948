"""Ratings by key: translated by the catalogue of a task, kept while no catalogue has the item."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import odp
from device_runtime.round.examples import events, examples
from device_runtime.store.keyed_ratings import fill_ratings, numbered_ratings, rate, ratings_by_key, ratings_left_out
from device_runtime.store.store import Store
from odp.algorithms.registry import algorithm_for
from odp.datasets import catalogue_keys
from odp.errors import ConfigurationError, StateError
from odp.protocol.catalogues.catalogue import Catalogue

ITEMS = [f"film {number}" for number in range(12)]
FIRST = Catalogue.make("people", ITEMS)
SECOND = FIRST.change(add=["new"], retire=["film 0", "film 5"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open_or_create(tmp_path / "0.sqlite", durable=False)


def test_ratings_under_one_version_are_used_rightly_by_a_task_of_another(store: Store) -> None:
    for key, value in (("film 11", 5.0), ("film 0", 1.0), ("new", 4.0), ("film 1", 2.0), ("unheard of", 3.0)):
        rate(store, key, value)
    rate(store, "film 1", 2.5)
    first = numbered_ratings(store, FIRST)
    assert (first.items.tolist(), first.values.tolist()) == ([0, 1, 11], [1.0, 2.5, 5.0])
    second = numbered_ratings(store, SECOND)
    assert [SECOND.keys[item] for item in second.items.tolist()] == ["film 1", "film 11", "new"]
    assert (second.items.tolist(), second.values.tolist()) == ([0, 9, 10], [2.5, 5.0, 4.0])
    third = SECOND.change(add=["unheard of"])
    assert numbered_ratings(store, third).values.tolist() == [2.5, 5.0, 4.0, 3.0]
    assert len(ratings_by_key(store)) == 5


def test_what_a_device_knows_by_number_takes_no_part_where_items_have_keys(store: Store) -> None:
    rate(store, 3, 1.0)
    rate(store, "film 3", 5.0)
    definition = odp.Task(
        name="films", population="people", model=odp.MatrixFactorization(items=12, catalogue=FIRST),
        data=odp.RatingsData(), privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    ).definition()  # fmt: skip
    (name,) = (table.name for table in algorithm_for(definition).local_data)
    assert examples(store, definition, now=0.0, catalogue=FIRST)[name].values.tolist() == [5.0]
    assert examples(store, definition, now=0.0)[name].values.tolist() == [1.0]


def test_own_ratings_that_take_no_part_are_counted(store: Store) -> None:
    for item, value in ((3, 1.0), (40, 2.0), ("film 3", 5.0), ("unheard of", 4.0)):
        rate(store, item, value)
    keyed, numbered = (
        odp.Task(
            name="films", population="people", model=odp.MatrixFactorization(items=12, catalogue=catalogue), data=data,
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=12),
        ).definition()
        for catalogue, data in ((FIRST, odp.RatingsData()), (None, odp.RatingsData()))
    )  # fmt: skip
    assert ratings_left_out(store, keyed, FIRST) == 3  # both numbers, and the key that no catalogue has
    assert ratings_left_out(store, numbered, None) == 3  # both keys, and number 40


def test_events_name_items_by_key(store: Store) -> None:
    data = odp.RatingsData(low=0, high=9, events=odp.Events(service="music", type="play", item="track", value="stars"))
    numbers = Catalogue.make("people", ["b", "7", "a"])
    for track, stars in (("a", 1), (7, 2), ("gone", 3), ("b", 4), ("a", 5), (None, 6), (True, 7)):
        store.data("music").add_event("play", {"track": track, "stars": stars}, time=1.0)
    definition = odp.Task(
        name="songs", population="people", model=odp.MatrixFactorization(items=3, catalogue=numbers), data=data,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    ).definition()  # fmt: skip
    (table,) = algorithm_for(definition).local_data
    assert table.events is not None
    found = events(store, table.events, now=2.0, catalogue=numbers)
    assert (found.items.tolist(), found.values.tolist()) == ([0, 1, 2], [4.0, 2.0, 5.0])
    assert events(store, table.events, now=2.0).items.tolist() == [7], "without a catalogue, whole numbers alone"


def table(*rows: tuple[str, float]) -> odp.data.Ratings:
    items = [item for item, _ in rows]
    return odp.load(
        pa.table({"user": ["ann"] * len(rows), "item": items, "rating": [value for _, value in rows]}), low=0, high=5
    )  # fmt: skip


def test_one_filling_serves_tasks_with_a_catalogue_and_without(store: Store) -> None:
    data = table(("film 3", 5.0), ("film 1", 2.0), ("gone", 4.0))
    for first in (True, False):
        assert fill_ratings(store, data, 0, keys=catalogue_keys(data), filled_from=b"data") is first
    with pytest.raises(StateError, match="other data"):
        fill_ratings(store, data, 0, keys=None, filled_from=b"other")
    assert store.ratings().values.tolist() == [2.0, 5.0, 4.0]  # by place: ids in their order
    found = numbered_ratings(store, FIRST)
    assert (found.items.tolist(), found.values.tolist()) == ([1, 3], [2.0, 5.0])
    changed = SECOND.change(add=["gone"])
    assert sorted(numbered_ratings(store, changed).values.tolist()) == [2.0, 4.0, 5.0]
    definition = odp.Task(
        name="films", population="people", model=odp.MatrixFactorization(items=12, catalogue=FIRST),
        data=odp.RatingsData(), privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    ).definition()  # fmt: skip
    assert ratings_left_out(store, definition, FIRST) == 1
    # What the person says of an item later counts, and what it has by number alone does not.
    rate(store, "film 3", 1.0)
    rate(store, 40, 3.0)
    found = numbered_ratings(store, FIRST)
    assert (found.items.tolist(), found.values.tolist()) == ([1, 3], [2.0, 1.0])
    assert ratings_left_out(store, definition, FIRST) == 2
    assert numbered_ratings(store, FIRST, most=1).values.tolist() == [2.0]


def test_items_whose_ids_are_their_places_have_keys_too(store: Store) -> None:
    data = table(("0", 5.0), ("1", 2.0), ("2", 4.0))
    fill_ratings(store, data, 0, keys=catalogue_keys(data), filled_from=b"data")
    found = numbered_ratings(store, Catalogue.make("people", ["2", "x", "0"]))
    assert (found.items.tolist(), found.values.tolist()) == ([0, 2], [4.0, 5.0])


def test_a_store_of_the_version_before_gets_the_keys(store: Store) -> None:
    data = table(("film 3", 5.0), ("film 1", 2.0))
    fill_ratings(store, data, 0, keys=None, filled_from=b"data")
    assert not len(numbered_ratings(store, FIRST).items)
    assert not fill_ratings(store, data, 0, keys=catalogue_keys(data), filled_from=b"data")
    assert numbered_ratings(store, FIRST).values.tolist() == [2.0, 5.0]


def test_keys_are_keys_alone_and_an_erasure_is_whole(store: Store) -> None:
    data = table(("a", 2.0), ("b", 1.0))
    fill_ratings(store, data, 0, keys=catalogue_keys(data), filled_from=b"data")
    assert store.count_examples() == 2
    for wrong in ("", "two\nlines", "k" * 300, -1, 1.5, True):
        with pytest.raises(ConfigurationError):
            rate(store, wrong, 1.0)  # type: ignore[arg-type]
    store.erase()
    assert ratings_by_key(store) == {}
    assert not len(numbered_ratings(store, Catalogue.make("people", ["a", "b"])).items)

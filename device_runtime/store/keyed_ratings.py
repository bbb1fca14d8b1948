"""Ratings by the keys of a catalogue: what a person rated stays theirs, whatever numbers the items get.

A rating of an item that no catalogue has is kept, and takes part once a catalogue has the item. A task's catalogue says
which numbers the keys have; ratings of items that it does not have take no part in that task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from device_runtime.store.database import Database
from device_runtime.store.store import Store
from odp import _validate
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError
from odp.identity import LabelledItems, integer_of
from odp.protocol.catalogues.catalogue import Catalogue, NumberedKeys
from odp.protocol.catalogues.step import check_keys
from odp.v1 import common_pb2

#: Keys among which the nearest one is looked for.
_COMPARED = 10_000

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings


def rate(store: Store, item: int | str, value: float) -> None:
    """Sets the device's rating of an item by its key, or by its number.

    Raises:
      ConfigurationError: ``item`` is no number from 0, and can be no key.
    """
    if not isinstance(item, str):
        _validate.integer(low=0, high=2**31 - 1, item=item)
        store.rate(item, value)
        return
    check_keys([item], name="item")
    with store.transaction():
        store.execute("INSERT OR REPLACE INTO keyed_ratings (key, value) VALUES (?, ?)", (item, value))


def own_catalogue(catalogue: Catalogue | Path | str) -> Catalogue:
    """A catalogue, or that of a file. Raises DataError."""
    return catalogue if isinstance(catalogue, Catalogue) else Catalogue.load(catalogue)


def require_item(catalogue: Catalogue, item: object) -> None:
    """Raises ConfigurationError unless ``item`` is a key of the catalogue: its rating would never take part."""
    if isinstance(item, str) and item in catalogue.numbers:
        return
    which = f"version {catalogue.version} of the catalogue of {catalogue.population!r}"
    if not isinstance(item, str):
        raise ConfigurationError(
            f"Expected item={item!r} to be a key of {which}, such as {catalogue.keys[0]!r}: a number names no item"
        )
    near = _validate.nearest(item, catalogue.keys[:_COMPARED])
    raise ConfigurationError(
        f"Expected item={item[:80]!r} to be in {which}, whose {catalogue.items} items do not have it{near}"
    )


def ratings_by_key(database: Database) -> dict[str, float]:
    """What the person rated by key, ascending. Raises StateError where the store cannot be read."""
    return dict(database.all("SELECT key, value FROM keyed_ratings ORDER BY key"))


def _named(database: Database, *, most: int = -1) -> dict[str, float]:
    """Ratings by the key of a catalogue: the person's own, and for other items those of the data set."""
    return dict(
        database.all(
            "SELECT key, value FROM keyed_ratings UNION ALL SELECT key, value FROM ratings "
            "WHERE key IS NOT NULL AND key NOT IN (SELECT key FROM keyed_ratings) ORDER BY key LIMIT ?",
            (most,),
        )
    )


def numbered_ratings(database: Database, catalogue: NumberedKeys, *, most: int = -1) -> LocalRows:
    """The ratings of the items of a catalogue, by number ascending; of the first ``most`` keys, or of all.

    Args:
      database: a device's store.
      catalogue: has the number of each item, by its key.

    Raises:
      StateError: the store cannot be read.
    """
    rated = _named(database, most=most)
    items, values = catalogue.places(list(rated)), np.array(list(rated.values()), dtype=np.float64)
    order = np.argsort(items)
    order = order[items[order] >= 0]
    return LocalRows(items[order], values[order], unread=len(items) - len(order))


def ratings_left_out(store: Store, definition: common_pb2.TaskDefinition, catalogue: NumberedKeys | None) -> int:
    """How many of the device's own ratings take no part in a model of items, since it does not know their items.

    Args:
      store: of the device.
      definition: of the model's task.
      catalogue: that the task names; None where it knows items by number, and ratings by key take no part.

    Raises:
      StateError: the store cannot be read.
    """
    if not any(table.of_ratings for table in algorithm_for(definition).local_data):
        return 0
    if catalogue is None:
        return int((store.ratings().items >= definition.model.items).sum()) + len(ratings_by_key(store))
    (numbers,) = store.first("SELECT count(*) FROM ratings WHERE key IS NULL") or (0,)
    return int(numbers) + int((catalogue.places(list(_named(store))) < 0).sum())


def ratings_by_id(database: Database, *, labels: Sequence[str] = (), most: int = -1) -> LocalRows:
    """All ratings, with the whole number that is the id of each item; -1 where its id is none of 64 bits.

    With ``labels``, items are the places of their ids among these; -1 where an id is none of them.

    The id of an item is its key, or what the data set that filled the store calls it. A number that an app gave is an
    id by itself, but not in a store whose numbers are places in a data set. Of two ratings of one id, the one by number
    counts. The first ``most`` rows by number and then by key, or all.

    Raises:
      StateError: the store cannot be read.
    """
    named = "coalesce(id, iif((SELECT count(id) FROM ratings) = 0, CAST(item AS TEXT), ''))"
    rows = database.all(f"SELECT {named}, value FROM ratings ORDER BY item LIMIT ?", (most,))
    left = most if most < 0 else most - len(rows)
    rows += database.all("SELECT key, value FROM keyed_ratings ORDER BY key LIMIT ?", (left,))
    texts = [text for text, _ in rows]
    if labels:
        items = LabelledItems(labels).places(texts)
    else:
        numbers = (integer_of(text) for text in texts)
        items = np.array([-1 if number is None else number for number in numbers], dtype=np.int64)
    values = np.array([value for _, value in rows], dtype=np.float64)
    _, first = np.unique(items, return_index=True)
    distinct = items < 0
    distinct[first] = True
    return LocalRows(items[distinct], values[distinct])


def fill_ratings(store: Store, data: Ratings, user: int, *, keys: Sequence[str] | None, filled_from: bytes) -> bool:
    """As ``Store.fill``, with the ratings of one user of a data set, and what their items are called.

    A store that an earlier version filled with the same data gets the names.

    Args:
      store: of the device.
      data: the data set.
      user: whose ratings it gets.
      keys: of all items in a catalogue, ``odp.datasets.catalogue_keys``; None where they have none.
      filled_from: as of ``Store.fill``.

    Raises:
      StateError: it holds other data.
    """
    items, values = data.user(user)
    ids = data.ids_of(items)
    with store.transaction():
        filled = store.fill(items, values, filled_from=filled_from)
        for column, names in (("id", ids), ("key", None if keys is None else [keys[item] for item in items.tolist()])):
            lacking = f"SELECT 1 FROM ratings WHERE {column} IS NULL LIMIT 1"
            if names is not None and (filled or store.first(lacking) is not None):
                rows = list(zip(names, items.tolist(), strict=True))
                store.execute_many(f"UPDATE ratings SET {column} = ? WHERE item = ? AND {column} IS NULL", rows)
    return filled

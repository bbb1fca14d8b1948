"""Keys of items: by them two data sets are matched, and a data set is brought to the numbers of a catalogue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError
from odp.identity import normal

if TYPE_CHECKING:
    from odp.protocol.catalogues.catalogue import Catalogue

Users = TypeVar("Users")


def catalogue_keys(ratings: Ratings) -> tuple[str, ...]:
    """A key for each item, distinct: its title, or its id where there are no titles.

    A title that stands again gets its place among its like, as in "Kim (1950) #2". Keys are in the normal form C, as
    those of a catalogue. No rating is read.

    Raises:
      DataError: the data set has neither titles nor ids.
    """
    if ratings.titles is not None:
        named = [normal(title) or "untitled" for title in ratings.titles]
    elif ratings.item_ids is not None:
        named = [normal(str(key)) for key in ratings.item_ids.tolist()]
    else:
        raise DataError(f"the data set {ratings.name!r} has no keys of items: no titles and no ids")
    taken = set(named)
    uses: dict[str, int] = {}
    keys = []
    for name in named:
        uses[name] = uses.get(name, 0) + 1
        key = name
        while uses[name] > 1 and (key := f"{name} #{uses[name]}") in taken:
            uses[name] += 1
        taken.add(key)
        keys.append(key)
    return tuple(keys)


def has_keys(ratings: Ratings) -> bool:
    """Whether ``catalogue_keys`` finds any."""
    return ratings.titles is not None or ratings.item_ids is not None


def numbered_by(ratings: Ratings, catalogue: Catalogue) -> Ratings:
    """The same ratings by the item numbers of ``catalogue``; ``notes`` counts those of items that it does not have.

    A data set without keys knows its items by the catalogue's numbers already.

    Raises:
      DataError: the catalogue has none of the items, or a data set without keys has another number of items.
    """
    if not has_keys(ratings):
        if ratings.n_items != catalogue.items:
            raise DataError(
                f"the data set {ratings.name!r} has {ratings.n_items} items without keys, and the catalogue of "
                f"{catalogue.population!r} {catalogue.items}: give the data whose items the catalogue has"
            )
        return ratings
    if (keys := catalogue_keys(ratings)) == catalogue.keys:
        return ratings
    numbers = catalogue.places(keys)
    in_catalogue = numbers >= 0
    if not in_catalogue.any():
        raise DataError(
            f"no item of the data set {ratings.name!r}, such as {keys[0]!r}, is in the catalogue of "
            f"{catalogue.population!r}, which has items such as {catalogue.keys[0]!r}: give the data or the catalogue "
            "that belong together"
        )
    mine = ratings.take(in_catalogue[ratings.items])
    items = numbers[mine.items]
    rows = np.lexsort((items, mine.users()))
    lost = ratings.n_ratings - mine.n_ratings
    note = _left_out(int((~in_catalogue).sum()), lost, catalogue)
    places = np.full(catalogue.items, -1, dtype=np.int64)
    places[numbers[in_catalogue]] = np.flatnonzero(in_catalogue)
    ids = None
    if mine.item_ids is not None:
        item_ids = [str(identifier) for identifier in mine.item_ids.tolist()]
        ids = np.array(
            [item_ids[place] if place >= 0 else key for place, key in zip(places, catalogue.keys, strict=True)]
        )
    return replace(
        mine,
        items=items[rows].astype(np.int32),
        values=mine.values[rows],
        order=None if mine.order is None else mine.order[rows],
        times=None if mine.times is None else mine.times[rows],
        n_items=catalogue.items,
        titles=None if mine.titles is None else catalogue.keys,
        item_ids=ids,
        features=None if mine.features is None else np.where(places[:, None] < 0, 0, mine.features[places]),
        notes=(*mine.notes, note) if not in_catalogue.all() else mine.notes,
        inferred=tuple(name for name in mine.inferred if name != "items"),
        duplicates=ratings.duplicates,
    )


def numbered_users(users: Users, catalogue: Catalogue | None) -> Users:
    """Ratings, or the parts of a split, by the item numbers of a catalogue; other data, or without one, as they are.

    Raises:
      DataError: as :func:`numbered_by`.
    """
    if catalogue is None or not isinstance(users, (Ratings, Split)):
        return users
    numbered = numbered_by(users, catalogue) if isinstance(users, Ratings) else _numbered_parts(users, catalogue)
    return cast("Users", numbered)


def _numbered_parts(split: Split, catalogue: Catalogue) -> Split:
    """As of :func:`numbered_by`; ``notes`` count what all parts lose together."""
    parts = (split.train, split.validation, split.test)
    numbered = [numbered_by(part, catalogue) for part in parts]
    lost = sum(part.n_ratings - mine.n_ratings for part, mine in zip(parts, numbered, strict=True))
    if not lost:
        return Split(*numbered)
    note = _left_out(int((catalogue.places(catalogue_keys(split.train)) < 0).sum()), lost, catalogue)
    return Split(*(replace(mine, notes=(*part.notes, note)) for part, mine in zip(parts, numbered, strict=True)))


def _left_out(items: int, ratings: int, catalogue: Catalogue) -> str:
    return (
        f"{items:,} items, with {ratings:,} ratings, are left out: catalogue version {catalogue.version} of "
        f"{catalogue.population!r} does not have them"
    )

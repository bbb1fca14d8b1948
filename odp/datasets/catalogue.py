"""Keys by which the items of two data sets are matched."""

from __future__ import annotations

from odp.datasets.ratings import Ratings
from odp.errors import DataError


def catalogue_keys(ratings: Ratings) -> tuple[str, ...]:
    """A key for each item, distinct: its title, or its id where there are no titles.

    A title that stands again gets its place among its like, as in "Kim (1950) #2". No rating is read.

    Raises:
      DataError: the data set has neither titles nor ids.
    """
    if ratings.titles is not None:
        named = [title or "untitled" for title in ratings.titles]
    elif ratings.item_ids is not None:
        named = [str(key) for key in ratings.item_ids.tolist()]
    else:
        raise DataError(f"the data set {ratings.name!r} has no keys of items: no titles and no ids")
    taken = set(named)
    seen: dict[str, int] = {}
    keys = []
    for name in named:
        seen[name] = seen.get(name, 0) + 1
        key = name
        while seen[name] > 1 and (key := f"{name} #{seen[name]}") in taken:
            seen[name] += 1
        taken.add(key)
        keys.append(key)
    return tuple(keys)

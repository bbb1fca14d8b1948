"""Titles of items by the ids that their file gives them: a row of the file says nothing.

=======================================  ==============================================================================
file or data set                         title of an item
=======================================  ==============================================================================
.csv or .jsonl with a column ``item``    of ``title``, or of the only other column; the key stands in ``item``
a table of ratings                       of its column of titles (``title=``), or else its id
MovieLens and other known forms          its title; items are found by id or by ``catalogue_keys``
=======================================  ==============================================================================
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.columns import is_usual
from odp.datasets.item_texts import KEY, ItemTexts
from odp.datasets.registry import load_reading
from odp.errors import DataError
from odp.identity import normal

_TITLE = "title"
_LONGEST_HEAD = 2**16


@dataclass(frozen=True, repr=False)
class ItemTitles:
    """Titles by key.

    Attributes:
      source: what messages call the file.
      spellings: (key -> title) by each kind of key that the file has; the kind that a model has counts.
      numbers: titles of a data set whose items have numbers and no ids, in their order; None for all others.
    """

    source: str
    spellings: tuple[Mapping[str, str], ...]
    numbers: Sequence[str] | None = field(default=None)

    def __repr__(self) -> str:
        """Sizes only."""
        return f"ItemTitles({self.source!r}, {max(map(len, self.spellings), default=0)} items)"

    @classmethod
    def load(cls, source: str, columns: Mapping[str, Any] | None = None) -> ItemTitles:
        """The titles of a file or a data set, see the module.

        Args:
          source: a path, or a name that ``odp.load`` knows.
          columns: further arguments of ``odp.load`` for a table of ratings.

        Raises:
          DataError, ConfigurationError: it cannot be read.
        """
        path = Path(source).expanduser()
        if not columns and _is_list_of_texts(path):
            texts = ItemTexts.read(path)
            name = _TITLE if _TITLE in texts.columns else next(iter(texts.columns))
            if name != _TITLE and len(texts.columns) > 1:
                raise DataError(f"{path}: expected a column {_TITLE!r} beside {KEY!r} (got {', '.join(texts.columns)})")
            return cls(source, ({normal(key): text for key, text in texts.columns[name].items() if text.strip()},))
        reading, ratings = load_reading(source, titles=True, **(columns or {}))
        numbers = None
        if ratings.item_ids is None:
            # The items of such a data set are numbers: these are its ids.
            numbers = [ratings.item_name(item) for item in range(ratings.n_items)]
        if not has_keys(ratings):
            return cls(source, (), numbers)
        keys = catalogue_keys(ratings)
        if reading is not None:
            titles = keys if reading.titles is None else reading.titles
            return cls(source, ({key: title for key, title in zip(keys, titles, strict=True) if title},))
        spellings = [dict(zip(keys, keys, strict=True))]
        if ratings.item_ids is not None:
            spellings.append(dict(zip(map(str, ratings.item_ids.tolist()), keys, strict=True)))
        return cls(source, tuple(spellings), numbers)

    def of_model(self, keys: Iterable[str] | None, items: int, *, task: str) -> NamedItems:
        """The titles of a model's items.

        Args:
          keys: of all items of the model, in the order of their numbers; None where its task names no catalogue.
          items: how many they are.
          task: what messages call the model.

        Raises:
          DataError: the file is of other items, or knows them by ids that the model does not have.
        """
        if keys is None:
            return NamedItems(*self._by_number(items, task))
        wanted = [*keys]
        titles = max(self.spellings, key=lambda spelling: sum(key in spelling for key in wanted), default={})
        missing = sum(key not in titles for key in wanted)
        if missing == len(wanted):
            example = next(iter(titles), None)
            such = f"has items such as {example!r}" if example is not None else "has no ids of items"
            raise DataError(
                f"--titles {self.source} {such}, and the items of task {task!r} are such as {wanted[0]!r}: no item has "
                "a title there; give the file of the items that the catalogue has"
            )
        return NamedItems({key: titles.get(key, key) for key in wanted}, missing)

    def _by_number(self, items: int, task: str) -> tuple[dict[str, str], int]:
        numbers = [str(number) for number in range(items)]
        if self.numbers is not None and len(self.numbers) == items:
            return dict(zip(numbers, self.numbers, strict=True)), 0
        have = f"{len(self.numbers)} items" if self.numbers is not None else "items with ids of their own"
        raise DataError(
            f"--titles {self.source} has {have}, and task {task!r} knows its {items} items by number alone, which says "
            "nothing of this file's: name a catalogue in the task (`odp init` makes one), and titles are found by key"
        )


@dataclass(frozen=True, repr=False)
class NamedItems:
    """``titles`` by the key of each item of a model, or by its number as text; ``missing`` is how many have none.

    An item without a title is called by its key.
    """

    titles: Mapping[str, str]
    missing: int

    def names(self, items: Iterable[int | str]) -> tuple[str, ...]:
        """What to call items, by key or number."""
        return tuple(self.titles[str(item)] for item in items)


def _is_list_of_texts(path: Path) -> bool:
    """Whether the first line of a file names items and no users."""
    if path.suffix.lower() not in (".csv", ".jsonl") or not path.is_file():
        return False
    with path.open("rb") as file:
        line = file.readline(_LONGEST_HEAD).decode("utf-8-sig", errors="replace").strip()
    if path.suffix.lower() == ".csv":
        names = next(csv.reader([line]), [])
    else:
        try:
            first = json.loads(line)
        except ValueError:
            return False
        names = list(first) if isinstance(first, dict) else []
    return KEY in names and not any(is_usual("user", name) for name in names)

"""Public texts of items from a file of one's own: titles, descriptions, tags.

=========  ========================================================================================================
ending     form
=========  ========================================================================================================
.csv       a header line; the column ``item`` has the key, every other column is a text
.jsonl     one object per line: ``"item"`` is the key, every other value is a text or a list of texts (tags)
=========  ========================================================================================================

Both are UTF-8, and are read without Apache Arrow: devices show titles, and have none. A key is the item's id in the
data set, as text; its number where the data set has no ids. Items that the file leaves out have no text. Images are
not read: give their embeddings as a group of ``item_features``.

Titles of items by the ids that their file gives them: a row of the file says nothing.

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
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odp._validate import nearest
from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.columns import is_usual
from odp.datasets.json_tables import DoubledKey, distinct_keys
from odp.datasets.ratings import Ratings
from odp.datasets.registry import load_reading
from odp.errors import DataError
from odp.identity import normal

KEY = "item"
#: Bytes of a file; texts of a larger catalogue need columns of their own making.
LARGEST_FILE = 2**28
MOST_COLUMNS = 8
# Keys among which a similar one is looked for.
_COMPARED = 10_000


@dataclass(frozen=True, repr=False)
class ItemTexts:
    """Texts of items by key, a column each for titles, tags and so on.

    Attributes:
      columns: (key -> text) by the column's name; an item without a text there is left out.
      source: what messages call it, such as the file.

    Raises:
      DataError: there is no column or more than 8, or a column has no text.
    """

    columns: Mapping[str, Mapping[str, str]]
    source: str = field(default="item texts")

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MOST_COLUMNS:
            raise DataError(
                f"{self.source}: expected 1 to {MOST_COLUMNS} columns of texts beside {KEY!r} (got {len(self.columns)})"
            )
        for name, texts in self.columns.items():
            if not any(text.strip() for text in texts.values()):
                raise DataError(f"{self.source}: the column {name!r} has no text; remove it")

    def __repr__(self) -> str:
        return f"ItemTexts({ {name: len(texts) for name, texts in self.columns.items()} })"

    @classmethod
    def read(cls, path: str | Path) -> ItemTexts:
        """The texts of a .csv or .jsonl file, see the module.

        Raises:
          DataError: the file is missing, larger than 256 MiB, not UTF-8, or malformed; a key is empty or stands twice;
            or an item has no text at all. The message has file and line.
        """
        path = Path(path)
        if (rows := {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix.lower())) is None:
            raise DataError(f"{path}: expected texts of items in a .csv or .jsonl file")
        columns: dict[str, dict[str, str]] = {}
        lines: dict[str, int] = {}
        for line, key, texts in rows(path, _content(path)):
            where = f"{path}:{line}"
            if not key:
                raise DataError(f"{where}: the key {KEY!r} is empty; give the item's id")
            if lines.setdefault(normal(key), line) != line:
                raise DataError(f"{where}: item {key!r} stands in line {lines[normal(key)]} already; keep one of them")
            if not any(text.strip() for text in texts.values()):
                raise DataError(f"{where}: item {key!r} has no text; give one, or remove the line")
            for name, text in texts.items():
                columns.setdefault(name, {})[key] = text
        if not lines:
            raise DataError(f"{path}: no item; expected a line for each")
        return cls(columns, str(path))

    def of(self, ratings: Ratings) -> dict[str, list[str]]:
        """The texts of a data set's items, in the order of their numbers, by column; "" for those left out.

        Raises:
          DataError: a key is that of no item of the data set; the message names it.
        """
        keys = item_text_keys(ratings)
        valid_keys = set(keys)
        text_keys = dict.fromkeys(key for texts in self.columns.values() for key in texts)
        unknown = [key for key in text_keys if key not in valid_keys]
        if unknown:
            first = unknown[0]
            more = f", and {len(unknown) - 1} more," if len(unknown) > 1 else ""
            raise DataError(
                f"{self.source}: item {first!r}{more} is not in the catalogue of {ratings.name!r}, which has items "
                f"such as {keys[0]!r}{nearest(first, keys[:_COMPARED])}; remove the line, or give the item's id"
            )
        return {name: [texts.get(key, "") for key in keys] for name, texts in self.columns.items()}


def item_text_keys(ratings: Ratings) -> list[str]:
    """What a file of texts calls each item: its id as text, or its number where there are no ids."""
    return [str(key) for key in (range(ratings.n_items) if ratings.item_ids is None else ratings.item_ids.tolist())]


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: larger than {LARGEST_FILE} bytes; shorten the texts")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None


def _csv_rows(path: Path, content: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        head = next(reader, [])
        if KEY not in head or len(set(head)) < len(head) or not all(head):
            raise DataError(f"{path}:1: expected a header line of distinct names with {KEY!r} among them")
        at = head.index(KEY)
        for row in reader:
            if not row:
                continue
            if len(row) != len(head):
                raise DataError(f"{path}:{reader.line_num}: expected {len(head)} fields (got {len(row)})")
            texts = {name: text for place, (name, text) in enumerate(zip(head, row, strict=True)) if place != at}
            yield reader.line_num, row[at].strip(), texts
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def _json_rows(path: Path, content: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line, object_pairs_hook=distinct_keys)
        except DoubledKey as error:
            raise DataError(f"{where}: {error}; keep one of them") from None
        except (ValueError, RecursionError):
            raise DataError(f"{where}: not JSON; expected one object per line") from None
        if not isinstance(record, dict) or not isinstance(record.get(KEY), (str, int)) or isinstance(record[KEY], bool):
            raise DataError(f"{where}: expected an object with the item's id as {KEY!r}")
        texts = {name: _joined(value, f"{where}: {name!r}") for name, value in record.items() if name != KEY}
        yield number, str(record[KEY]).strip(), texts


def _joined(value: object, where: str) -> str:
    """A text, or a list of texts, as one text; null is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " | ".join(value)
    raise DataError(f"{where}: expected a text or a list of texts")


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
        if (missing := sum(key not in titles for key in wanted)) == len(wanted):
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

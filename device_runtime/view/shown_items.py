"""Recommendations and predictions as their person sees them: lines of a terminal, and a part of the person's page.

No app gets these as values: a device prints them and puts them on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odp.datasets.item_texts import ItemTitles, NamedItems
from odp.protocol.catalogues.catalogue import Catalogue
from odp.v1 import common_pb2


@dataclass(frozen=True, repr=False)
class ShownItems:
    """Items or examples in words.

    Attributes:
      head: what the second column is: a predicted value, a score, or a prediction.
      rows: (item, its value, why: own items and what they add, or nothing), best first.
      notes: what to know of them.
      title: above them.
      what: head of the first column.
      ranked: whether the order says which is better, so that each has its rank.
    """

    head: str
    rows: tuple[tuple[str, str, str], ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    title: str = "Recommended to you"
    what: str = "item"
    ranked: bool = True

    def lines(self) -> list[str]:
        """For a terminal."""
        wide = max((len(name) for name in (self.what, *(name for name, _, _ in self.rows))), default=0)
        lines = [f"note: {note}" for note in self.notes]
        if self.rows:
            lines.append(f"{'':>3}  {self.what:<{wide}}  {self.head}")
        for rank, (name, value, because) in enumerate(self.rows, start=1):
            lines.append(f"{rank if self.ranked else '':>3}  {name:<{wide}}  {value}")
            lines += [f"{'':>5}{BECAUSE} {because}"] if because else []
        return lines


#: Before the own items that move a prediction.
BECAUSE = "because of"


def write_lines(lines: Sequence[str]) -> None:
    """Writes lines to stdout; characters that it does not have are written as their numbers."""
    text, encoding = "".join(f"{line}\n" for line in lines), sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    sys.stdout.flush()


def titles_of(
    titles: Path | str | None, definition: common_pb2.TaskDefinition, catalogue: Catalogue | None
) -> NamedItems | None:
    """The titles of a model's items, of a file; None without one. Raises DataError as ``odp.datasets.item_texts``."""
    if titles is None:
        return None
    keys = None if catalogue is None else catalogue.keys
    return ItemTitles.load(str(titles)).of_model(keys, definition.model.items, task=definition.name)


def left_out_note(count: int) -> str:
    """Says how many own ratings a model has no item for."""
    return (
        f"{count:,} of your own ratings take no part: the model does not have their items, or knows items by other ids"
    )


def untitled_note(count: int) -> str:
    """Says how many items a file of titles lacks."""
    return f"{count:,} items of the model have no title, and are called by their keys"

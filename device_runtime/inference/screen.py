"""Recommendations as their person sees them: lines of a terminal, and a part of the person's page.

No app gets these as values: a device prints them and puts them on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.inference.recommend import DownloadedModel, Recommendation
from odp.datasets.item_titles import ItemTitles


@dataclass(frozen=True, repr=False)
class ShownItems:
    """Items in words.

    Attributes:
      head: what the second column is: a predicted value, or a score.
      rows: (item, its value), best first.
      notes: what to know of them.
    """

    head: str
    rows: tuple[tuple[str, str], ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Recommendation, titles: Mapping[str, str], *, offline: str | None = None) -> ShownItems:
        """``found`` by title, else by key or number; ``offline`` says why the model may be outdated."""
        notes = [] if offline is None else [offline]
        if found.left_out:
            notes.append(left_out_note(found.left_out))
        if not len(found.items):
            notes.append("there is nothing to recommend: you have rated every item")
        names = [titles.get(str(name), str(name)) for name in found.names]
        return cls(
            "predicted value" if found.values else "score",
            tuple((name, f"{score:.2f}") for name, score in zip(names, found.scores.tolist(), strict=True)),
            tuple(notes),
        )

    def lines(self) -> list[str]:
        """For a terminal."""
        wide = max((len(name) for name, _ in self.rows), default=0)
        rows = [f"{rank:>3}  {name:<{wide}}  {value}" for rank, (name, value) in enumerate(self.rows, start=1)]
        return [
            *(f"note: {note}" for note in self.notes),
            *([f"{'':>3}  {'item':<{wide}}  {self.head}"] if rows else []),
            *rows,
        ]


def write_lines(lines: Sequence[str]) -> None:
    """Writes lines to stdout; characters that it does not have are written as their numbers."""
    text, encoding = "".join(f"{line}\n" for line in lines), sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    sys.stdout.flush()


def named_items(titles: Path | str | None, downloaded: DownloadedModel) -> Mapping[str, str]:
    """The titles of a model's items by key or number, of a file; none without one. Raises DataError."""
    if titles is None:
        return {}
    definition, catalogue = downloaded.model.definition, downloaded.catalogue
    keys = None if catalogue is None else catalogue.keys
    return ItemTitles.load(str(titles)).of_model(keys, definition.model.items, task=definition.name).titles


def left_out_note(count: int) -> str:
    """Says how many own ratings a model has no item for."""
    return (
        f"{count:,} of your own ratings take no part: the model does not have their items, or knows items by other ids"
    )

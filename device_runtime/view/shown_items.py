"""Recommendations as their person sees them: lines of a terminal, and a part of the person's page.

No app gets these as values: a device prints them and puts them on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from odp.datasets.item_texts import ItemTitles, NamedItems
from odp.numerics.arrays import Float64Array
from odp.protocol.catalogues.catalogue import Catalogue
from odp.v1 import common_pb2


class Best(Protocol):
    """Recommendations as a device finds them; ``device_runtime.Recommendation`` is such."""

    @property
    def names(self) -> Sequence[int | str]:
        """The key of each item, or its number where there is none."""

    @property
    def scores(self) -> Float64Array:
        """Their predictions."""

    @property
    def values(self) -> bool:
        """Whether scores are values of the declared range."""

    @property
    def left_out(self) -> int:
        """Own ratings whose items the model does not know."""

    @property
    def reasons(self) -> Sequence[Sequence[tuple[int | str, float]]] | None:
        """For each item the own ones that move its prediction most, by key or number, and by how much."""


@dataclass(frozen=True, repr=False)
class ShownItems:
    """Items in words.

    Attributes:
      head: what the second column is: a predicted value, or a score.
      rows: (item, its value, why: own items and what they add, or nothing), best first.
      notes: what to know of them.
    """

    head: str
    rows: tuple[tuple[str, str, str], ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, best: Best, named: NamedItems | None, *, offline: str | None = None) -> ShownItems:
        """``best`` by title, else by key or number; ``offline`` says why the model may be outdated."""
        notes = [] if offline is None else [offline]
        if best.left_out:
            notes.append(left_out_note(best.left_out))
        if named is not None and named.missing:
            notes.append(untitled_note(named.missing))
        if not len(best.scores):
            notes.append("there is nothing to recommend: you have rated every item")
        names = map(str, best.names) if named is None else named.names(best.names)
        why = reasons_in_words(best, named) or [""] * len(best.scores)
        return cls(
            "predicted value" if best.values else "score",
            tuple(
                (name, f"{score:.2f}", because)
                for name, score, because in zip(names, best.scores.tolist(), why, strict=True)
            ),
            tuple(notes),
        )

    def lines(self) -> list[str]:
        """For a terminal."""
        wide = max((len(name) for name, _, _ in self.rows), default=0)
        lines = [f"note: {note}" for note in self.notes]
        if self.rows:
            lines.append(f"{'':>3}  {'item':<{wide}}  {self.head}")
        for rank, (name, value, because) in enumerate(self.rows, start=1):
            lines.append(f"{rank:>3}  {name:<{wide}}  {value}")
            lines += [f"{'':>5}{BECAUSE} {because}"] if because else []
        return lines


#: Before the own items that move a prediction.
BECAUSE = "because of"


def reasons_in_words(best: Best, named: NamedItems | None) -> list[str] | None:
    """For each item "A (+0.31), B (-0.12)", by title, else by key or number; None where nobody asked for it."""
    if best.reasons is None:
        return None
    return [
        ", ".join(f"{item if named is None else named.names([item])[0]} ({added:+.2f})" for item, added in of_item)
        for of_item in best.reasons
    ]


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

"""The catalogue of a data set of one's own, and the files of it that stand beside a task file."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.item_texts import KEY
from odp.datasets.ratings import Ratings
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.catalogues.catalogue import Catalogue
from odp.tasks.text import task_text

if TYPE_CHECKING:
    from odp.datasets.tables import TableReading
    from odp.tasks.task import Task

CATALOGUE_FILE = "items.catalogue"
TITLES_FILE = "titles.csv"
TASK_FILE = "task.toml"


@dataclasses.dataclass(frozen=True)
class OwnTask:
    """A task for a data set.

    Attributes:
      task: it names the catalogue of the items, where these have keys.
      titles: of the items by key, in the order of their numbers; empty where the data have none.
    """

    task: Task
    titles: tuple[tuple[str, str], ...] = ()

    @property
    def catalogue(self) -> Catalogue | None:
        """What the task names."""
        model = self.task.model
        return model.catalogue if isinstance(model, MatrixFactorization) else None

    def files(self) -> tuple[str, ...]:
        """What ``write`` writes."""
        have = {TASK_FILE: True, CATALOGUE_FILE: self.catalogue is not None, TITLES_FILE: bool(self.titles)}
        return tuple(name for name, is_there in have.items() if is_there)

    def write(self, folder: Path, *, comment: str) -> list[Path]:
        """Writes the task file, its catalogue and the titles into a folder that exists; returns their paths.

        Raises:
          OSError, StateError: a file cannot be written.
        """
        written = [folder / name for name in self.files()]
        if self.catalogue is not None:
            self.catalogue.save(folder / CATALOGUE_FILE)
        if self.titles:
            with (folder / TITLES_FILE).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([(KEY, "title"), *self.titles])
        text = task_text(self.task, comment=comment, files={"catalogue": CATALOGUE_FILE})
        (folder / TASK_FILE).write_text(text, encoding="utf-8", newline="\n")
        return written


def own_task(task: Task, ratings: Ratings, reading: TableReading | None, *, name: str) -> OwnTask:
    """``task`` by another name, with the catalogue of the items of ``ratings``, where these have keys.

    Raises:
      ConfigurationError: the name is none, or an id of an item can be no key of a catalogue.
    """
    model = task.factorization
    if not has_keys(ratings):
        return OwnTask(dataclasses.replace(task, name=name, population=""))
    keys = catalogue_keys(ratings)
    catalogue = Catalogue.make(name, keys)
    named = dataclasses.replace(task, name=name, population=name, model=dataclasses.replace(model, catalogue=catalogue))
    return OwnTask(named, _titles(keys, reading))


def _titles(keys: Sequence[str], reading: TableReading | None) -> tuple[tuple[str, str], ...]:
    if reading is None or reading.titles is None:
        return ()
    return tuple((key, title) for key, title in zip(keys, reading.titles, strict=True) if title)

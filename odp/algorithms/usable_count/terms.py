"""The numbers of one count of usable rows, read from its definition and checked: for every party.

The definition has what a training reads, and nothing of how it trains. Rows are read and judged by the functions that
the training's own client calls, so that a vote and a training cannot differ.

The four places of a vote. A device's vote follows from two numbers: its stored rows, and those that are usable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.records import check_question
from odp.algorithms.factorization.slices import MOST_ITEMS, own_table
from odp.algorithms.federated.reading import examples_table, usable_rows
from odp.algorithms.seam import LocalRows, LocalTable
from odp.errors import ConfigurationError
from odp.models.examples import ExamplesTerms
from odp.models.local_training import LocalTraining
from odp.models.trained import TrainedModel, model_of
from odp.numerics.arrays import Int64Array
from odp.v1 import common_pb2

#: What each place counts, in the order of a vector.
NO_ROWS, NONE, SOME, ALL = range(4)
SIZE = 4
#: By place: the key in JSON, and what people read.
KEYS = ("no_rows", "none_usable", "some_usable", "all_usable")
WORDS = (
    "have no rows that the task reads",
    "have rows of which none is usable",
    "have rows of which some are usable",
    "have rows of which all are usable",
)


def places_of(stored: npt.ArrayLike, usable: npt.ArrayLike) -> Int64Array:
    """The place of each vote, int64 [users]: of ``stored`` rows of a user, ``usable`` ones can be trained on.

    >>> places_of([0, 3, 3, 3], [0, 0, 2, 3]).tolist()
    [0, 1, 2, 3]
    """
    rows, used = np.asarray(stored, dtype=np.int64), np.asarray(usable, dtype=np.int64)
    return np.select([rows <= 0, used <= 0, used < rows], [NO_ROWS, NONE, SOME], default=ALL).astype(np.int64)


TRAINING = "usable_count"
RELEASE = "devices"
_LEAST_RANGE = 1e-9


@dataclass(frozen=True)
class OfExamples:
    """Labelled examples, as federated training reads them."""

    model: TrainedModel
    examples: ExamplesTerms
    work: LocalTraining

    @property
    def table(self) -> LocalTable:
        """What a device reads."""
        return examples_table(self.examples, most_rows=self.work.most_rows)

    def usable(self, rows: LocalRows) -> int:
        """How many of a device's rows a training could use."""
        return len(usable_rows(self.model, self.examples, rows.last(self.work.most_rows))[1])


@dataclass(frozen=True)
class OfItems:
    """Ratings or things that happened, as the trainings of a factorization read them."""

    table: LocalTable
    items: int
    values: tuple[float, float] | None

    def usable(self, rows: LocalRows) -> int:
        """How many of a device's rows a training could use."""
        return len(rows.within(items=self.items, values=self.values).items)


@dataclass(frozen=True)
class Terms:
    """An ``odp.v1.UsableCount``, checked."""

    reads: OfExamples | OfItems
    grid: Grid

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: another task, or a field is missing, out of range, or of training.
        """
        check_question(definition, TRAINING, reads_model=True)
        written = definition.usable_count
        of_items = definition.WhichOneof("local_data") in ("data", "implicit")
        reads = _of_items(definition) if of_items else _of_examples(definition)
        _validate.within(low=1.0, high=1.0, clip=written.dense.clip)
        return cls(reads, Grid.of(written.dense, definition.cohort, size=SIZE))

    @property
    def model(self) -> TrainedModel | None:
        """That would be trained; None of items, which a count knows by number alone."""
        return self.reads.model if isinstance(self.reads, OfExamples) else None

    @property
    def most_examples(self) -> int:
        """The training's cap; 0 of items."""
        return self.reads.work.most_examples if isinstance(self.reads, OfExamples) else 0

    def place(self, rows: LocalRows) -> int:
        """Where a device with these rows votes."""
        stored = len(rows.values) + rows.unread
        return int(places_of(stored, self.reads.usable(rows)))


def _of_examples(definition: common_pb2.TaskDefinition) -> OfExamples:
    if definition.WhichOneof("local_data") != "examples":
        raise ConfigurationError(f"Expected task {definition.name!r} to have local data, whose usable rows it counts")
    examples = ExamplesTerms.of(definition.examples)
    model = model_of(definition).reading(examples)
    examples.check_label(model.classes_range)
    # Nothing is trained: the rate and the batch of this work are never read.
    work = LocalTraining(rate=1.0, batch=1, most_examples=definition.usable_count.most_examples)
    model.check_training(work)
    return OfExamples(model, examples, work)


def _of_items(definition: common_pb2.TaskDefinition) -> OfItems:
    if definition.WhichOneof("trained_model") != "rated_items":
        raise ConfigurationError(f"Expected task {definition.name!r} to name its items, whose rows it counts")
    _validate.integer(most_examples=definition.usable_count.most_examples, low=0, high=0)
    items = definition.rated_items.items
    _validate.integer(items=items, low=1, high=MOST_ITEMS)
    values = None
    if definition.WhichOneof("local_data") == "data":
        data = definition.data
        _validate.within(low=-1e6, high=1e6, data_low=data.low, data_high=data.high)
        if not data.high - data.low >= _LEAST_RANGE:
            raise ConfigurationError(f"Expected data.low={data.low!r} to be below data.high={data.high!r}")
        values = (data.low, data.high)
    table = own_table(definition, items=items)
    _validate.identifier(table=table.table)
    return OfItems(table, items, values)

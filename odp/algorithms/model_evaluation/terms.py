"""The numbers of one evaluation, read from its definition and checked: for every party.

Where each measurement stands in a user's vector, and the bound of the whole.

A user of half h has numbers in the places of that half alone:

===========  ==================  =======================================================  ==============
block        numbers             of a user                                                L2 bound
===========  ==================  =======================================================  ==============
users        1                   1                                                        1
means        models * scalars    mean over its examples, its range moved to [-1, 1]       1 each
squares      scalars, compared   half the square of its mean, or of half the difference   1/2 each
histograms   models * 2 bins     shares of its examples, which sum to 1                   1 per model
===========  ==================  =======================================================  ==============

``factor`` scales the whole to at most 1 in L2, with room for the rounding of every number up by one step: a vector is
then never cut, and the sums are unbiased.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.grid import MAX_SIZE, Grid
from odp.algorithms.dense.records import check_question
from odp.algorithms.federated.reading import usable_rows
from odp.algorithms.seam import LocalRows
from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.errors import ConfigurationError
from odp.models.examples import ExamplesTerms
from odp.models.local_training import MOST_EXAMPLES, ROWS_PER_EXAMPLE, LocalTraining
from odp.models.rated_items import CHOSEN, RatedItems
from odp.models.trained import TestedModel, tested_model_of
from odp.numerics.arrays import Float32Array, Int64Array, UInt64Array
from odp.v1 import common_pb2, model_evaluation_pb2

_SQUARE = 0.5


@dataclass(frozen=True)
class Layout:
    """The vector of a task.

    Attributes:
      halves: 2 where users are in one of two halves, else 1.
      models: evaluated on the same user.
      scalars: means of each model.
      bins: of the predicted probability; 0 for no histograms.
    """

    halves: int
    models: int
    scalars: int
    bins: int

    @property
    def compared(self) -> bool:
        """Whether two models are."""
        return self.halves * self.models == 2

    @property
    def squares(self) -> int:
        """Numbers for the spread over users."""
        return self.scalars if self.compared else 0

    @property
    def width(self) -> int:
        """Numbers of one half."""
        return 1 + self.models * (self.scalars + 2 * self.bins) + self.squares

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.halves * self.width

    @property
    def bound(self) -> float:
        """L2 bound of a vector before it is scaled."""
        histograms = self.models if self.bins else 0
        return math.sqrt(1 + self.models * self.scalars + _SQUARE**2 * self.squares + histograms)

    def factor(self, units: int) -> float:
        """What every number is multiplied by, where the bound is ``units`` steps of the grid."""
        return (1.0 - math.sqrt(self.size) / units) / self.bound

    def means(self, model: int) -> slice:
        """Of one model, within a half."""
        start = 1 + model * self.scalars
        return slice(start, start + self.scalars)

    @property
    def spread(self) -> slice:
        """The squares, within a half."""
        start = 1 + self.models * self.scalars
        return slice(start, start + self.squares)

    def histogram(self, model: int) -> slice:
        """With the label, then without, within a half."""
        start = 1 + self.models * self.scalars + self.squares + model * 2 * self.bins
        return slice(start, start + 2 * self.bins)


RELEASE = "measurements"
PARAMETERS = ("parameters", "parameters_b")
TRAINING = "model_evaluation"

MOST_TOPS, MOST_BINS = 16, 2**10
_LARGEST_LOSS = 1e9
#: Of items and contexts that a device computes scores of.
MOST_SCORES = 2**24
_EXAMPLES, _PREDICTIONS = 2**12, 2**20  # of a model at once: bounds memory


@dataclass(frozen=True)
class Scalar:
    """A number of each example, from ``low`` to ``high``: its loss, or whether its label is of the ``top`` likeliest.

    ``top`` is 0 for the loss. With ``ranked``, it is whether its item is among the first ``top`` of the ranking.
    """

    name: str
    low: float
    high: float
    top: int = 0
    ranked: bool = False

    @property
    def middle(self) -> float:
        """What becomes 0."""
        return 0.5 * (self.low + self.high)

    @property
    def half(self) -> float:
        """What becomes 1, from the middle."""
        return 0.5 * (self.high - self.low)


@dataclass(frozen=True)
class Personal:
    """Training on a part of a device's own examples, before both models are tested on the others."""

    training: LocalTraining
    held_out: float


@dataclass(frozen=True)
class Terms:
    """An ``odp.v1.ModelEvaluation``, checked. Devices test on ``examples``, or where there are none on ratings."""

    model: TestedModel
    examples: ExamplesTerms | None
    scalars: tuple[Scalar, ...]
    most_examples: int
    personal: Personal | None
    layout: Layout
    grid: Grid
    halves_key: np.uint64

    @property
    def local_training(self) -> LocalTraining:
        """Of personal models. Raises ConfigurationError where the task has none."""
        if self.personal is None:
            raise ConfigurationError("Expected a task with personal models")
        return self.personal.training

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: another task, or a field is missing, out of range, or of training.
        """
        check_question(definition, TRAINING, reads_model=True)
        message, model = definition.model_evaluation, tested_model_of(definition)
        examples = None
        if isinstance(model, RatedItems):
            _check_ratings(definition, model)
        else:
            if definition.WhichOneof("local_data") != "examples":
                raise ConfigurationError(f"Expected task {definition.name!r} to have examples")
            examples = ExamplesTerms.of(definition.examples)
            model = model.reading(examples)
            examples.check_label(model.classes_range)
        model.check_testing()
        _validate.integer(low=1, high=2, models=message.models)
        if len(message.parameters_sha256) != hashlib.sha256().digest_size:
            raise ConfigurationError("Expected parameters_sha256 of 32 bytes")
        _validate.integer(low=1, high=MOST_EXAMPLES, most_examples=message.most_examples)
        if (personal := _personal(message)) is not None and examples is None:
            raise ConfigurationError("Expected no personal model of rated items: each device solves its own as it is")
        if personal is not None and message.models != 1:
            raise ConfigurationError(f"Expected models={message.models} to be 1 with a personal model")
        if personal is not None:
            model.check_training(personal.training)
        scalars = _scalars(message, model) + _ranked(message, model)
        _validate.integer(low=0, high=MOST_BINS, bins=message.bins)
        if message.bins and model.classes_range is None:
            raise ConfigurationError(
                f"Expected bins={message.bins} to be 0: the model predicts numbers, and no classes"
            )
        if not scalars and not message.bins:
            raise ConfigurationError("Expected a metric")
        model.check_training(_device_work(message.most_examples, personal))
        layout = Layout(message.models, 1 if personal is None else 2, len(scalars), message.bins)
        _validate.within(low=1.0, high=1.0, clip=message.dense.clip)
        _validate.integer(low=1, high=MAX_SIZE, size=layout.size)
        return cls(
            model, examples, scalars, message.most_examples, personal, layout,
            Grid.of(message.dense, definition.cohort, size=layout.size),
            key_of(f"half of users {definition.name} {message.parameters_sha256.hex()}"),
        )  # fmt: skip

    @property
    def numbers(self) -> int:
        """Numbers of an example."""
        return 1 if self.examples is None else self.examples.width

    def read(self, rows: LocalRows) -> tuple[Float32Array, Float32Array]:
        """Features float32 [n, width] and targets float32 [n] of the rows of one device that the model can use."""
        if self.examples is not None:
            return usable_rows(self.model, self.examples, rows.last(self.most_rows))
        order = np.argsort(rows.items, kind="stable")
        features, targets = rows.items[order, None].astype(np.float32), rows.values[order].astype(np.float32)
        usable = self.model.usable(features, targets)
        return features[usable], targets[usable]

    @property
    def most_rows(self) -> int:
        """Stored rows of examples that a device reads at most, its newest."""
        return ROWS_PER_EXAMPLE * self.most_examples

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the model."""
        return PARAMETERS[: self.layout.halves]

    @property
    def ranked(self) -> bool:
        """Whether a model ranks the items that users chose; then no other measurement is made."""
        return any(scalar.ranked for scalar in self.scalars)

    @property
    def device_work(self) -> LocalTraining:
        """The most that a device reads and computes at once."""
        return _device_work(self.most_examples, self.personal)

    @property
    def examples_at_once(self) -> int:
        """Most examples whose predictions are in memory at once; all of a user's where it has to rank them."""
        return max(1, min(_EXAMPLES, _PREDICTIONS // max(1, self.classes)))

    def testable(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of usable examples, those that are tested on, bool [n]."""
        return targets == CHOSEN if self.ranked else np.ones(len(targets), dtype=np.bool_)

    @property
    def factor(self) -> float:
        """What every number of a vector is multiplied by."""
        return self.layout.factor(self.grid.units)

    @property
    def classes(self) -> int:
        """Of the label; 0 where it is a number."""
        return 0 if self.model.classes_range is None else int(self.model.classes_range[1]) + 1

    def halves(self, seeds: UInt64Array) -> Int64Array:
        """The half of each user, int64 [users]: 0, or 0 or 1 as a coin decides that follows from its seed alone."""
        if self.layout.halves == 1:
            return np.zeros(len(seeds), dtype=np.int64)
        return (keyed_hash(self.halves_key, seeds.view(np.int64)) >> np.uint64(63)).astype(np.int64)

    def vectors(self, dense: Mapping[str, Float32Array]) -> Float32Array:
        """The published parameters, float32 [models, size].

        Raises:
          ConfigurationError: a table is missing or of another shape, or a number is not finite.
        """
        size = self.model.size
        tables = [dense.get(name, np.zeros((0, 0), dtype=np.float32)) for name in self.tables]
        for name, table in zip(self.tables, tables, strict=True):
            if table.shape != (size, 1) or not np.isfinite(table).all():
                raise ConfigurationError(
                    f"Expected {size} finite parameters in the table {name!r} (got shape {list(table.shape)})"
                )
        return np.stack([table[:, 0].astype(np.float32) for table in tables])


def _check_ratings(definition: common_pb2.TaskDefinition, model: RatedItems) -> None:
    data = definition.data
    if definition.WhichOneof("local_data") != "data" or (data.low, data.high) != (model.low, model.high):
        raise ConfigurationError(
            f"Expected task {definition.name!r} to have ratings from {model.low:g} to {model.high:g}, as its model"
        )


def _scalars(message: model_evaluation_pb2.ModelEvaluation, model: TestedModel) -> tuple[Scalar, ...]:
    scalars = []
    if message.HasField("loss"):
        low, high = message.loss.low, message.loss.high
        _validate.within(low=-_LARGEST_LOSS, high=_LARGEST_LOSS, loss_low=low, loss_high=high)
        if not low < high:
            raise ConfigurationError(f"Expected loss_low={low!r} to be below loss_high={high!r}")
        scalars.append(Scalar("loss", low, high))
    if (tops := tuple(message.top)) and model.classes_range is None:
        raise ConfigurationError(f"Expected no top={list(tops)}: the model predicts numbers, and no classes")
    if len(tops) > MOST_TOPS or tops != tuple(sorted(set(tops))):
        raise ConfigurationError(f"Expected top={list(tops)} to be at most {MOST_TOPS} ascending whole numbers")
    for top in tops:
        _validate.integer(low=1, high=int((model.classes_range or (0.0, 0.0))[1]), top=top)
        scalars.append(Scalar("accuracy" if top == 1 else f"recall@{top}", 0.0, 1.0, top))
    return tuple(scalars)


def _ranked(message: model_evaluation_pb2.ModelEvaluation, model: TestedModel) -> tuple[Scalar, ...]:
    if not (tops := tuple(message.ranked)):
        return ()
    if not model.ranked_items:
        raise ConfigurationError(f"Expected no ranked={list(tops)}: the model ranks no items that people chose")
    if message.HasField("loss") or message.top or message.bins:
        raise ConfigurationError(f"Expected ranked={list(tops)} without loss, top and bins")
    if len(tops) > MOST_TOPS or tops != tuple(sorted(set(tops))):
        raise ConfigurationError(f"Expected ranked={list(tops)} to be at most {MOST_TOPS} ascending whole numbers")
    for top in tops:
        _validate.integer(low=1, high=model.ranked_items - 1, ranked=top)
    most = min(_EXAMPLES, MOST_SCORES // model.ranked_items)
    if message.most_examples > most:
        raise ConfigurationError(
            f"Expected most_examples={message.most_examples} to be at most {most}: each of them may rank all of the "
            f"{model.ranked_items} items"
        )
    return tuple(Scalar(f"recall@{top}", 0.0, 1.0, top, ranked=True) for top in tops)


def _device_work(most_examples: int, personal: Personal | None) -> LocalTraining:
    if personal is not None:
        return personal.training
    return LocalTraining(rate=1.0, batch=1, most_examples=min(most_examples, _EXAMPLES))


def _personal(message: model_evaluation_pb2.ModelEvaluation) -> Personal | None:
    if not message.HasField("personal"):
        return None
    _validate.within(low=0.01, high=0.99, held_out=message.personal.held_out)
    return Personal(LocalTraining.of(message.personal.training), message.personal.held_out)

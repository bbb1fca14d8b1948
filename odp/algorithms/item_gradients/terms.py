"""The numbers of a task on gradients of an item table, read from its definition and checked.

A model of ratings is one of DPAM's that is trained in another way: devices read its rows, solve and predict alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from odp import _validate
from odp.algorithms.cohorts import draw_of
from odp.algorithms.dpam.terms import Terms as RatingTerms
from odp.algorithms.factorization.terms import CommonTerms, check_clips, check_noises
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

MASSES_ROUND = 0
MOST_STEPS = 10_000
LARGEST_RATE = 1e6

_Model = TypeVar("_Model", bound=CommonTerms)
_Held = TypeVar("_Held", bound=CommonTerms, covariant=True)


@dataclass(frozen=True)
class Terms(Generic[_Held]):
    """An ``odp.v1.ItemGradientTraining``, checked. Fields: see the message.

    Attributes:
      model: the numbers of what is trained, and of how devices read it.
      unit: of errors and of the clip, in units of values.
      width: numbers of a user's row in a gradient.
      whole_width: numbers of the row whose outer product is released as well; 0 for none.
      probability: that a contribution counts.
    """

    model: _Held
    unit: float
    width: int
    whole_width: int
    steps: int
    rate: float
    clip: float
    row_clip: float
    row_ridge: float
    unobserved_weight: float
    mass_noise: float
    gradient_noise: float
    gramian_noise: float
    probability: float

    @property
    def rounds(self) -> int:
        """That of masses, and one per step."""
        return 1 + self.steps

    @property
    def gramian_clip(self) -> float:
        """Bound of the Frobenius norm of a user's outer product; users of fewer than 16 items meet it."""
        return self.clip * math.sqrt(self.width) / 4.0

    def widths_of(self, round: int) -> tuple[int, int]:
        """(``width``, ``whole_width``), or (0, 0) in the round of masses, whose contributions have no row.

        Raises:
          ConfigurationError: the task has no such round.
        """
        if not 0 <= round < self.rounds:
            raise ConfigurationError(f"Expected round={round!r} to be from 0 to {self.rounds - 1}")
        return (0, 0) if round == MASSES_ROUND else (self.width, self.whole_width)


def terms_of(definition: common_pb2.TaskDefinition) -> Terms[RatingTerms]:
    """Reads and checks the definition of a task on ratings.

    Raises:
      ConfigurationError: another task, or a number is missing or out of range.
    """
    check_kind(definition, "data", unused=("unobserved_weight", "gramian_noise"))
    check_clips(row_clip=definition.item_gradients.row_clip)
    model = RatingTerms.of(as_read(definition))
    return checked(definition, model, unit=math.sqrt(model.residual_variance), width=1 + model.rank, whole_width=0)


def check_kind(definition: common_pb2.TaskDefinition, local_data: str, *, unused: tuple[str, ...]) -> None:
    """Raises ConfigurationError for another task, features, or a number that tasks on such data do not use."""
    if definition.WhichOneof("training") != "item_gradients" or definition.WhichOneof("local_data") != local_data:
        raise ConfigurationError(f"Expected task {definition.name!r} to train item_gradients on other data")
    if not definition.privacy.epsilon > 0:
        raise ConfigurationError(f"Expected epsilon={definition.privacy.epsilon!r} to be > 0")
    if definition.model.item_features_width:
        raise ConfigurationError("Expected a model without item features or start: gradients use none")
    for name in unused:
        if number := getattr(definition.item_gradients, name):
            raise ConfigurationError(f"Expected {name}={number!r} to be unset: such data do not use it")


def checked(
    definition: common_pb2.TaskDefinition, model: _Model, *, unit: float, width: int, whole_width: int
) -> Terms[_Model]:
    """The terms of a definition around those of its model. Raises ConfigurationError for a number out of range."""
    written = definition.item_gradients
    _validate.integer(steps=written.steps, low=1, high=MOST_STEPS)
    _validate.within(rate=written.rate, low=1.0, high=LARGEST_RATE)
    check_clips(clip=written.clip)
    noises = {"mass_noise": written.mass_noise, "gradient_noise": written.gradient_noise}
    check_noises(
        definition.privacy.epsilon, **noises, **({"gramian_noise": written.gramian_noise} if whole_width else {})
    )
    draw = draw_of(definition.cohort, 0)
    return Terms(
        model=model,
        unit=unit,
        width=width,
        whole_width=whole_width,
        steps=written.steps,
        rate=written.rate,
        clip=written.clip,
        row_clip=written.row_clip,
        row_ridge=written.row_ridge,
        unobserved_weight=written.unobserved_weight,
        mass_noise=written.mass_noise,
        gradient_noise=written.gradient_noise,
        gramian_noise=written.gramian_noise,
        probability=1.0 if draw is None else draw.probability,
    )


def as_read(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """A task without noise whose devices solve and predict as those of ``definition``, with nothing checked yet."""
    written, span = definition.item_gradients, definition.data.high - definition.data.low
    training = common_pb2.DpamTraining(
        steps=int(definition.model.rank > 0),
        row_clip=written.row_clip,
        bias_target_clip=span,
        factor_target_clip=span,
        bias_vector_clip=span,
        factor_vector_clip=span,
        weighting=common_pb2.DpamTraining.WEIGHTING_UNIFORM,
        centre=written.centre,
        user_ridge=written.row_ridge,
        user_bias_ridge=written.bias_ridge,
        start_seed=written.start_seed,
        slices_per_device=written.slices_per_device,
    )
    return read_by(definition, training)


def read_by(definition: common_pb2.TaskDefinition, training: common_pb2.DpamTraining) -> common_pb2.TaskDefinition:
    """The definition without noise, and with another training."""
    read = common_pb2.TaskDefinition()
    read.CopyFrom(definition)
    read.privacy.epsilon = math.inf
    read.dpam.CopyFrom(training)
    return read

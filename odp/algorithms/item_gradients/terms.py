"""The numbers of a task on gradients of an item table, read from its definition and checked.

A model of ratings is one of DPAM's that is trained in another way: devices read its rows, solve and predict alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp import _validate
from odp.algorithms.cohorts import draw_of
from odp.algorithms.dpam.terms import Terms as ModelTerms
from odp.algorithms.factorization.terms import check_clips, check_noises
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

MASSES_ROUND = 0
MOST_STEPS = 10_000
LARGEST_RATE = 1e6


@dataclass(frozen=True)
class Terms:
    """An ``odp.v1.ItemGradientTraining`` over ratings, checked. Fields: see the message.

    Attributes:
      model: the numbers of what is trained, and of how devices read and solve it.
      probability: that a contribution counts.
    """

    model: ModelTerms
    steps: int
    rate: float
    clip: float
    row_clip: float
    mass_noise: float
    gradient_noise: float
    probability: float

    @property
    def rounds(self) -> int:
        """That of masses, and one per step."""
        return 1 + self.steps

    @property
    def unit(self) -> float:
        """Public guess of a value's standard deviation around its prediction."""
        return math.sqrt(self.model.residual_variance)

    def width_of(self, round: int) -> int:
        """Numbers of a user's row in a contribution of ``round``: (1, factors), or none.

        Raises:
          ConfigurationError: the task has no such round.
        """
        if not 0 <= round < self.rounds:
            raise ConfigurationError(f"Expected round={round!r} to be from 0 to {self.rounds - 1}")
        return 0 if round == MASSES_ROUND else 1 + self.model.rank

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: another task, or a number is missing or out of range.
        """
        if definition.WhichOneof("training") != "item_gradients" or definition.WhichOneof("local_data") != "data":
            raise ConfigurationError(f"Expected task {definition.name!r} to train item_gradients on ratings")
        if not definition.privacy.epsilon > 0:
            raise ConfigurationError(f"Expected epsilon={definition.privacy.epsilon!r} to be > 0")
        if definition.model.item_features_width:
            raise ConfigurationError("Expected a model without item features or start: gradients use none")
        written = definition.item_gradients
        _validate.integer(steps=written.steps, low=1, high=MOST_STEPS)
        _validate.within(rate=written.rate, low=1.0, high=LARGEST_RATE)
        check_clips(clip=written.clip, row_clip=written.row_clip)
        check_noises(definition.privacy.epsilon, mass_noise=written.mass_noise, gradient_noise=written.gradient_noise)
        draw = draw_of(definition.cohort, 0)
        return cls(
            model=ModelTerms.of(as_read(definition)),
            steps=written.steps,
            rate=written.rate,
            clip=written.clip,
            row_clip=written.row_clip,
            mass_noise=written.mass_noise,
            gradient_noise=written.gradient_noise,
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
    read = common_pb2.TaskDefinition()
    read.CopyFrom(definition)
    read.privacy.epsilon = math.inf
    read.dpam.CopyFrom(training)
    return read

"""How what a developer chooses for ``odp.DPSGD`` on a matrix factorization becomes the numbers of a task definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from odp.algorithms.item_gradients.codec import LIMIT
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.v1 import common_pb2

# Of mu^2, for masses: on ratings, and on implicit data, where popularity is all of what they tell. And of each step's
# mu^2, for the outer products of implicit data.
_MASS_SHARE, _IMPLICIT_MASS_SHARE, _GRAMIAN_SHARE = 0.1, 0.25, 0.1
_ROW_CLIP, _ROW_RIDGE, _BIAS_RIDGE = 1.8, 1.0, 5.0
_CENTRE = 0.625  # of the declared range
_START_SEED = 1
_SLICES = 320
_MAX_RATIO = 2.0**40  # of the noise sampler


def write(
    definition: common_pb2.TaskDefinition, *, steps: int, rate: float, clip: float, unobserved_weight: float
) -> None:
    """Every number, with the noise that makes all rounds together (epsilon, delta)-DP; without noise if epsilon is inf.

    ``unobserved_weight`` is of implicit data alone.

    Raises:
      ConfigurationError: a number is out of range, or the noise is beyond what the sampler covers.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    from odp.algorithms.release import sampling_of
    from odp.privacy.calibration import total_mu_for
    from odp.v1 import item_gradients_pb2

    items, rank, data, privacy = definition.model.items, definition.model.rank, definition.data, definition.privacy
    training = item_gradients_pb2.ItemGradientTraining(
        steps=steps,
        rate=rate,
        clip=clip,
        row_ridge=_ROW_RIDGE,
        start_seed=_START_SEED,
        slices_per_device=min(items, max(privacy.max_items_per_user, _SLICES)),
    )
    mass_share, gradient_share, numbers = _MASS_SHARE, 1.0, items * (1 + rank)
    if implicit := definition.WhichOneof("local_data") == "implicit":
        training.unobserved_weight = unobserved_weight
        mass_share, gradient_share = _IMPLICIT_MASS_SHARE, 1.0 - _GRAMIAN_SHARE
        numbers = items * rank + (1 + rank) * (2 + rank) // 2
    else:
        training.row_clip, training.bias_ridge = _ROW_CLIP, _BIAS_RIDGE
        training.centre = data.low + _CENTRE * (data.high - data.low)
    if privacy.epsilon != math.inf:
        share = (1.0 - mass_share) / steps
        total = total_mu_for(
            (mass_share, *[share] * steps),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            coordinates=items + steps * numbers,
            sampling=sampling_of(definition, 0),
        )
        training.mass_noise = 1.0 / (math.sqrt(mass_share) * total)
        training.gradient_noise = 1.0 / (math.sqrt(gradient_share * share) * total)
        if implicit:
            training.gramian_noise = 1.0 / (math.sqrt(_GRAMIAN_SHARE * share) * total)
        if max(training.gradient_noise, training.gramian_noise) * LIMIT > _MAX_RATIO:
            raise ConfigurationError(
                f"epsilon={privacy.epsilon!r} asks for more noise than can be sampled: raise it, or take fewer rounds"
            )
    definition.item_gradients.CopyFrom(training)

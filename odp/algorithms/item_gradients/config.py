"""How what a developer chooses for ``odp.DPSGD`` on a matrix factorization becomes the numbers of a task definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from odp.algorithms.item_gradients.codec import LIMIT
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.v1 import common_pb2

# Of mu^2, for masses.
_MASS_SHARE = 0.1
_ROW_CLIP, _ROW_RIDGE, _BIAS_RIDGE = 1.8, 1.0, 5.0
_CENTRE = 0.625  # of the declared range
_START_SEED = 1
_SLICES = 320
_MAX_RATIO = 2.0**40  # of the noise sampler


def write(definition: common_pb2.TaskDefinition, *, steps: int, rate: float, clip: float) -> None:
    """Every number, with the noise that makes all rounds together (epsilon, delta)-DP; without noise if epsilon is inf.

    Raises:
      ConfigurationError: a number is out of range, or the noise is beyond what the sampler covers.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    from odp.algorithms.release import sampling_of
    from odp.privacy.calibration import total_mu_for
    from odp.v1 import item_gradients_pb2

    items, data, privacy = definition.model.items, definition.data, definition.privacy
    training = item_gradients_pb2.ItemGradientTraining(
        steps=steps,
        rate=rate,
        clip=clip,
        row_clip=_ROW_CLIP,
        row_ridge=_ROW_RIDGE,
        bias_ridge=_BIAS_RIDGE,
        centre=data.low + _CENTRE * (data.high - data.low),
        start_seed=_START_SEED,
        slices_per_device=min(items, max(privacy.max_items_per_user, _SLICES)),
    )
    if privacy.epsilon != math.inf:
        share = (1.0 - _MASS_SHARE) / steps
        total = total_mu_for(
            (_MASS_SHARE, *[share] * steps),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            coordinates=items * (1 + (1 + definition.model.rank) * steps),
            sampling=sampling_of(definition, 0),
        )
        training.mass_noise = 1.0 / (math.sqrt(_MASS_SHARE) * total)
        training.gradient_noise = 1.0 / (math.sqrt(share) * total)
        if training.gradient_noise * LIMIT > _MAX_RATIO:
            raise ConfigurationError(
                f"epsilon={privacy.epsilon!r} asks for more noise than can be sampled: raise it, or take fewer rounds"
            )
    definition.item_gradients.CopyFrom(training)

"""What the trainings by alternating minimization have in common: numbers of a task definition, and a device's slices.

Explicit ratings (``dpam``) and implicit feedback (``implicit``) differ in their rounds, releases and solves. Items per
user, weights, noise and the choice of slices are the same, and are read and checked here alone.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError
from odp.models.item_features import checked_item_features, item_features_sha256
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.encoding import Encoding, encoding_of
from odp.v1 import common_pb2

COUNTS_ROUND = 0

MAX_RANK = 64
MAX_ITEMS = 2**31 - 1
MAX_ITEMS_PER_USER = 2**12
MAX_STEPS = 64
MAX_FEATURES = 2**10
MAX_GROUPS = 16
SHA256_BYTES = 32

WEIGHTINGS = {
    "adaptive": common_pb2.DpamTraining.WEIGHTING_ADAPTIVE,
    "uniform": common_pb2.DpamTraining.WEIGHTING_UNIFORM,
}

#: With a smaller ridge, rounding could make a user's system of equations singular.
LEAST_RIDGE = 1e-3
_LARGEST_RIDGE = 1e6
# Outside, products of such numbers would overflow, or lose all their digits.
_LEAST_CLIP, _LARGEST_CLIP = 1e-9, 1e10
_LEAST_NOISE, _LARGEST_NOISE = 1e-6, 1e12


@dataclass(frozen=True)
class CommonTerms(abc.ABC):
    """Checked numbers of a :class:`odp.v1.TaskDefinition`. Fields: see the messages of ``common.proto``."""

    items: int
    rank: int
    max_items: int
    steps: int
    row_clip: float
    count_noise_std: float
    target_noise: float
    adaptive: bool
    weight_exponent: float
    start_seed: int
    slices_per_device: int
    items_encoding: Encoding
    item_features_width: int
    item_features_sha256: bytes
    item_feature_groups: tuple[int, ...]

    @property
    def noisy(self) -> bool:
        """Whether releases carry noise."""
        return self.count_noise_std > 0

    @property
    @abc.abstractmethod
    def rounds(self) -> int:
        """How many rounds the task has; each kind of training says."""

    def check_round(self, round: int) -> None:
        """Raises ConfigurationError where the task has no such round."""
        if not 0 <= round < self.rounds:
            raise ConfigurationError(f"Expected round={round!r} to be from 0 to {self.rounds - 1}")


def common_fields(definition: common_pb2.TaskDefinition) -> dict[str, Any]:
    """The fields of :class:`CommonTerms`, checked as far as both kinds of training agree on them.

    What depends on the kind (least rank and steps, which clips and noises there are) is the caller's to check.

    Raises:
      ConfigurationError: a number is missing or out of range.
    """
    model, privacy, dpam = definition.model, definition.privacy, definition.dpam
    _validate.integer(items=model.items, low=1, high=MAX_ITEMS)
    most = min(model.items, MAX_ITEMS_PER_USER)
    _validate.integer(max_items_per_user=privacy.max_items_per_user, low=1, high=most)
    _validate.integer(slices_per_device=dpam.slices_per_device, low=privacy.max_items_per_user, high=model.items)
    _validate.within(weight_exponent=dpam.weight_exponent, low=0.0, high=1.0)
    if not privacy.epsilon > 0:
        raise ConfigurationError(f"Expected epsilon={privacy.epsilon!r} to be > 0")
    if dpam.weighting not in WEIGHTINGS.values():
        raise ConfigurationError(f"Expected weighting={dpam.weighting!r} to be one of uniform (1), adaptive (2)")
    _check_features(model)
    return {
        "items": model.items,
        "rank": model.rank,
        "max_items": privacy.max_items_per_user,
        "steps": dpam.steps,
        "row_clip": dpam.row_clip,
        "count_noise_std": dpam.count_noise_std,
        "target_noise": dpam.target_noise,
        "adaptive": dpam.weighting == common_pb2.DpamTraining.WEIGHTING_ADAPTIVE,
        "weight_exponent": dpam.weight_exponent,
        "start_seed": dpam.start_seed,
        "slices_per_device": dpam.slices_per_device,
        "items_encoding": encoding_of(dpam.items_encoding),
        "item_features_width": model.item_features_width,
        "item_features_sha256": model.item_features_sha256,
        "item_feature_groups": (
            tuple(model.item_feature_groups) or (model.item_features_width,) * bool(model.item_features_width)
        ),
    }


def named_features(terms: CommonTerms, item_features: Float32Array) -> Float32Array:
    """The public matrix [items, p], which has to be the one whose hash ``terms`` have.

    Raises:
      ConfigurationError: it is another one.
    """
    matrix = checked_item_features(terms.items, item_features)
    if (matrix.shape[1], item_features_sha256(matrix)) != (terms.item_features_width, terms.item_features_sha256):
        raise ConfigurationError("Expected item_features to be the matrix whose SHA-256 the task definition names")
    return matrix


def _check_features(model: common_pb2.MatrixFactorizationModel) -> None:
    whole, hashed, widths = model.item_features_width, len(model.item_features_sha256), tuple(model.item_feature_groups)
    _validate.integer(item_features_width=whole, low=0, high=MAX_FEATURES)
    if hashed != (SHA256_BYTES if whole else 0):
        raise ConfigurationError(f"Expected item_features_sha256 of 32 bytes with features, else none (got {hashed})")
    if widths and (len(widths) > MAX_GROUPS or min(widths) < 1 or sum(widths) != whole):
        raise ConfigurationError(
            f"Expected item_feature_groups={list(widths)!r} to be at most {MAX_GROUPS} widths, 1 or more each, that "
            f"add up to item_features_width={whole}"
        )


def check_noises(epsilon: float, **noises: float) -> None:
    """Raises ConfigurationError unless all are positive and of a usual size, or all 0 where ``epsilon`` is infinite.

    That is the only way to ask for no noise, so that a forgotten field is an error.
    """
    for name, noise in noises.items():
        if epsilon == math.inf:
            _validate.within(low=0.0, high=0.0, **{name: noise})
        else:
            _validate.within(low=_LEAST_NOISE, high=_LARGEST_NOISE, **{name: noise})


def check_clips(**clips: float) -> None:
    """Raises ConfigurationError unless all can be divided by and squared."""
    _validate.within(low=_LEAST_CLIP, high=_LARGEST_CLIP, **clips)


def check_ridges(**ridges: float) -> None:
    """Raises ConfigurationError unless all hold up every solve, whatever a user has."""
    _validate.within(low=LEAST_RIDGE, high=_LARGEST_RIDGE, **ridges)

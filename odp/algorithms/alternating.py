"""What the trainings by alternating minimization have in common: numbers of a task definition, and a device's slices.

Explicit ratings (``dpam``) and implicit feedback (``implicit``) differ in their rounds, releases and solves. Items per
user, weights, ridges, noise and the choice of slices are the same, and are read and checked here alone.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dpam.subset import hash_order
from odp.algorithms.seam import Float32Array, Int64Array, LocalRatings, Slices
from odp.errors import ConfigurationError, DataError
from odp.v1 import common_pb2
from odp.wire.encoding import Encoding, encoding_of

COUNTS_ROUND = 0

MAX_RANK = 64
MAX_ITEMS = 2**31 - 1
MAX_ITEMS_PER_USER = 2**12
MAX_STEPS = 64

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
    gram_noise: float
    target_noise: float
    adaptive: bool
    weight_exponent: float
    user_ridge: float
    item_ridge: float
    start_seed: int
    slices_per_device: int
    items_encoding: Encoding

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
    _validate.within(item_ridge=dpam.item_ridge, low=0.0, high=1e12)
    if not privacy.epsilon > 0:
        raise ConfigurationError(f"Expected epsilon={privacy.epsilon!r} to be > 0")
    weightings = (common_pb2.DpamTraining.WEIGHTING_UNIFORM, common_pb2.DpamTraining.WEIGHTING_ADAPTIVE)
    if dpam.weighting not in weightings:
        raise ConfigurationError(f"Expected weighting={dpam.weighting!r} to be one of uniform (1), adaptive (2)")
    return {
        "items": model.items,
        "rank": model.rank,
        "max_items": privacy.max_items_per_user,
        "steps": dpam.steps,
        "row_clip": dpam.row_clip,
        "count_noise_std": dpam.count_noise_std,
        "gram_noise": dpam.gram_noise,
        "target_noise": dpam.target_noise,
        "adaptive": dpam.weighting == common_pb2.DpamTraining.WEIGHTING_ADAPTIVE,
        "weight_exponent": dpam.weight_exponent,
        "user_ridge": dpam.user_ridge,
        "item_ridge": dpam.item_ridge,
        "start_seed": dpam.start_seed,
        "slices_per_device": dpam.slices_per_device,
        "items_encoding": encoding_of(dpam.items_encoding),
    }


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


def within(rows: Float32Array, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Float32Array:
    """Rows float32 [.., width] of a model with each column within its bounds, float64 [width].

    A row with a number that is not finite is zeros, brought within the bounds.
    """
    found: Float32Array = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, np.float32(0))
    np.clip(found, low.astype(np.float32), high.astype(np.float32), out=found)
    return found


class OwnItems:
    """The part of a device's client that deals with its own items.

    Args:
      terms: of the task.
      values: the range of the device's values; None where they are not read.
    """

    def __init__(self, terms: CommonTerms, *, values: tuple[float, float] | None = None) -> None:
        self._items = terms.items
        self._most = terms.slices_per_device
        self._values = values

    def keys(self, data: LocalRatings, *, round: int, seed: int) -> Int64Array:
        """The device's own items, int64 ascending; where there are more than slices_per_device, a random subset.

        The items that the device contributes in this round are always among them.
        """
        return np.sort(self._in_order(data, round=round, seed=seed).items[: self._most])

    def _in_order(self, data: LocalRatings, *, round: int, seed: int) -> LocalRatings:
        """The device's usable rows in the order of use: the first ones are contributed."""
        own = self._usable(data)
        order = hash_order(seed, round, own.items)
        return LocalRatings(own.items[order], own.values[order])

    def _usable(self, data: LocalRatings) -> LocalRatings:
        return data.within(items=self._items, values=self._values)


def find_slices(slices: Slices, items: Int64Array) -> tuple[npt.NDArray[np.bool_], Int64Array]:
    """(whether each item has a slice, the slice's position where it has)."""
    if not len(slices.keys):
        return np.zeros(len(items), dtype=np.bool_), np.zeros(len(items), dtype=np.int64)
    inside = np.minimum(np.searchsorted(slices.keys, items), len(slices.keys) - 1)
    return slices.keys[inside] == items, inside


def rows_to_predict(slices: Slices, items: Int64Array) -> Float32Array:
    """The rows float32 [n, width] of ``items``, as they were received.

    Raises:
      DataError: an item has no slice.
    """
    found, place = find_slices(slices, items)
    if not found.all():
        missing = int((~found).sum())
        raise DataError(f"Expected a slice for each item to predict: {missing} of {len(items)} have none")
    return slices.rows[place]

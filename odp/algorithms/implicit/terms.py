"""The numbers of one DPAM task on implicit feedback, read from its definition and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp import _validate
from odp.algorithms.dpam.terms import COUNTS_ROUND, MAX_ITEMS, MAX_ITEMS_PER_USER, MAX_RANK, MAX_STEPS
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

__all__ = ["COUNTS_ROUND", "Terms"]

FIRST_FACTOR_ROUND = 1

# Columns of the keyed table "items"; the factors follow.
WEIGHT_COLUMN = 0
FACTOR_COLUMNS = 1

ITEMS_TABLE = "items"
GRAMIAN_TABLE = "gramian"

# Fields of the training that only ratings have.
_RATINGS_ONLY = (
    "bias_target_clip",
    "factor_target_clip",
    "bias_vector_clip",
    "factor_vector_clip",
    "bias_mass_noise",
    "bias_sum_noise",
    "centre",
)


@dataclass(frozen=True)
class Terms:
    """A :class:`odp.v1.TaskDefinition` with implicit data, checked. Fields: see the messages of ``common.proto``."""

    items: int
    rank: int
    max_items: int
    steps: int
    row_clip: float
    count_noise_std: float
    gram_noise: float
    target_noise: float
    gramian_noise: float
    item_grams: bool
    adaptive: bool
    weight_exponent: float
    head_items: int
    unobserved_weight: float
    user_ridge: float
    item_ridge: float
    start_seed: int
    slices_per_device: int

    @property
    def rounds(self) -> int:
        """Counts, and one round per factor step."""
        return FIRST_FACTOR_ROUND + self.steps

    @property
    def width(self) -> int:
        """Columns of the item table."""
        return FACTOR_COLUMNS + self.rank

    @property
    def pairs(self) -> int:
        """Entries of the packed symmetric matrix of a row."""
        return self.rank * (self.rank + 1) // 2

    @property
    def noisy(self) -> bool:
        """Whether releases carry noise."""
        return self.count_noise_std > 0

    def check_round(self, round: int) -> None:
        """Raises ConfigurationError where the task has no such round."""
        if not 0 <= round < self.rounds:
            raise ConfigurationError(f"Expected round={round!r} to be from 0 to {self.rounds - 1}")

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task has no implicit data, or a number is missing or out of range.
        """
        if definition.WhichOneof("training") != "dpam" or definition.WhichOneof("local_data") != "implicit":
            raise ConfigurationError(f"Expected task {definition.name!r} to train dpam on implicit data")
        model, privacy, dpam = definition.model, definition.privacy, definition.dpam
        _validate.integer(items=model.items, low=1, high=MAX_ITEMS)
        _validate.integer(rank=model.rank, low=1, high=min(MAX_RANK, model.items))
        if model.item_features_width or model.item_features_sha256:
            raise ConfigurationError("Expected no item_features: implicit feedback does not use them")
        most = min(model.items, MAX_ITEMS_PER_USER)
        _validate.integer(max_items_per_user=privacy.max_items_per_user, low=1, high=most)
        _validate.integer(steps=dpam.steps, low=1, high=MAX_STEPS)
        _validate.integer(slices_per_device=dpam.slices_per_device, low=privacy.max_items_per_user, high=model.items)
        _validate.integer(head_items=dpam.head_items, low=0, high=model.items)
        _validate.positive(row_clip=dpam.row_clip, unobserved_weight=dpam.unobserved_weight, user_ridge=dpam.user_ridge)
        _validate.within(weight_exponent=dpam.weight_exponent, low=0.0, high=1.0)
        _validate.within(item_ridge=dpam.item_ridge, low=0.0, high=1e12)
        for name in (*_RATINGS_ONLY, "user_bias_ridge"):
            if getattr(dpam, name):
                raise ConfigurationError(f"Expected {name}={getattr(dpam, name)!r} to be 0: it is for ratings")
        if not privacy.epsilon > 0:
            raise ConfigurationError(f"Expected epsilon={privacy.epsilon!r} to be > 0")
        noises = {"count_noise_std": dpam.count_noise_std, "target_noise": dpam.target_noise}
        noises["gramian_noise"] = dpam.gramian_noise
        if dpam.item_grams:
            noises["gram_noise"] = dpam.gram_noise
        elif dpam.gram_noise:
            raise ConfigurationError(f"Expected gram_noise={dpam.gram_noise!r} to be 0 without item_grams")
        for name, noise in noises.items():
            # An infinite epsilon is the only way to ask for no noise, so that a forgotten field is an error.
            if privacy.epsilon == math.inf:
                _validate.within(low=0.0, high=0.0, **{name: noise})
            else:
                _validate.positive(**{name: noise})
        weightings = (common_pb2.DpamTraining.WEIGHTING_UNIFORM, common_pb2.DpamTraining.WEIGHTING_ADAPTIVE)
        if dpam.weighting not in weightings:
            raise ConfigurationError(f"Expected weighting={dpam.weighting!r} to be one of uniform (1), adaptive (2)")
        return cls(
            items=model.items,
            rank=model.rank,
            max_items=privacy.max_items_per_user,
            steps=dpam.steps,
            row_clip=dpam.row_clip,
            count_noise_std=dpam.count_noise_std,
            gram_noise=dpam.gram_noise,
            target_noise=dpam.target_noise,
            gramian_noise=dpam.gramian_noise,
            item_grams=dpam.item_grams,
            adaptive=dpam.weighting == common_pb2.DpamTraining.WEIGHTING_ADAPTIVE,
            weight_exponent=dpam.weight_exponent,
            head_items=dpam.head_items,
            unobserved_weight=dpam.unobserved_weight,
            user_ridge=dpam.user_ridge,
            item_ridge=dpam.item_ridge,
            start_seed=dpam.start_seed,
            slices_per_device=dpam.slices_per_device,
        )

"""The numbers of one DPAM task on implicit feedback, read from its definition and checked."""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.algorithms.factorization.terms import (
    COUNTS_ROUND,
    MAX_RANK,
    MAX_STEPS,
    CommonTerms,
    check_clips,
    check_noises,
    check_ridges,
    common_fields,
)
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

__all__ = ["COUNTS_ROUND", "Terms"]

FIRST_FACTOR_ROUND = 1

# Columns of the keyed table "items"; the factors follow.
WEIGHT_COLUMN = 0
FACTOR_COLUMNS = 1

_LARGEST_WEIGHT = 1e6

ITEMS_TABLE = "items"
GRAMIAN_TABLE = "gramian"

# Fields of the training that only ratings have.
_RATINGS_ONLY = (
    "bias_target_clip",
    "factor_target_clip",
    "bias_vector_clip",
    "items_encoding",
    "factor_vector_clip",
    "bias_mass_noise",
    "bias_sum_noise",
    "centre",
)


@dataclass(frozen=True)
class Terms(CommonTerms):
    """A :class:`odp.v1.TaskDefinition` with implicit data, checked. Fields: see the messages of ``common.proto``."""

    gramian_noise: float
    item_grams: bool
    head_items: int
    unobserved_weight: float

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

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task has no implicit data, or a number is missing or out of range.
        """
        if definition.WhichOneof("training") != "dpam" or definition.WhichOneof("local_data") != "implicit":
            raise ConfigurationError(f"Expected task {definition.name!r} to train dpam on implicit data")
        common = common_fields(definition)
        model, dpam = definition.model, definition.dpam
        _validate.integer(rank=model.rank, low=1, high=min(MAX_RANK, model.items))
        if model.item_features_width or model.item_features_sha256:
            raise ConfigurationError("Expected no item_features: implicit feedback does not use them")
        _validate.integer(steps=dpam.steps, low=1, high=MAX_STEPS)
        _validate.integer(head_items=dpam.head_items, low=0, high=model.items)
        check_clips(row_clip=dpam.row_clip)
        check_ridges(user_ridge=dpam.user_ridge)
        _validate.positive(unobserved_weight=dpam.unobserved_weight)
        _validate.within(unobserved_weight=dpam.unobserved_weight, low=0.0, high=_LARGEST_WEIGHT)
        for name in (*_RATINGS_ONLY, "user_bias_ridge"):
            if getattr(dpam, name):
                raise ConfigurationError(f"Expected {name}={getattr(dpam, name)!r} to be 0: it is for ratings")
        noises = {"count_noise_std": dpam.count_noise_std, "target_noise": dpam.target_noise}
        noises["gramian_noise"] = dpam.gramian_noise
        if dpam.item_grams:
            noises["gram_noise"] = dpam.gram_noise
        elif dpam.gram_noise:
            raise ConfigurationError(f"Expected gram_noise={dpam.gram_noise!r} to be 0 without item_grams")
        check_noises(definition.privacy.epsilon, **noises)
        return cls(
            **common,
            gramian_noise=dpam.gramian_noise,
            item_grams=dpam.item_grams,
            head_items=dpam.head_items,
            unobserved_weight=dpam.unobserved_weight,
        )

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
    common_fields,
)
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

__all__ = ["COUNTS_ROUND", "Terms"]

FIRST_FACTOR_ROUND = 1

# Columns of the keyed table "items"; the factors follow.
WEIGHT_COLUMN = 0
FACTOR_COLUMNS = 1

#: Of their weight: items outside the head speak for users who have nothing else, and hardly for others.
TAIL_WEIGHT = 1e-3

#: Devices bring factors within +- this.
LARGEST_FACTOR = 2.0**8

ITEMS_TABLE = "items"

# Fields of the training that implicit feedback does not use.
_UNUSED = (
    "bias_target_clip",
    "factor_target_clip",
    "bias_vector_clip",
    "items_encoding",
    "factor_vector_clip",
    "bias_mass_noise",
    "bias_sum_noise",
    "gram_noise",
    "centre",
    "user_ridge",
    "user_bias_ridge",
    "item_ridge",
    "unobserved_weight",
    "gramian_noise",
    "item_grams",
    "kernel_variance",
)


@dataclass(frozen=True)
class Terms(CommonTerms):
    """A :class:`odp.v1.TaskDefinition` with implicit data, checked. Fields: see the messages of ``common.proto``."""

    head_items: int

    @property
    def rounds(self) -> int:
        """Counts, and one round per factor step."""
        return FIRST_FACTOR_ROUND + self.steps

    @property
    def width(self) -> int:
        """Columns of the item table."""
        return FACTOR_COLUMNS + self.rank

    def has_popularity(self, version: int) -> bool:
        """Whether the last factor of that version of the model is the popularity of items."""
        return self.noisy and version >= self.rounds

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
        _validate.integer(steps=dpam.steps, low=1, high=MAX_STEPS)
        if dpam.head_items:
            _validate.integer(head_items=dpam.head_items, low=model.rank, high=model.items)
        check_clips(row_clip=dpam.row_clip)
        for name in _UNUSED:
            if getattr(dpam, name):
                raise ConfigurationError(
                    f"Expected {name}={getattr(dpam, name)!r} to be unset: implicit feedback does not use it"
                )
        noises = {"count_noise_std": dpam.count_noise_std, "target_noise": dpam.target_noise}
        check_noises(definition.privacy.epsilon, **noises)
        return cls(**common, head_items=dpam.head_items)

"""The numbers of one DPAM task, read from its definition and checked: one source for devices, enclave and server."""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp import _validate
from odp.algorithms.factorization.codec import ROW_UNITS
from odp.algorithms.factorization.terms import (
    COUNTS_ROUND,
    LEAST_RIDGE,
    MAX_ITEMS_PER_USER,
    MAX_RANK,
    MAX_STEPS,
    CommonTerms,
    check_clips,
    check_noises,
    check_ridges,
    common_fields,
)
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import Encoding, encoding_of
from odp.v1 import common_pb2

__all__ = ["COUNTS_ROUND", "LEAST_RIDGE", "MAX_ITEMS_PER_USER", "MAX_RANK", "Terms"]

BIASES_ROUND = 1
FIRST_FACTOR_ROUND = 2

# Columns of the keyed table "items"; the factors follow.
COUNT_COLUMN = 0
BIAS_COLUMN = 1
TRUST_COLUMN = 2
FACTOR_COLUMNS = 3

# The first factors start as functions of the released biases and counts; a model of no more needs no factor round.
DERIVED_FACTORS = 2

MAX_KERNEL_VARIANCE = 10.0

# Values are within so much of 0, and their range is no narrower: the squares of either are ordinary numbers.
_FURTHEST = 1e9
_NARROWEST = 1e-6

ITEMS_TABLE = "items"
GLOBALS_TABLE = "globals"
RIDGES = 2  # first numbers of the dense table "globals"
#: Not int8: one scale for a row would serve its count and its factors, which differ by orders of magnitude.
ITEMS_ENCODINGS: tuple[Encoding, ...] = ("float32", "float16")


@dataclass(frozen=True)
class Terms(CommonTerms):
    """A :class:`odp.v1.TaskDefinition` with DPAM training, checked. Fields: see the messages of ``common.proto``."""

    low: float
    high: float
    bias_target_clip: float
    factor_target_clip: float
    bias_vector_clip: float
    factor_vector_clip: float
    bias_mass_noise: float
    bias_sum_noise: float
    gram_noise: float
    centre: float
    user_ridge: float
    user_bias_ridge: float
    item_ridge: float
    kernel_variance: float
    gradient: bool

    @property
    def rounds(self) -> int:
        """Counts, biases, and one round per factor step; masses and one round per gradient."""
        return (COUNTS_ROUND + 1 if self.gradient else FIRST_FACTOR_ROUND) + self.steps

    @property
    def learned(self) -> int:
        """Numbers of an item that gradients learn: its bias and all factors but the derived ones."""
        return 1 + self.rank - DERIVED_FACTORS

    @property
    def learned_pairs(self) -> int:
        """Entries of the packed symmetric matrix of these."""
        return self.learned * (self.learned + 1) // 2

    @property
    def globals_width(self) -> int:
        """Numbers of the dense table "globals": the ridges; and what ``uncertainty.py`` reads."""
        return RIDGES + (1 + 3 * self.learned_pairs if self.gradient else 0)

    @property
    def width(self) -> int:
        """Columns of the item table."""
        return FACTOR_COLUMNS + self.rank

    @property
    def pairs(self) -> int:
        """Entries of the packed symmetric matrix of a full row, (constant, row)."""
        return (self.rank + 1) * (self.rank + 2) // 2

    @property
    def full_row_bound(self) -> float:
        """L2 bound of (1, row): what the sensitivities of the factor rounds are made of."""
        return math.hypot(1.0, self.row_clip)

    @property
    def residual_variance(self) -> float:
        """Public guess of a rating's variance around its prediction: a 4.5th of the declared range, squared."""
        return ((self.high - self.low) / 4.5) ** 2

    def rank_of(self, round: int) -> int:
        """Width of the row that a contribution of ``round`` carries.

        Raises:
          ConfigurationError: the task has no such round.
        """
        self.check_round(round)
        return self.rank if round >= FIRST_FACTOR_ROUND else 0

    def target_clip(self, round: int) -> float:
        """Bound of the absolute target in a round of biases or factors."""
        return self.factor_target_clip if round >= FIRST_FACTOR_ROUND else self.bias_target_clip

    def vector_clip(self, round: int) -> float:
        """Bound C of all targets of a user in a round of biases or factors: sum of w^2 target^2 <= max_items C^2."""
        return self.factor_vector_clip if round >= FIRST_FACTOR_ROUND else self.bias_vector_clip

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task is no DPAM task, or a number is missing or out of range.
        """
        if definition.WhichOneof("training") != "dpam":
            raise ConfigurationError(f"Expected the training of task {definition.name!r} to be dpam")
        common = common_fields(definition)
        model, data, dpam = definition.model, definition.data, definition.dpam
        if dpam.gradient_steps:
            _validate.integer(rank=model.rank, low=DERIVED_FACTORS + 1, high=MAX_RANK)
            _validate.integer(steps=dpam.steps, low=1, high=MAX_STEPS)
        else:
            _validate.integer(rank=model.rank, low=0, high=MAX_RANK)
            trained = model.rank > DERIVED_FACTORS + model.item_features_width
            _validate.integer(steps=dpam.steps, low=int(trained), high=MAX_STEPS if model.rank else 0)
        _validate.finite(low=data.low, high=data.high, centre=dpam.centre)
        _validate.within(centre=dpam.centre, low=-_FURTHEST, high=_FURTHEST)
        if not -_FURTHEST <= data.low < data.high <= _FURTHEST or data.high - data.low < _NARROWEST:
            raise ConfigurationError(
                f"Expected low={data.low!r} to be below high={data.high!r} by {_NARROWEST:g} at least, both within "
                f"{_FURTHEST:g} of 0"
            )
        check_ridges(user_bias_ridge=dpam.user_bias_ridge)
        _validate.within(kernel_variance=dpam.kernel_variance, low=0.0, high=MAX_KERNEL_VARIANCE if model.rank else 0.0)
        _validate.one_of(ITEMS_ENCODINGS, items_encoding=encoding_of(dpam.items_encoding))
        check_noises(definition.privacy.epsilon, **(_gradient if dpam.gradient_steps else _gramian)(definition))
        return cls(
            **common,
            low=data.low,
            high=data.high,
            bias_target_clip=dpam.bias_target_clip,
            factor_target_clip=dpam.factor_target_clip,
            bias_vector_clip=dpam.bias_vector_clip,
            factor_vector_clip=dpam.factor_vector_clip,
            bias_mass_noise=dpam.bias_mass_noise,
            bias_sum_noise=dpam.bias_sum_noise,
            gram_noise=dpam.gram_noise,
            centre=dpam.centre,
            user_ridge=dpam.user_ridge,
            user_bias_ridge=dpam.user_bias_ridge,
            item_ridge=dpam.item_ridge,
            kernel_variance=dpam.kernel_variance,
            gradient=dpam.gradient_steps,
        )


def _gramian(definition: common_pb2.TaskDefinition) -> dict[str, float]:
    """The noises of a task of Gram matrices, whose other numbers are checked. Raises ConfigurationError."""
    model, dpam = definition.model, definition.dpam
    check_clips(bias_target_clip=dpam.bias_target_clip, bias_vector_clip=dpam.bias_vector_clip)
    _validate.within(item_ridge=dpam.item_ridge, low=0.0, high=1e12)
    _validate.within(bias_vector_clip=dpam.bias_vector_clip, low=0.0, high=dpam.bias_target_clip)
    noises = {"count_noise_std": dpam.count_noise_std, "bias_mass_noise": dpam.bias_mass_noise}
    noises["bias_sum_noise"] = dpam.bias_sum_noise
    if model.rank:
        check_ridges(user_ridge=dpam.user_ridge)
    if dpam.steps:
        check_clips(
            row_clip=dpam.row_clip,
            factor_target_clip=dpam.factor_target_clip,
            factor_vector_clip=dpam.factor_vector_clip,
        )
        # The enclave puts a constant 1 in front of the row: on a grid of ROW_UNITS, a longer row would leave it 0.
        _validate.within(row_clip=dpam.row_clip, low=0.0, high=ROW_UNITS)
        _validate.within(factor_vector_clip=dpam.factor_vector_clip, low=0.0, high=dpam.factor_target_clip)
        noises |= {"gram_noise": dpam.gram_noise, "target_noise": dpam.target_noise}
    return noises


#: What gradient steps do not read, and a definition of them has to leave out.
_GRAMIAN_ALONE = (
    "bias_target_clip", "factor_target_clip", "bias_sum_noise", "bias_vector_clip", "weight_exponent", "item_ridge",
)  # fmt: skip


def _gradient(definition: common_pb2.TaskDefinition) -> dict[str, float]:
    """The noises of a task of gradients, whose other numbers are checked. Raises ConfigurationError."""
    dpam = definition.dpam
    for name in _GRAMIAN_ALONE:
        _validate.within(low=0.0, high=0.0, **{name: getattr(dpam, name)})
    if dpam.weighting != common_pb2.DpamTraining.WEIGHTING_ADAPTIVE:
        raise ConfigurationError("Expected the weighting of gradient steps to be adaptive (2)")
    check_clips(row_clip=dpam.row_clip, factor_vector_clip=dpam.factor_vector_clip)
    check_ridges(user_ridge=dpam.user_ridge)
    names = ("count_noise_std", "bias_mass_noise", "target_noise", "gram_noise")
    return {name: getattr(dpam, name) for name in names}

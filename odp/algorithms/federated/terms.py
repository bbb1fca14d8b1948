"""The numbers of one federated training, read from its definition and checked: for every party."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.cohorts import MOST_BLOCKS, MOST_SAMPLED_BLOCKS, check_schedule, draw_of
from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.optimizers import OptimizerKind, ServerOptimizer
from odp.algorithms.dense.rotated import RotatedGrid
from odp.algorithms.dense.uploads import Upload, upload_of
from odp.errors import ConfigurationError
from odp.models.examples import ExamplesTerms
from odp.models.local_training import LocalTraining
from odp.models.trained import TrainedModel, model_of
from odp.numerics.arrays import Float32Array, Float64Array
from odp.numerics.row_squares import row_squares
from odp.v1 import common_pb2, federated_pb2

if TYPE_CHECKING:
    from odp.privacy.adaptive_clip import ClipTerms

RELEASE = "update"
PARAMETERS = "parameters"
CLIP = "clip"

_TRAININGS = ("fedavg", "dpsgd", "dpftrl", "private_fl")

MOST_ROUNDS = 10_000
_LEAST_CLIP, _LARGEST_CLIP = 1e-9, 1e9

OPTIMIZERS = {
    OptimizerKind.SGD: federated_pb2.ServerOptimizerTerms.KIND_SGD,
    OptimizerKind.ADAM: federated_pb2.ServerOptimizerTerms.KIND_ADAM,
    OptimizerKind.YOGI: federated_pb2.ServerOptimizerTerms.KIND_YOGI,
}
_OPTIMIZER_OF = {number: kind for kind, number in OPTIMIZERS.items()}


def joint_clip(*, bit: float, spread: float) -> float:
    """L2 bound of a contribution, in units of the clip norm, by the weights of its further numbers; 0 for none.

    That of an adaptive clip norm is at most ``bit`` / 2, that of the update spread at most ``spread``.
    """
    return math.sqrt(1.0 + bit**2 / 4.0 + spread**2) * (1.0 + 2.0**-50) if bit or spread else 1.0


@dataclass(frozen=True)
class AdaptiveClip:
    """An ``odp.v1.AdaptiveClip``, checked."""

    quantile: float
    rate: float
    weight: float


@dataclass(frozen=True)
class Block:
    """Equal rounds, the grid of their contributions, and the divisor of their sums."""

    rounds: int
    grid: Grid | RotatedGrid
    cohort: float


@dataclass(frozen=True)
class Terms:
    """An ``odp.v1.FederatedTraining``, checked; ``spread`` is the weight of its number, 0 for none."""

    model: TrainedModel
    examples: ExamplesTerms
    local: LocalTraining
    optimizer: ServerOptimizer
    clip: float
    cohort: float
    blocks: tuple[Block, ...]
    adaptive: AdaptiveClip | None
    spread: float = 0.0

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: another training, or a field is missing, out of range, or of another training.
        """
        if (training := definition.WhichOneof("training")) not in _TRAININGS:
            raise ConfigurationError(
                f"Expected the training of task {definition.name!r} to be one of {', '.join(_TRAININGS)}"
            )
        if definition.WhichOneof("local_data") != "examples":
            raise ConfigurationError(f"Expected task {definition.name!r} to have examples")
        if definition.privacy.max_items_per_user:
            raise ConfigurationError("Expected max_items_per_user to be 0: the clip norm bounds a user")
        message: federated_pb2.FederatedTraining = getattr(definition, training)
        model = model_of(definition)
        examples = ExamplesTerms.of(definition.examples)
        model = model.reading(examples)
        examples.check_label(model.classes_range)
        _validate.within(low=_LEAST_CLIP, high=_LARGEST_CLIP, clip=message.clip)
        _validate.within(low=1.0, high=1e9, cohort=message.cohort)
        local, adaptive, spread = LocalTraining.of(message.local), _adaptive(message), _spread(message)
        model.check_training(local)
        if training == "dpsgd" and (local.rate, local.epochs, local.proximal) != (1.0, 1, 0.0):
            raise ConfigurationError("Expected the work of a device in DP-SGD to be one step of rate=1 in epochs=1")
        if training == "dpsgd" and local.reconstruction is not None:
            raise ConfigurationError("Expected no reconstruction in DP-SGD: its devices take one step")
        if training == "dpsgd" and local.batch < local.most_examples:
            raise ConfigurationError(f"Expected batch={local.batch} to hold most_examples={local.most_examples}")
        if message.HasField("stream") != (training == "dpftrl"):
            raise ConfigurationError(f"Expected a stream in DP-FTRL, and only there (got training={training!r})")
        if message.HasField("report") != (training == "private_fl"):
            raise ConfigurationError(f"Expected a report in PrivateFL, and only there (got training={training!r})")
        if training == "private_fl" and (adaptive is not None or spread):
            raise ConfigurationError(
                "Expected no adaptive clip norm and no spread in PrivateFL: only its report is sent"
            )
        bit = 0.0 if adaptive is None else adaptive.weight
        blocks = _blocks(
            message, definition.cohort, size=model.size + (adaptive is not None) + (spread > 0.0),
            bound=joint_clip(bit=bit, spread=spread),
        )  # fmt: skip
        check_schedule(definition.cohort, rounds=sum(block.rounds for block in blocks))
        _check_sampled(definition.cohort, blocks)
        return cls(
            model, examples, local, _optimizer(message.server), message.clip, message.cohort, blocks, adaptive, spread
        )

    @property
    def rounds(self) -> int:
        """Of all blocks."""
        return sum(block.rounds for block in self.blocks)

    def upload(self, round: int) -> Upload:
        """How a round's contributions travel. Raises ConfigurationError where the task has no such round."""
        return upload_of(self.block_of(round).grid, round)

    def block_of(self, round: int) -> Block:
        """The block of a round. Raises ConfigurationError where the task has no such round."""
        _validate.integer(low=0, high=self.rounds - 1, round=round)
        left = round
        for block in self.blocks:
            if left < block.rounds:
                return block
            left -= block.rounds
        raise ConfigurationError("unreachable: the blocks are shorter than their sum")

    def contributions(self, moved: Float32Array, clip: float, *, trained: npt.NDArray[np.bool_]) -> Float64Array:
        """What users send of differences [users, size], before it is rounded: [users, numbers of the grid].

        ``trained`` bool [users] are those with a usable example; others send zeros, and count in no quantile. A user
        who trained and moved by nothing has a norm within the clip norm, so its number follows from no rounding.
        """
        values = moved.astype(np.float64)
        lengths = np.sqrt(row_squares(values))
        values *= (1.0 / np.maximum(lengths, clip))[:, None]
        columns = [values]
        if self.adaptive is not None:
            half = self.adaptive.weight / 2.0
            columns.append(np.where(trained, np.where(lengths <= clip, half, -half), 0.0)[:, None])
        if self.spread:
            ratios = lengths / np.maximum(lengths, clip)
            columns.append((self.spread * (ratios * ratios))[:, None])
        return values if len(columns) == 1 else np.concatenate(columns, axis=1)

    def clip_of(self, dense: Mapping[str, Float32Array]) -> float:
        """The clip norm of the round whose model has these tables.

        Raises:
          ConfigurationError: it is missing or out of range.
        """
        if self.adaptive is None:
            return self.clip
        table = dense.get(CLIP, np.zeros((0, 0), dtype=np.float32))
        if table.shape != (1, 1):
            raise ConfigurationError(f"Expected the model to have one clip norm (got shape {list(table.shape)})")
        clip = float(table[0, 0])
        _validate.within(low=_LEAST_CLIP / 2, high=_LARGEST_CLIP * 2, clip=clip)
        return clip

    def clip_terms(self) -> ClipTerms:
        """How the clip norm follows its quantile. Raises ConfigurationError where it stays."""
        from odp.privacy.adaptive_clip import ClipTerms

        if self.adaptive is None:
            raise ConfigurationError("Expected an adaptive clip norm")
        return ClipTerms(
            start=self.clip, cohort=self.cohort, bit_std=self.blocks[0].grid.noise_std / self.adaptive.weight,
            quantile=self.adaptive.quantile, rate=self.adaptive.rate,
        )  # fmt: skip

    def bits_of(self, released: Float64Array, round: int) -> float:
        """The noisy sum of centred bits in a release, as if the round had the cohort of ``clip_terms``."""
        if self.adaptive is None:
            raise ConfigurationError("Expected an adaptive clip norm")
        scale = self.cohort / self.block_of(round).cohort
        return float(released[self.model.size]) / self.adaptive.weight * scale

    def parameters(self, table: Float32Array) -> Float32Array:
        """The published parameters as one vector, float32 [size].

        Raises:
          ConfigurationError: another shape, or a number that is not finite.
        """
        if table.shape != (self.model.size, 1) or not np.isfinite(table).all():
            raise ConfigurationError(f"Expected {self.model.size} finite parameters (got shape {list(table.shape)})")
        return table[:, 0].astype(np.float32)


def _optimizer(message: federated_pb2.ServerOptimizerTerms) -> ServerOptimizer:
    if message.kind not in _OPTIMIZER_OF:
        raise ConfigurationError(f"Expected a server optimizer of {', '.join(kind.value for kind in OptimizerKind)}")
    return ServerOptimizer(
        kind=_OPTIMIZER_OF[message.kind], rate=message.rate, momentum=message.momentum,
        second_moment=message.second_moment,
        adaptivity=message.adaptivity,
    )  # fmt: skip


def _check_sampled(cohort: common_pb2.CohortTerms, blocks: Sequence[Block]) -> None:
    """Raises ConfigurationError where the epsilon of rounds with sampling would take too long to judge."""
    if not cohort.HasField("enclave_poisson"):
        return
    grids = [block.grid for block in blocks for _ in range(block.rounds)]
    starts = {0, *itertools.accumulate(block.rounds for block in blocks)}
    starts.update(itertools.accumulate(block.rounds for block in cohort.schedule))
    different = {(draw_of(cohort, start), grids[start]) for start in starts if start < len(grids)}
    if len(different) > MOST_SAMPLED_BLOCKS:
        raise ConfigurationError(
            f"Expected at most {MOST_SAMPLED_BLOCKS} different rounds in cohort_schedule and noise_schedule with "
            f"sampling (got {len(different)}): take longer blocks"
        )


def _adaptive(message: federated_pb2.FederatedTraining) -> AdaptiveClip | None:
    if not message.HasField("adaptive_clip"):
        return None
    terms = message.adaptive_clip
    _validate.within(low=0.0, high=1.0, quantile=terms.quantile)
    _validate.within(low=1e-6, high=10.0, clip_rate=terms.rate)
    _validate.within(low=1e-6, high=1.0, weight=terms.weight)
    return AdaptiveClip(terms.quantile, terms.rate, terms.weight)


def _spread(message: federated_pb2.FederatedTraining) -> float:
    if not message.HasField("spread"):
        return 0.0
    _validate.within(low=1e-6, high=1.0, spread_weight=message.spread.weight)
    return message.spread.weight


def _blocks(
    training: federated_pb2.FederatedTraining, cohort: common_pb2.CohortTerms, *, size: int, bound: float
) -> tuple[Block, ...]:
    messages = training.blocks
    _validate.integer(low=1, high=MOST_BLOCKS, blocks=len(messages))
    blocks = []
    for message in messages:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=message.rounds)
        if message.HasField("dense") is message.HasField("rotated"):
            raise ConfigurationError("Expected every block of rounds to be either dense or rotated")
        grid: Grid | RotatedGrid
        if message.HasField("rotated"):
            grid = RotatedGrid.of(message.rotated, cohort, size=size)
        else:
            grid = Grid.of(message.dense, cohort, size=size)
        _validate.within(low=bound, high=bound, dense_clip=grid.clip)
        if bool(message.cohort) != bool(cohort.schedule):
            raise ConfigurationError("Expected blocks of rounds to have a cohort with a schedule of cohorts, only")
        divisor = message.cohort or training.cohort
        _validate.within(low=1.0, high=1e9, cohort_of_block=divisor)
        blocks.append(Block(message.rounds, grid, divisor))
    _validate.integer(low=1, high=MOST_ROUNDS, rounds=sum(block.rounds for block in blocks))
    return tuple(blocks)

"""What a developer chooses for DP-FTRL."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.dpftrl.query import MOST_BANDS, MOST_TREE_ROUNDS, fits_ring, growth, require_state, terms_of
from odp.algorithms.federated.config import EpochTraining
from odp.errors import ConfigurationError
from odp.models.trained import model_of
from odp.privacy.matrix.blt import MOST_BUFFERS
from odp.privacy.matrix.sensitivity import Participation
from odp.protocol.aggregation import mode_of

if TYPE_CHECKING:
    from odp.algorithms.dense.grid import Grid
    from odp.privacy.matrix.encoding import EncoderMatrix, Stream
    from odp.v1 import common_pb2, federated_pb2

BANDED, TREE, BLT = "banded", "tree", "blt"

# Vectors that an encoder keeps unless the developer asks for more.
_DEFAULT_BANDS = 16
# Contributions that a round takes, over its goal: those that arrive before it closes are not refused.
_ROOM = 2
# Fractional bits of coefficients, finest first: with masks, encoded sums have to fit 32 bits.
_BITS = (10, 8, 6, 4)


@_validate.strict_keywords
@dataclass(frozen=True)
class DPFTRL(EpochTraining):
    """Federated training whose rounds are one stream: little noise on sums of many rounds, without sampling.

    Devices come when they can. A device is in at most ``max_participations`` rounds, any two of them at least
    ``min_separation`` apart: enclave and device enforce both, and the charge follows from them. A larger separation
    costs less.

    Attributes:
      rate, epochs, batch, most_examples, proximal, reconstruction: as of ``odp.DPFedAvg``.
      min_separation: rounds from one participation of a device to its next, at least; 1 allows every round.
      max_participations: of a device; None is what the separation leaves.
      mechanism: "banded", "tree" or "blt". A banded matrix has the least noise where ``bands`` is near
        ``min_separation``; "blt" keeps little where that is large; "tree" is the simplest.
      bands: of "banded": the aggregator keeps the sums of one round less than that. None is ``min_separation``, at most
        16.
      buffers: of "blt".

    Raises:
      ConfigurationError: a number is out of range; an adaptive clip norm or a noise schedule, which a stream cannot
        have.

    Source: Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling"; Choquette-Choo
    et al. 2023, "Multi-epoch matrix factorization mechanisms for private machine learning".
    """

    field: ClassVar[str] = "dpftrl"

    min_separation: int = 1
    max_participations: int | None = None
    mechanism: str = BANDED
    bands: int | None = None
    buffers: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_quantile is not None or self.noise_schedule is not None:
            raise ConfigurationError(
                "Expected no clip_quantile and no noise_schedule with DPFTRL: clip norm and noise are those of a whole "
                "stream, charged before its first round; odp.DPFedAvg has both"
            )
        refused = {
            "cohort_schedule": self.cohort_schedule, "noise_multiplier": self.noise_multiplier,
            "diagnostics": self.diagnostics or None,
        }  # fmt: skip
        for name, value in refused.items():
            if value is not None:
                raise ConfigurationError(
                    f"Expected no {name}={value!r} with DPFTRL: its rounds are one stream of one grid, whose noise "
                    "follows from the budget; odp.DPFedAvg has it"
                )
        if self.upload_bits is not None:
            raise ConfigurationError(
                f"Expected no upload_bits={self.upload_bits} with DPFTRL: the enclave encodes sums on one grid"
            )
        _validate.one_of((BANDED, TREE, BLT), mechanism=self.mechanism)
        self.allowed()
        if self.bands is not None:
            if self.mechanism != BANDED:
                raise ConfigurationError(f"Expected no bands={self.bands} with mechanism={self.mechanism!r}")
            _validate.integer(low=1, high=min(self.rounds, MOST_BANDS), bands=self.bands)
        _validate.integer(low=1, high=MOST_BUFFERS, buffers=self.buffers)
        if self.mechanism == TREE:
            _validate.integer(low=1, high=MOST_TREE_ROUNDS, rounds=self.rounds)

    def allowed(self) -> Participation:
        """How devices take part."""
        _validate.integer(low=1, high=self.rounds, min_separation=self.min_separation)
        most = -(-self.rounds // self.min_separation)
        if self.max_participations is not None:
            _validate.integer(low=1, high=self.rounds, max_participations=self.max_participations)
            most = min(most, self.max_participations)
        return Participation(rounds=self.rounds, most=most, separation=self.min_separation)

    def matrix(self, bits: int) -> EncoderMatrix:
        """The encoder matrix; ``bits`` of a banded one's coefficients."""
        bands = min(self.min_separation, _DEFAULT_BANDS) if self.bands is None else self.bands
        return _matrix(self.mechanism, self.allowed(), bands, self.buffers, bits)

    def _resolved(
        self, definition: common_pb2.TaskDefinition, written: federated_pb2.FederatedTraining
    ) -> list[federated_pb2.DenseRounds]:
        from odp.v1 import federated_pb2

        cohort = definition.cohort
        if definition.privacy.epsilon == math.inf:
            raise ConfigurationError(
                "Expected epsilon to be finite; odp.simulate(.., noise=False) shows a training without noise"
            )
        mode = mode_of(cohort)
        if mode.in_session:
            raise ConfigurationError(
                f"Expected an aggregation whose noise the enclave draws, with odp.DPFTRL (got {mode.name!r}): noise of "
                "the devices would be on each sum, and has to be on the encoded one"
            )
        if cohort.HasField("enclave_poisson"):
            raise ConfigurationError("Expected no sampling with odp.DPFTRL: its charge assumes none")
        stream, grid = self._chosen(definition, wraps=mode.dense_only)
        written.stream.CopyFrom(terms_of(stream.matrix, stream.allowed))
        return [federated_pb2.DenseRounds(rounds=self.rounds, dense=grid.to_proto())]

    def _chosen(self, definition: common_pb2.TaskDefinition, *, wraps: bool) -> tuple[Stream, Grid]:
        """The finest coefficients and grid whose encoded sums fit, 32 bits where sums wrap around."""
        for bits in _BITS if wraps and self.mechanism == BANDED else _BITS[:1]:
            matrix = self.matrix(bits)
            require_state(matrix, model_of(definition).size)
            if wraps:
                growth(matrix)  # refuses what masks cannot go with
            if (grid := self._grid(definition, matrix, wraps=wraps)) is not None:
                return grid
        raise ConfigurationError(
            f"Expected encoded sums of a cohort of goal={definition.cohort.goal} to fit 32 bits: lower "
            "the goal, take fewer bands or a smaller model, or aggregation='enclave'"
        )

    def _grid(
        self, definition: common_pb2.TaskDefinition, matrix: EncoderMatrix, *, wraps: bool
    ) -> tuple[Stream, Grid] | None:
        from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Grid
        from odp.privacy.accounting import mu_for
        from odp.privacy.matrix.encoding import Stream

        privacy, size, allowed = definition.privacy, model_of(definition).size, self.allowed()
        budget = {"epsilon": privacy.epsilon, "delta": privacy.delta}
        maximum = min(_ROOM * definition.cohort.goal, MAX_CONTRIBUTIONS)
        about = matrix.sensitivity(allowed) / mu_for(**budget, coordinates=size * self.rounds)
        finest = Grid.chosen(size=size, clip=1.0, noise_std=about, maximum=maximum)
        for bits in range(finest.bits, 0, -1):
            try:
                stream = Stream.within_budget(
                    matrix=matrix, allowed=allowed, size=size, clip=1.0, step=2.0**-bits, **budget
                )
                grid = Grid(size=size, clip=1.0, bits=bits, noise_std=stream.noise_std, maximum=maximum)
            except ConfigurationError:  # of a matrix that rounds, noise and its finest grid depend on the step
                continue
            if not wraps or fits_ring(stream, grid):
                return stream, grid
        return None


@functools.lru_cache(maxsize=32)
def _matrix(mechanism: str, allowed: Participation, bands: int, buffers: int, bits: int) -> EncoderMatrix:
    from odp.privacy.matrix import design
    from odp.privacy.matrix.tree import TreeMatrix

    if mechanism == TREE:
        return TreeMatrix(allowed.rounds)
    if mechanism == BLT:
        return design.blt(allowed, buffers=buffers)
    return design.banded_toeplitz(allowed.rounds, bands, bits=bits)

"""The declared query of a round of DP-FTRL: one place of the task's stream.

=============  =======  ======================================  =========================  =============  ==============
release        shape    row t of C G, G the sums over users of  sensitivity (all rounds)   noise std      grid
=============  =======  ======================================  =========================  =============  ==============
``update``     [size]   difference of the parameters / clip     sens(C)                    noise_std      step / 2^bits
=============  =======  ======================================  =========================  =============  ==============

A contribution keeps the bound 1 in L2, in integers, as in all federated training. One user moves all releases of the
stream together by at most sens(C), the maximum over the rounds that the participation allows (``Stream``). The charge
of the whole stream comes with round 0.

Source: Denisov et al. 2022; Choquette-Choo et al. 2023, theorem 2.1.

The stream of one DP-FTRL task, read from its definition and checked: for every party.

Contributions have norm at most 1, in units of the clip norm, on a grid of step 2^-grid_bits. With masks, sums are known
modulo 2^32 alone. Encoding is linear with whole coefficients, so what is released modulo 2^32 is the release itself
modulo 2^32, whatever hostile devices added: post-processing. It is exact for honest ones where encoded sums and their
noise fit 32 bits.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.declared import StreamSum
from odp.algorithms.dense.grid import Grid
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.federated.terms import RELEASE, Terms
from odp.errors import ConfigurationError
from odp.privacy.events import StreamRelease
from odp.privacy.matrix.banded import BandedMatrix
from odp.privacy.matrix.blt import BITS, BufferedMatrix
from odp.privacy.matrix.encoding import Encoder, EncoderMatrix, Stream
from odp.privacy.matrix.sensitivity import Participation
from odp.privacy.matrix.tree import TreeMatrix
from odp.protocol.aggregation import mode_of
from odp.v1 import common_pb2, federated_pb2

MOST_BANDS = 512
#: Rounds of a tree: its sensitivity takes a device too long to compute for more.
MOST_TREE_ROUNDS = 2048

#: Bytes of past sums that the aggregator's enclave keeps of one stream, and seals after each round.
MOST_STATE_BYTES = 2**29

_RING = 2**31
_NOISE_DEVIATIONS = 14.0


@dataclass(frozen=True)
class StreamOfTask:
    """The stream of a task, its one charge, and the grid of its contributions."""

    stream: Stream
    event: StreamRelease
    grid: Grid


def stream_of(definition: common_pb2.TaskDefinition, terms: Terms) -> StreamOfTask:
    """The stream of a definition whose ``terms`` were read.

    Raises:
      ConfigurationError: a number is missing or out of range, or of another training.
    """
    if len(terms.blocks) != 1 or terms.adaptive is not None:
        raise ConfigurationError("Expected one block of rounds and a clip norm that stays: noise of past rounds has it")
    if terms.spread:
        raise ConfigurationError("Expected no update spread with DP-FTRL: a stream releases differences alone")
    if definition.cohort.schedule:
        raise ConfigurationError("Expected no schedule of cohorts with DP-FTRL: its stream has one divisor")
    if definition.cohort.HasField("enclave_poisson"):
        raise ConfigurationError("Expected no sampling with DP-FTRL: its charge assumes none")
    mode = mode_of(definition.cohort)
    if mode.in_session:
        raise ConfigurationError(
            f"Expected an aggregation whose noise the enclave draws, with DP-FTRL (got {mode.name!r}): noise of the "
            "devices would be on each sum, and has to be on the encoded one"
        )
    grid = terms.blocks[0].grid
    if not isinstance(grid, Grid):
        raise ConfigurationError("Expected no upload_bits with DP-FTRL: the enclave encodes sums on one grid")
    task_stream = _stream(definition.dpftrl.stream.SerializeToString(deterministic=True), terms.rounds, grid)
    if mode.dense_only:
        require_ring(task_stream.stream, task_stream.grid)
    return task_stream


@functools.lru_cache(maxsize=16)
def _stream(data: bytes, rounds: int, grid: Grid) -> StreamOfTask:
    message = federated_pb2.StreamTerms.FromString(data)
    matrix = _matrix(message, rounds)
    require_state(matrix, grid.size)
    allowed = Participation(rounds=rounds, most=message.most, separation=message.separation)
    stream = Stream(
        matrix=matrix, allowed=allowed, size=grid.size, clip=grid.clip, step=grid.step, noise_std=grid.noise_std
    )
    return StreamOfTask(stream, stream.event(RELEASE), grid)


def _matrix(message: federated_pb2.StreamTerms, rounds: int) -> EncoderMatrix:
    if (kind := message.WhichOneof("matrix")) == "tree":
        _validate.integer(low=1, high=MOST_TREE_ROUNDS, rounds=rounds)
        return TreeMatrix(rounds)
    if kind == "banded":
        coefficients = message.banded.coefficients
        _validate.integer(low=1, high=min(rounds, MOST_BANDS), bands=len(coefficients))
        _validate.integer(low=0, high=2**40, largest_coefficient=max(coefficients))
        numbers = np.array(coefficients, dtype=np.int64)
        if (np.diff(numbers) > 0).any():
            raise ConfigurationError("Expected the coefficients of a stream to be non-increasing")
        return BandedMatrix(np.broadcast_to(numbers, (rounds, len(numbers))), message.banded.bits)
    if kind == "buffered":
        unit, buffers = 2.0**BITS, message.buffered
        return BufferedMatrix(
            [scale / unit for scale in buffers.scales], [decay / unit for decay in buffers.decays], rounds
        )
    raise ConfigurationError("Expected a stream to have an encoder matrix")


def terms_of(matrix: EncoderMatrix, allowed: Participation) -> federated_pb2.StreamTerms:
    """The inverse, for the matrices that a task can have. Raises ConfigurationError for others."""
    written = federated_pb2.StreamTerms(most=allowed.most, separation=allowed.separation)
    if isinstance(matrix, TreeMatrix):
        written.tree.SetInParent()
    elif isinstance(matrix, BandedMatrix):
        written.banded.bits = matrix.bits
        written.banded.coefficients.extend(matrix.diagonals[-1].tolist())
    elif isinstance(matrix, BufferedMatrix):
        written.buffered.scales.extend(matrix.scales)
        written.buffered.decays.extend(matrix.decays)
    else:
        raise ConfigurationError(f"Expected a matrix that a task definition can name, got {matrix!r}")
    return written


def require_state(matrix: EncoderMatrix, size: int) -> None:
    """Raises ConfigurationError where past sums of ``size`` numbers take more than ``MOST_STATE_BYTES``."""
    if isinstance(matrix, BandedMatrix):
        vectors, remedy = matrix.bands - 1, "fewer bands"
    elif isinstance(matrix, BufferedMatrix):
        vectors, remedy = len(matrix.scales), "fewer buffers"
    else:
        vectors, remedy = matrix.rounds.bit_length(), "fewer rounds"
    if 8 * vectors * size > MOST_STATE_BYTES:
        raise ConfigurationError(
            f"Expected past sums of a stream to take at most {MOST_STATE_BYTES} bytes (got {8 * vectors * size}: "
            f"{vectors} vectors of {size} numbers): take {remedy}, or a smaller model"
        )


def growth(matrix: EncoderMatrix) -> int:
    """The most that encoding multiplies numbers by, in steps of either grid.

    Raises:
      ConfigurationError: encoding is not exact, so sums modulo 2^32 cannot be encoded.
    """
    if isinstance(matrix, TreeMatrix):
        return 1 << (matrix.levels - 1)
    if isinstance(matrix, BandedMatrix):
        return int(matrix.diagonals[-1].sum())
    raise ConfigurationError(
        "Expected mechanism='banded' or 'tree', or aggregation='enclave': sums that are known modulo 2^32 alone need "
        "an exact encoder, and that of mechanism='blt' rounds"
    )


def fits_ring(stream: Stream, grid: Grid) -> bool:
    """Whether encoded sums of any accepted contributions, and their noise, fit 32 bits. Raises as ``growth``."""
    largest = grid.maximum * grid.units * growth(stream.matrix)
    return largest + math.ceil(_NOISE_DEVIATIONS * stream.noise_ratio) < _RING


def require_ring(stream: Stream, grid: Grid) -> None:
    """Raises ConfigurationError unless ``fits_ring``."""
    if not fits_ring(stream, grid):
        raise ConfigurationError(
            f"Expected encoded sums of maximum={grid.maximum} contributions to fit 32 bits with masks: lower the "
            "cohort's goal, take fewer bands, or aggregation='enclave'"
        )


_WRAPPED_LIMIT = 2**31


class StreamedQuery(DenseQuery):
    """``odp.algorithms.seam.StreamQuery`` of the round ``place``."""

    def __init__(self, of_task: StreamOfTask, place: int) -> None:
        super().__init__(RELEASE, of_task.grid)
        stream, event = of_task.stream, of_task.event
        self._stream = stream
        self.allowed = stream.allowed
        self.releases = (StreamSum(RELEASE, (stream.size,), stream.encoded_step, event, place),)

    def encoder(self, *, wrapped: bool = False, state: bytes | None = None) -> Encoder:
        limit = self.grid.maximum * self.grid.units
        if wrapped:
            require_ring(self._stream, self.grid)
            limit = _WRAPPED_LIMIT
        return self._stream.matrix.encoder(self._stream.size, limit=limit, state=state)

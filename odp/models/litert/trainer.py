"""Who runs a network's program on a device: the device's runtime behind walls, or a simulation in its own process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from odp.models.litert.program import Array, Program
from odp.numerics.arrays import Float32Array, Int64Array

if TYPE_CHECKING:
    from odp.models.local_training import LocalTraining

#: Address space of one training, in bytes: more than a program may need on any device.
MOST_MEMORY = 2**30
# LiteRT, Python and what a call holds besides; then copies of the parameters (start, variables, gradients, steps, the
# result and its text) and of the examples (theirs, as text, of a batch).
_FIXED_MEMORY, _COPIES_OF_PARAMETERS, _COPIES_OF_EXAMPLES = 128 * 2**20, 16, 4


@dataclass(frozen=True)
class LocalSteps:
    """Steps of the local parameters alone, from those that they start with, before the shared ones are trained.

    Attributes:
      batches: rows of each step.
      rate: step size.
    """

    batches: Sequence[Int64Array]
    rate: float


class ProgramTrainer(Protocol):
    """Trains programs, and tests them; thread-safe."""

    def require(self, program: Program, *, most_examples: int) -> None:
        """Returns if it can run the program on that number of examples: a function of public facts alone.

        Raises:
          ConfigurationError: it cannot, whatever the examples are.
        """

    def difference(
        self,
        program: Program,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Sequence[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
    ) -> Float32Array:
        """As ``odp.models.litert.runner.Runner.difference``. May raise anything: then nothing was trained."""

    def measured(
        self, program: Program, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0
    ) -> Measured:
        """What the program says of each example. May raise anything: then nothing was measured.

        With ``items``, the places of the examples' items alone (``Runner.places``).
        """


@dataclass(frozen=True)
class Measured:
    """Of n examples: what a program says, of the declared shapes and nothing more.

    Attributes:
      losses: float32 [n]; empty with ``items``.
      predictions: float32 [n, ..], as the program declares; empty with ``items``.
      places: int64 [n], from 0 to ``items`` - 1; empty without.
    """

    losses: Float32Array
    predictions: Float32Array
    places: Int64Array


class Engine(Protocol):
    """Trains one program of one's own in this process; one thread at a time."""

    def difference(
        self,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Iterable[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
        out: Float32Array | None = None,
    ) -> Float32Array:
        """As ``odp.models.litert.runner.Runner.difference``; in ``out`` float32 [shared_size], where it is given."""


def local_steps(training: LocalTraining, examples: int, *, seed: int, round: int) -> LocalSteps | None:
    """The steps of a device's reconstruction; None where the training has none."""
    if training.reconstruction is None:
        return None
    batches = list(training.local_batches(examples, seed=seed, round=round))
    return LocalSteps(batches, training.reconstruction.rate)


def memory_needed(program: Program, *, most_examples: int) -> int:
    """Bytes that one training takes at most, about, where the program's tensors are as small as its examples'."""
    of_example = 4 * sum(spec.size for spec in (*program.features, program.target))
    return _FIXED_MEMORY + 4 * _COPIES_OF_PARAMETERS * program.size + _COPIES_OF_EXAMPLES * most_examples * of_example

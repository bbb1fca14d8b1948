"""A program of one's own, run in this process: simulations and their evaluation. Needs ai-edge-litert.

LiteRT trains one user after the other, as devices do: a step of a small network takes it less time than TensorFlow
needs to start one, and users need no padding. Another engine may train instead, as TensorFlow does for large
convolutions (``odp.models.litert.tensorflow_runner``). Memory is that of one user, whatever the population.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp._system.extras import require
from odp.errors import DataError
from odp.models.litert.program import Program, inputs_of, targets_of
from odp.models.litert.trainer import Engine, Measured, local_steps
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples


class OwnProgram:
    """Trains and measures a network; one thread at a time.

    Args:
      program: what is trained.
      engine: trains it; LiteRT where it is None. LiteRT measures in any case.

    Raises:
      ConfigurationError: ai-edge-litert is missing, or the program is not one that devices accept.
      ProgramFailed: LiteRT does not load the program.
    """

    def __init__(self, program: Program, *, engine: Engine | None = None) -> None:
        require("ai_edge_litert", to="run networks")
        from odp.models.litert.runner import Runner

        self._program = program
        self._runner = Runner(program)
        self._engine: Engine = engine or self._runner

    def differences(
        self,
        start: Float32Array,
        examples: UsersExamples,
        training: LocalTraining,
        *,
        seeds: npt.NDArray[np.uint64],
        round: int,
        users: slice,
        out: Float32Array,
    ) -> Float32Array:
        """As ``TrainedModel.differences``.

        Raises:
          DataError: there is not one seed per user.
          ProgramFailed: the engine is LiteRT, and failed.
        """
        first = users.start
        if len(seeds) != users.stop - first or out.shape != (len(seeds), self._program.shared_size):
            raise DataError(f"Expected a seed and a row for each of the users {first} to {users.stop}")
        for place, seed in enumerate(seeds.tolist()):
            features, targets = examples.of(first + place)
            batches = training.batches(len(targets), seed=seed, round=round)
            self._engine.difference(
                start, inputs_of(self._program, features), targets_of(self._program, targets), batches,
                rate=training.rate, proximal=training.proximal,
                local=local_steps(training, len(targets), seed=seed, round=round), out=out[place],
            )  # fmt: skip
        return out

    def reconstructed(
        self,
        start: Float32Array,
        features: Float32Array,
        targets: Float32Array,
        training: LocalTraining,
        *,
        seed: int,
        round: int,
    ) -> Float32Array:
        """``start`` [size] with local parameters as a device with these examples has them. Raises ProgramFailed."""
        if (local := local_steps(training, len(targets), seed=seed, round=round)) is None:
            return start
        return self._runner.reconstructed(
            start, inputs_of(self._program, features), targets_of(self._program, targets), local
        )

    def predictions(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """What the model says of each example, float32 [n, ..]. Raises ProgramFailed."""
        return self._runner.predictions(vector, inputs_of(self._program, features))

    def measures(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> dict[str, Float64Array]:
        """Loss and metrics of each example by name, float64 [n]. Raises ProgramFailed."""
        measured = self._runner.measures(vector, inputs_of(self._program, features), targets_of(self._program, targets))
        return {name: values.astype(np.float64) for name, values in measured.items()}

    def measured(
        self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, items: int = 0
    ) -> Measured:
        """As ``ProgramTrainer.measured``. Raises ProgramFailed."""
        inputs, wanted = inputs_of(self._program, features), targets_of(self._program, targets)
        return self._runner.measured(vector, inputs, wanted, items=items)

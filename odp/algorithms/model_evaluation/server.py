"""The server's half of an evaluation: it publishes the evaluated parameters, and they stay as they are.

State: magic, 1 after the round and 0 before, then the parameters, float32 little-endian [models, size].
"""

from __future__ import annotations

import struct

import numpy as np

from odp.algorithms.dense.records import ROUND
from odp.algorithms.model_evaluation.terms import Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion, TableValues

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpeval1"


class EvaluationServer:
    """``odp.algorithms.seam.Server`` of one task.

    Args:
      parameters: as the definition names them, float32 [models, size]; None where nothing is started, as in a
        computation of the queries alone.
    """

    rounds = 1

    def __init__(self, terms: Terms, parameters: Float32Array | None) -> None:
        self._terms = terms
        self._parameters = parameters

    def start(self) -> bytes:
        """The parameters. Raises ConfigurationError where they are missing or of another shape."""
        shape = (len(self._terms.tables), self._terms.model.size)
        if self._parameters is None or self._parameters.shape != shape:
            raise ConfigurationError(f"Expected the parameters {list(shape)} that the task definition names")
        return _HEADER.pack(_MAGIC, 0) + self._parameters.astype("<f4").tobytes()

    def broadcast(self, state: bytes) -> ModelVersion:
        """One dense table float32 [size, 1] per model; version 1, after the round, has the same ones.

        Raises:
          StateError: ``state`` is not of this task.
        """
        done, parameters = self._unpacked(state)
        tables = zip(self._terms.tables, parameters, strict=True)
        return ModelVersion(done, tuple(TableValues(name, row[:, None], keyed=False) for name, row in tables))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The same parameters: the release has the answers. Raises ConfigurationError after the task's one round."""
        done, parameters = self._unpacked(state)
        if done or release.round != ROUND:
            raise ConfigurationError(f"Expected round={release.round!r} to be {ROUND}, and to be applied once")
        return _HEADER.pack(_MAGIC, 1) + parameters.astype("<f4").tobytes()

    def _unpacked(self, state: bytes) -> tuple[int, Float32Array]:
        shape = (len(self._terms.tables), self._terms.model.size)
        if len(state) != _HEADER.size + 4 * shape[0] * shape[1]:
            raise StateError(f"The state has {len(state)} bytes, and is of another task; restore a backup")
        magic, done = _HEADER.unpack_from(state)
        if magic != _MAGIC or done > self.rounds:
            raise StateError("The state is of another task or damaged; restore a backup")
        return done, np.frombuffer(state[_HEADER.size :], dtype="<f4").reshape(shape).astype(np.float32)

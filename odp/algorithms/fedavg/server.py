"""DP-FedAvg's server half: from noisy sums to the next parameters. Untrusted: it sees nothing but releases.

State: a header (magic, next round), then float64 little-endian: parameters [size], moments [slots, size].
"""

from __future__ import annotations

import struct

import numpy as np

from odp.algorithms.fedavg.terms import PARAMETERS, RELEASE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float64Array
from odp.wire.model import ModelVersion, TableValues

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpfeda1"
_LARGEST = 1e30  # of a parameter: it stays finite in float32


class FedAvgServer:
    """``odp.algorithms.seam.Server`` of one task."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.rounds = terms.rounds

    def start(self) -> bytes:
        """All parameters zero."""
        size = self._terms.model.size
        return _packed(0, np.concatenate((np.zeros((1, size)), self._terms.optimizer.start(size))))

    def broadcast(self, state: bytes) -> ModelVersion:
        """Dense table "parameters" float32 [size, 1].

        Raises:
          StateError: ``state`` is not of this task.
        """
        round, vectors = self._unpacked(state)
        rows = vectors[0].astype(np.float32)[:, None]
        return ModelVersion(round, (TableValues(PARAMETERS, rows, keyed=False),))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The parameters moved by the optimizer's step on clip * sum / cohort: the divisor is public and fixed.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round.
        """
        round, vectors = self._unpacked(state)
        if release.round != round or round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {round}, of {self.rounds} rounds")
        mean = release.tensors[RELEASE] * (self._terms.clip / self._terms.cohort)
        moments, move = self._terms.optimizer.step(vectors[1:], mean)
        moved = np.clip(vectors[0] + move, -_LARGEST, _LARGEST)
        return _packed(round + 1, np.concatenate((moved[None], moments)))

    def _unpacked(self, state: bytes) -> tuple[int, Float64Array]:
        shape = (1 + self._terms.optimizer.slots, self._terms.model.size)
        expected = _HEADER.size + 8 * shape[0] * shape[1]
        if len(state) != expected:
            raise StateError(f"Expected a state of {expected} bytes, got {len(state)}; restore a backup")
        magic, round = _HEADER.unpack_from(state)
        if magic != _MAGIC or round > self.rounds:
            raise StateError("The state is of another task or damaged; restore a backup")
        return round, np.frombuffer(state, dtype="<f8", offset=_HEADER.size).reshape(shape).astype(np.float64)


def _packed(round: int, vectors: Float64Array) -> bytes:
    return _HEADER.pack(_MAGIC, round) + vectors.astype("<f8").tobytes()

"""The server's half of a question: its state is empty before the round, and the released numbers after it."""

from __future__ import annotations

import numpy as np

from odp.algorithms.dense.records import ROUND
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion, TableValues


class VectorServer:
    """``odp.algorithms.seam.Server`` of one task. The state is empty, then the released float64 [size].

    Args:
      name: of the release, and of the model's table.
      size: numbers of it.
    """

    rounds = 1

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size

    def start(self) -> bytes:
        """Nothing."""
        return b""

    def broadcast(self, state: bytes) -> ModelVersion:
        """One dense table float32 [size, 1]: zeros as version 0, the released numbers as version 1.

        Devices do not read version 0: it gives the round an identity. Raises StateError for a state of another task.
        """
        values = self._values(state)
        rows = np.zeros((self._size, 1), dtype=np.float32) if values is None else values[:, None].astype(np.float32)
        return ModelVersion(0 if values is None else self.rounds, (TableValues(self._name, rows, keyed=False),))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The released numbers. Raises ConfigurationError where the task had its round already."""
        if state or release.round != ROUND:
            raise ConfigurationError(f"Expected round={release.round!r} to be {ROUND}, and to be applied once")
        return release.tensors[self._name].astype("<f8").tobytes()

    def _values(self, state: bytes) -> Float64Array | None:
        if not state:
            return None
        if len(state) != 8 * self._size:
            raise StateError(f"Expected a state of {8 * self._size} bytes, got {len(state)}; restore a backup")
        return np.frombuffer(state, dtype="<f8").astype(np.float64)

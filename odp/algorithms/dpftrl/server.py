"""DP-FTRL's server half: noisy encoded sums are decoded, and the parameters follow the estimated sums.

The decoder estimates the sum of all rounds so far. What it grew by since the round before is the round's step: with
plain descent, the parameters are the first ones plus the rate times the estimated sum, as DP-FTRL asks. Momentum and
the adaptive optimizers work on the same differences. All of it is post-processing.

State: length of the training's own state, that state (``FederatedServer``), the last estimate float64 [size], and the
decoder's state.

Source: Kairouz et al. 2021, algorithm 1.
"""

from __future__ import annotations

import struct

import numpy as np

from odp.algorithms.dpftrl.query import StreamOfTask
from odp.algorithms.federated.server import FederatedServer
from odp.algorithms.federated.terms import RELEASE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.privacy.matrix.encoding import Decoder
from odp.protocol.wire.model import ModelVersion

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"odpftrl1"


class StreamServer:
    """``odp.algorithms.seam.Server`` of one task, with the public matrix that its definition names, if it names one."""

    def __init__(self, terms: Terms, of_task: StreamOfTask, matrix: Float32Array | None = None) -> None:
        self._training = FederatedServer(terms, matrix)
        self._stream = of_task.stream
        self.rounds = terms.rounds

    def start(self) -> bytes:
        """The model's own first parameters, and no sums."""
        decoder = self._stream.matrix.decoder(self._stream.size)
        return _packed(self._training.start(), np.zeros(self._stream.size), decoder)

    def broadcast(self, state: bytes) -> ModelVersion:
        return self._training.broadcast(self._unpacked(state)[0])

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The next state. Raises as ``FederatedServer.step``."""
        training, last, decoder = self._unpacked(state)
        encoded = release.tensors[RELEASE] / self._stream.encoded_step
        estimate = decoder.step(encoded) * self._stream.step
        difference = NoisyTensors(release.round, {RELEASE: estimate - last}, release.contributions)
        return _packed(self._training.step(training, difference), estimate, decoder)

    def _unpacked(self, state: bytes) -> tuple[bytes, Float64Array, Decoder]:
        size = self._stream.size
        magic, length = _HEADER.unpack_from(state) if len(state) >= _HEADER.size else (b"", 0)
        start = _HEADER.size + length
        if magic != _MAGIC or len(state) < start + 8 * size:
            raise StateError("The state is of another task or damaged; restore a backup")
        last = np.frombuffer(state, dtype="<f8", count=size, offset=start).astype(np.float64)
        decoder = self._stream.matrix.decoder(size, state=state[start + 8 * size :])
        return state[_HEADER.size : start], last, decoder


def _packed(training: bytes, estimate: Float64Array, decoder: Decoder) -> bytes:
    parts = (_HEADER.pack(_MAGIC, len(training)), training, estimate.astype("<f8").tobytes(), decoder.to_bytes())
    return b"".join(parts)

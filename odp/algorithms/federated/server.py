"""The server half of federated training: from noisy sums to the next parameters. Untrusted: it sees releases alone.

State: a header (magic, next round), then float64 little-endian: parameters [size], moments [slots, size]; with an
adaptive clip norm, then its state.
"""

from __future__ import annotations

import struct

import numpy as np

from odp.algorithms.federated.terms import CLIP, PARAMETERS, RELEASE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.privacy.adaptive_clip import ClipState
from odp.protocol.wire.model import ModelVersion, TableValues

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpfedt1"
_LARGEST = 1e30  # of a parameter: it stays finite in float32


class FederatedServer:
    """``odp.algorithms.seam.Server`` of one task, with the public matrix that its definition names, if it names one."""

    def __init__(self, terms: Terms, matrix: Float32Array | None = None) -> None:
        self._terms = terms
        self._matrix = matrix
        self.rounds = terms.rounds

    def start(self) -> bytes:
        """The model's own first parameters.

        Raises:
          ConfigurationError: they need a public matrix, or another one.
        """
        terms, model = self._terms, self._terms.model
        clip = None if terms.adaptive is None else ClipState.initial(terms.clip_terms())
        vectors = np.concatenate(
            (model.start(self._matrix)[None].astype(np.float64), terms.optimizer.start(model.size))
        )
        return _packed(0, vectors, clip)

    def broadcast(self, state: bytes) -> ModelVersion:
        """Dense table "parameters" float32 [size, 1]; with an adaptive clip norm, "clip" [1, 1].

        Raises:
          StateError: ``state`` is not of this task.
        """
        round, vectors, clip = self._unpacked(state)
        tables = [TableValues(PARAMETERS, vectors[0].astype(np.float32)[:, None], keyed=False)]
        if clip is not None:
            tables.append(TableValues(CLIP, np.full((1, 1), clip.clip, dtype=np.float32), keyed=False))
        return ModelVersion(round, tuple(tables))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The parameters moved by the optimizer's step on clip * sum / cohort: a round's divisor is public and fixed.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round.
        """
        round, vectors, clip = self._unpacked(state)
        if release.round != round or round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {round}, of {self.rounds} rounds")
        terms = self._terms
        released = terms.upload(round).values(release.tensors[RELEASE])
        norm, cohort = terms.clip if clip is None else clip.clip, terms.block_of(round).cohort
        mean = released[: terms.model.size] * (norm / cohort)
        moments, move = terms.optimizer.step(vectors[1:], mean)
        moved = np.clip(vectors[0] + move, -_LARGEST, _LARGEST)
        if clip is not None and terms.adaptive is not None:
            clip = clip.step(terms.bits_of(released, round))
        return _packed(round + 1, np.concatenate((moved[None], moments)), clip)

    def _unpacked(self, state: bytes) -> tuple[int, Float64Array, ClipState | None]:
        terms = self._terms
        shape = (1 + terms.optimizer.slots, terms.model.size)
        end = _HEADER.size + 8 * shape[0] * shape[1]
        clip = None
        if terms.adaptive is not None:
            clip = ClipState.from_bytes(terms.clip_terms(), state[end:])
        elif len(state) != end:
            raise StateError(f"Expected a state of {end} bytes, got {len(state)}; restore a backup")
        magic, round = _HEADER.unpack_from(state)
        if magic != _MAGIC or round > self.rounds:
            raise StateError("The state is of another task or damaged; restore a backup")
        vectors = np.frombuffer(state[_HEADER.size : end], dtype="<f8").reshape(shape).astype(np.float64)
        return round, vectors, clip


def _packed(round: int, vectors: Float64Array, clip: ClipState | None) -> bytes:
    return _HEADER.pack(_MAGIC, round) + vectors.astype("<f8").tobytes() + (b"" if clip is None else clip.to_bytes())

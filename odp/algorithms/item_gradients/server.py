"""The server's half of gradients of an item table: from noisy releases to the next model. Untrusted: it sees no more.

State: a header (magic, next round, users that counted in the round of masses) and float64 arrays, little-endian, whose
shapes follow from the task definition.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from odp.algorithms.dpam.terms import GLOBALS_TABLE, ITEMS_TABLE
from odp.algorithms.factorization.preconditioned import START_STD, Preconditioner, StepSizes, cleaned, typical_root
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.item_gradients.query import declared_releases
from odp.algorithms.item_gradients.terms import MASSES_ROUND, terms_of
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

_HEADER = struct.Struct("<8sId")
_MAGIC = b"odpitgr1"


@dataclass(frozen=True)
class _State:
    """``round`` is the next one to run; ``mass`` float64 [m], ``values`` [m, 1 + rank] are biases and factors."""

    round: int
    users: float
    mass: Float64Array
    values: Float64Array


class ItemGradientServer:
    """``odp.algorithms.seam.Server`` of one task.

    Raises:
      ConfigurationError: the definition is no valid task of this kind, or features are given.
    """

    def __init__(self, definition: common_pb2.TaskDefinition, item_features: Float32Array | None = None) -> None:
        self._terms = terms_of(definition)
        self.rounds = self._terms.rounds
        if item_features is not None:
            raise ConfigurationError("Expected no item_features: gradients of an item table use none")

    def start(self) -> bytes:
        """The state before the round of masses: biases of 0, and public random factors."""
        model = self._terms.model
        values = np.zeros((model.items, 1 + model.rank))
        values[:, 1:] = START_STD * self._terms.unit * public_normals(model.start_seed, (model.items, model.rank))
        return _packed(_State(0, 0.0, np.ones(model.items), values))

    def broadcast(self, state: bytes) -> ModelVersion:
        """The tables of DPAM, with trust 1 everywhere. Raises StateError: ``state`` is not of this task."""
        current, model = self._unpacked(state), self._terms.model
        columns = (self.counts(state), current.values[:, 0], np.ones(model.items), *current.values.T[1:])
        ridges = np.array([[model.user_ridge * model.residual_variance, model.user_bias_ridge]], dtype=np.float32)
        return ModelVersion(
            version=current.round,
            tables=(
                TableValues(ITEMS_TABLE, np.stack(columns, axis=1).astype(np.float32), keyed=True),
                TableValues(GLOBALS_TABLE, ridges, keyed=False),
            ),
        )

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as the masses tell it; 1 before them. Raises StateError as ``broadcast``."""
        current = self._unpacked(state)
        if current.round == MASSES_ROUND:
            return current.mass
        return np.asarray(np.maximum(current.mass * typical_root(current.mass, current.users), 1.0))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The state after a round's release.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round, or its tensor is not the declared one.
        """
        current, terms = self._unpacked(state), self._terms
        if release.round != current.round or current.round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {current.round}, of {self.rounds} rounds")
        (declared,) = declared_releases(terms, release.round)
        tensor = release.tensors.get(declared.name)
        if tensor is None or tensor.shape != declared.shape:
            raise ConfigurationError(
                f"Expected release {declared.name!r} of shape {list(declared.shape)} in round {release.round}"
            )
        following = replace(current, round=current.round + 1)
        if release.round == MASSES_ROUND:
            users = terms.probability * release.contributions
            return _packed(replace(following, users=users, mass=cleaned(tensor, noise_std=declared.noise_std)))
        sizes = StepSizes(terms.steps, terms.rate)
        preconditioner = Preconditioner.of(
            current.mass,
            users=current.users,
            rank=terms.model.rank,
            clip=terms.clip,
            row_clip=terms.row_clip,
            unit=terms.unit,
            noise=declared.noise_std**2 * sizes.averaged,
        )
        rate = float(sizes.rates[release.round - 1])
        return _packed(replace(following, values=preconditioner.step(current.values, tensor, rate=rate)))

    def _unpacked(self, state: bytes) -> _State:
        items, width = self._terms.model.items, 1 + self._terms.model.rank
        if len(state) != _HEADER.size + 8 * items * (1 + width) or state[:8] != _MAGIC:
            raise StateError("Expected the state of this very task: restore it, or start the task again")
        _, round, users = _HEADER.unpack_from(state)
        flat = np.frombuffer(state, dtype="<f8", offset=_HEADER.size)
        return _State(round, users, flat[:items], flat[items:].reshape(items, width))


def _packed(state: _State) -> bytes:
    arrays = [np.asarray(array, dtype="<f8").tobytes() for array in (state.mass, state.values)]
    return _HEADER.pack(_MAGIC, state.round, state.users) + b"".join(arrays)

"""The server's half of gradients of an item table: from noisy releases to the next model. Untrusted: it sees no more.

State: a header (magic, next round, users that counted in the round of masses) and float64 arrays, little-endian, whose
shapes follow from the task definition.
"""

from __future__ import annotations

import abc
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from odp.algorithms.dpam.terms import GLOBALS_TABLE, ITEMS_TABLE, Terms as RatingTerms
from odp.algorithms.factorization.preconditioned import START_STD, Preconditioner, StepSizes, cleaned, typical_root
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.item_gradients.query import declared_releases
from odp.algorithms.item_gradients.terms import MASSES_ROUND, Terms, terms_of
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

_HEADER = struct.Struct("<8sId")
_MAGIC = b"odpitgr1"
_Model = TypeVar("_Model", bound=CommonTerms)


@dataclass(frozen=True)
class State:
    """``round`` is the next one to run; ``mass`` float64 [m], ``values`` [m, k] are what is learned of the items."""

    round: int
    users: float
    mass: Float64Array
    values: Float64Array


class GradientServer(abc.ABC, Generic[_Model]):
    """What servers of gradients have in common.

    Args:
      terms: of the task.
      width: k of the state's values.
      item_features: None: gradients use none.

    Raises:
      ConfigurationError: features are given.
    """

    def __init__(self, terms: Terms[_Model], width: int, item_features: Float32Array | None) -> None:
        self._terms, self._width, self._sizes = terms, width, StepSizes(terms.steps, terms.rate)
        self.rounds = terms.rounds
        if item_features is not None:
            raise ConfigurationError("Expected no item_features: gradients of an item table use none")

    @abc.abstractmethod
    def _tables(self, current: State) -> tuple[TableValues, ...]:
        """Of the model."""

    @abc.abstractmethod
    def _begun(self, mass: Float64Array, users: float) -> Float64Array:
        """Values before the first gradients, [m, k]."""

    @abc.abstractmethod
    def _stepped(self, current: State, tensors: Mapping[str, Float64Array], noise: float, rate: float) -> Float64Array:
        """Values after a round of gradients; ``noise`` is the variance of that of all steps together."""

    def start(self) -> bytes:
        """The state before the round of masses: every item looks alike."""
        mass = np.ones(self._terms.model.items)
        return _packed(State(0, 0.0, mass, self._begun(mass, 1.0)))

    def broadcast(self, state: bytes) -> ModelVersion:
        """The model of a state. Raises StateError: ``state`` is not of this task."""
        current = self._unpacked(state)
        return ModelVersion(version=current.round, tables=self._tables(current))

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as the masses tell it; 1 before them. Raises StateError as ``broadcast``."""
        return popularity(self._unpacked(state))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The state after a round's release.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round, its tensors are not the declared ones, or no model
            follows from numbers of that size.
        """
        current, terms = self._unpacked(state), self._terms
        if release.round != current.round or current.round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {current.round}, of {self.rounds} rounds")
        declared = declared_releases(terms, release.round)
        for expected in declared:
            tensor = release.tensors.get(expected.name)
            if tensor is None or tensor.shape != expected.shape:
                raise ConfigurationError(
                    f"Expected release {expected.name!r} of shape {list(expected.shape)} in round {release.round}"
                )
        noise_std = declared[0].noise_std
        following = replace(current, round=current.round + 1)
        if release.round == MASSES_ROUND:
            users = terms.probability * release.contributions
            mass = cleaned(release.tensors[declared[0].name], noise_std=noise_std)
            return _packed(replace(following, users=users, mass=mass, values=self._begun(mass, users)))
        try:
            values = self._stepped(
                current,
                release.tensors,
                noise_std**2 * self._sizes.averaged,
                float(self._sizes.rates[release.round - 1]),
            )
        except np.linalg.LinAlgError as error:
            raise ConfigurationError(
                f"Expected the release of round {release.round} to be sums that devices can have sent: its numbers are"
                " far larger, and no model follows from them; ask who runs the aggregator"
            ) from error
        return _packed(replace(following, values=values))

    def _unpacked(self, state: bytes) -> State:
        items = self._terms.model.items
        if len(state) != _HEADER.size + 8 * items * (1 + self._width) or state[:8] != _MAGIC:
            raise StateError("Expected the state of this very task: restore it, or start the task again")
        _, round, users = _HEADER.unpack_from(state)
        flat = np.frombuffer(state, dtype="<f8", offset=_HEADER.size)
        return State(round, users, flat[:items], flat[items:].reshape(items, self._width))


def popularity(current: State) -> Float64Array:
    """About how many users each item has, float64 [m], 1 or more."""
    if current.round == MASSES_ROUND:
        return current.mass
    return np.asarray(np.maximum(current.mass * typical_root(current.mass, current.users), 1.0))


class ItemGradientServer(GradientServer[RatingTerms]):
    """``odp.algorithms.seam.Server`` of a task on ratings; values are biases and factors.

    Raises:
      ConfigurationError: the definition is no valid task of this kind, or features are given.
    """

    def __init__(self, definition: common_pb2.TaskDefinition, item_features: Float32Array | None = None) -> None:
        terms = terms_of(definition)
        super().__init__(terms, terms.width, item_features)

    def _tables(self, current: State) -> tuple[TableValues, ...]:
        """Those of DPAM, with trust 1 everywhere."""
        model = self._terms.model
        columns = (popularity(current), current.values[:, 0], np.ones(model.items), *current.values.T[1:])
        ridges = np.array([[model.user_ridge * model.residual_variance, model.user_bias_ridge]], dtype=np.float32)
        return (
            TableValues(ITEMS_TABLE, np.stack(columns, axis=1).astype(np.float32), keyed=True),
            TableValues(GLOBALS_TABLE, ridges, keyed=False),
        )

    def _begun(self, mass: Float64Array, users: float) -> Float64Array:
        """Biases of 0, and public random factors."""
        model = self._terms.model
        values = np.zeros((model.items, 1 + model.rank))
        values[:, 1:] = START_STD * self._terms.unit * public_normals(model.start_seed, (model.items, model.rank))
        return values

    def _stepped(self, current: State, tensors: Mapping[str, Float64Array], noise: float, rate: float) -> Float64Array:
        terms = self._terms
        preconditioner = Preconditioner.of(
            current.mass,
            users=current.users,
            rank=terms.model.rank,
            clip=terms.clip,
            row_clip=terms.row_clip,
            unit=terms.unit,
            noise=noise,
        )
        return preconditioner.step(current.values, tensors["gradients"], rate=rate)


def _packed(state: State) -> bytes:
    arrays = [np.asarray(array, dtype="<f8").tobytes() for array in (state.mass, state.values)]
    return _HEADER.pack(_MAGIC, state.round, state.users) + b"".join(arrays)

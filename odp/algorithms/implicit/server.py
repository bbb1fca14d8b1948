"""The server half of DPAM on implicit feedback: from noisy releases to the next model. It sees nothing but releases.

After the counts, the head (items of largest noisy count) gets public random rows; every factor round then solves

    v_j = (A_j + unobserved_weight S + ridge I)^-1 b_j

from the right-hand sides b and the users' Gramian S of the round. A_j is the item's released Gram matrix, or, without
``item_grams``, its mass times the mean of all users' u u': at real budgets that costs nothing and is closer.

State: a header (magic, next round) and float64 arrays, little-endian, whose shapes follow from the task definition.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

import numpy as np

from odp.algorithms.factorization.popularity import popularity
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.implicit import estimation
from odp.algorithms.implicit.query import declared_releases
from odp.algorithms.implicit.terms import COUNTS_ROUND, GRAMIAN_TABLE, ITEMS_TABLE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2
from odp.wire.model import ModelVersion, TableValues

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpimpl1"
_BLOCK = 4096


@dataclass(frozen=True)
class _State:
    """``round`` is the next one to run. ``counts`` [m] >= 0, relative ``weights`` [m], 0 off the head, ``factors``."""

    round: int
    counts: Float64Array
    weights: Float64Array
    factors: Float64Array


class ImplicitServer:
    """``odp.algorithms.seam.Server`` of one task.

    Raises:
      ConfigurationError: the definition is no valid task on implicit data.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)
        self.rounds = self._terms.rounds

    def start(self) -> bytes:
        """The state before the round of counts: every item looks alike."""
        ones = np.ones(self._terms.items)
        return _packed(_State(0, ones, ones, np.zeros((self._terms.items, self._terms.rank))))

    def broadcast(self, state: bytes) -> ModelVersion:
        """Keyed table "items" [m, 1 + rank]: relative weight, factors. Dense table "gramian" [rank, rank]: V'V.

        Raises:
          StateError: ``state`` is not of this task.
        """
        current = self._unpacked(state)
        rows = np.concatenate((current.weights[:, None], current.factors), axis=1).astype(np.float32)
        gramian = (current.factors.T @ current.factors).astype(np.float32)
        return ModelVersion(
            version=current.round,
            tables=(TableValues(ITEMS_TABLE, rows, keyed=True), TableValues(GRAMIAN_TABLE, gramian, keyed=False)),
        )

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The state after a round's release.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round, or its tensors are not the declared ones.
        """
        current = self._unpacked(state)
        if release.round != current.round or current.round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {current.round}, of {self.rounds} rounds")
        tensors = self._tensors(release)
        if current.round == COUNTS_ROUND:
            following = self._after_counts(tensors["counts"], release.contributions)
        else:
            following = replace(current, factors=self._after_factors(current, tensors, release.contributions))
        return _packed(replace(following, round=current.round + 1))

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as the noisy counts tell it; 1 before them.

        Raises:
          StateError: ``state`` is not of this task.
        """
        return self._unpacked(state).counts

    def _after_counts(self, noisy: Float64Array, users: int) -> _State:
        terms = self._terms
        counts = popularity(noisy, noise_std=terms.count_noise_std).mean if terms.noisy else np.maximum(noisy, 0.0)
        weights, factors = np.zeros(terms.items), np.zeros((terms.items, terms.rank))
        order = np.argsort(-noisy, kind="stable")
        relative = self._relative(counts[order])
        size = terms.head_items or self._head_size(counts[order], relative, users)
        head = order[:size]
        weights[head] = relative[:size]
        head = np.sort(head)
        factors[head] = public_normals(terms.start_seed, (len(head), terms.rank)) / math.sqrt(terms.rank)
        return _State(0, counts, weights, factors)

    def _after_factors(self, current: _State, tensors: dict[str, Float64Array], users: int) -> Float64Array:
        terms, rank = self._terms, self._terms.rank
        head = np.flatnonzero(current.weights > 0)
        gramian = estimation.nearest_psd(estimation.unpacked(tensors["gramian"], rank))
        mean_square = float(np.trace(gramian)) / (rank * max(users, 1))
        mass = self._masses(current, users)
        noise_std = terms.target_noise * terms.row_clip
        found = estimation.visitors(tensors["targets"][head], mass[head], noise_std=noise_std)
        # Items outside the head keep their popularity: whoever has seen nothing else is offered what is popular.
        sums = mass[:, None] * found.mean
        sums[head] = found.sums
        rest = terms.unobserved_weight * gramian + (terms.item_ridge * mean_square + 1e-12) * np.eye(rank)
        factors = np.empty((terms.items, rank))
        for start in range(0, terms.items, _BLOCK):
            block = slice(start, start + _BLOCK)
            matrices = mass[block, None, None] * gramian / max(users, 1)
            measured = np.flatnonzero(current.weights[block] > 0)
            if terms.item_grams and len(measured):
                noisy = estimation.unpacked(tensors["gram"][block][measured], rank)
                noise_std = terms.gram_noise * terms.row_clip**2
                matrices[measured] = estimation.item_grams(noisy, mass[block][measured], noise_std=noise_std)
            factors[block] = np.linalg.solve(matrices + rest, sums[block][:, :, None])[:, :, 0]
        if terms.noisy:
            # Gauge: shrinkage changes the scale of rows. A typical item of a history has a row of norm 1, so that the
            # same user ridge and row clip fit every step.
            squares = current.counts[head] @ (factors[head] ** 2).sum(axis=1)
            factors /= math.sqrt(max(squares / current.counts[head].sum(), 1e-300))
        return factors

    def _head_size(self, counts: Float64Array, relative: Float64Array, users: int) -> int:
        """How many of the items (largest count first) have a right-hand side that may stand out of its noise.

        The rule: with every row at its clip, the sum of an item's weights is at least the norm of the noise.
        """
        terms = self._terms
        mass = counts * relative
        if terms.adaptive:
            squares = np.maximum(np.cumsum(mass * relative), 1e-300)
            mass = mass * np.sqrt(terms.max_items * users / squares)
        strong = np.flatnonzero(mass >= terms.target_noise * math.sqrt(terms.rank))
        return min(terms.items, max(int(strong[-1]) + 1 if len(strong) else 0, terms.rank))

    def _masses(self, current: _State, users: int) -> Float64Array:
        """Sums of weights [m], from the counts, as if all items were in the head.

        Adaptive weights have a common factor that fills each user's bound.
        """
        if not self._terms.adaptive:
            return current.counts
        squares = float(current.counts @ current.weights**2)
        relative = self._relative(current.counts)
        return current.counts * relative * math.sqrt(self._terms.max_items * users / max(squares, 1e-300))

    def _relative(self, counts: Float64Array) -> Float64Array:
        """Relative weights [m] of the items, were they all in the head."""
        return np.maximum(counts, 1.0) ** -self._terms.weight_exponent if self._terms.adaptive else np.ones(len(counts))

    def _tensors(self, release: NoisyTensors) -> dict[str, Float64Array]:
        found = {}
        for declared in declared_releases(self._terms, release.round):
            tensor = release.tensors.get(declared.name)
            if tensor is None or tensor.shape != declared.shape:
                raise ConfigurationError(
                    f"Expected release {declared.name!r} of shape {list(declared.shape)} in round {release.round}"
                )
            found[declared.name] = np.asarray(tensor, dtype=np.float64)
        return found

    def _unpacked(self, state: bytes) -> _State:
        items, rank = self._terms.items, self._terms.rank
        if len(state) != _HEADER.size + 8 * items * (2 + rank) or state[:8] != _MAGIC:
            raise StateError("Expected the state of this very task: restore it, or start the task again")
        flat = np.frombuffer(state, dtype="<f8", offset=_HEADER.size)
        factors = flat[2 * items :].reshape(items, rank)
        return _State(int(_HEADER.unpack_from(state)[1]), flat[:items], flat[items : 2 * items], factors)


def _packed(state: _State) -> bytes:
    arrays = (state.counts, state.weights, state.factors)
    return _HEADER.pack(_MAGIC, state.round) + b"".join(np.asarray(array, dtype="<f8").tobytes() for array in arrays)

"""DPAM's server half: from noisy releases to the next model. Untrusted: it sees nothing but releases.

State: a header (magic, next round) and float64 arrays, little-endian, whose shapes follow from the task definition.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, fields, replace

import numpy as np

from odp.algorithms.dpam import codec, estimation, features, server_steps
from odp.algorithms.dpam.estimation import relevances
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNTS_ROUND, DERIVED_FACTORS, FIRST_FACTOR_ROUND, Terms
from odp.algorithms.factorization.popularity import Popularity, popularity
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.factorization.terms import named_features
from odp.algorithms.seam import NoisyTensors
from odp.errors import StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpdpam3"
# Of versions in which all features counted alike.
_MAGIC_ALIKE = b"odpdpam2"
# Of versions that also told popularity from the counts alone, and stored it nowhere.
_MAGIC_BEFORE = b"odpdpam1"
# Of item rows, in standard deviations of a rating's residual; with users' rows of covariance 1, derived factors explain
# .2^2 of the residual variance each at the start.
_START_STD = 0.11
_DERIVED_STD = 0.2
# All components of the features together: users' taste for public features explains .26^2 of the residual variance.
_CONTENT_STD = 0.26
# Relevance from which a group counts in full for tastes, and has a part in factors that rounds refine. Chosen on
# validation parts of MovieLens-1M.
_LEAST_BESIDE_FACTORS = 0.4
# Root mean square of a user's targets, in units of the public guess of a residual's standard deviation: while items'
# biases are unknown, and once they are known. Chosen on validation parts of MovieLens-1M.
_SIZE_BEFORE_BIASES = 1.3
_SIZE_AFTER_BIASES = 0.8


@dataclass(frozen=True)
class _State:
    """``round`` is the next one to run. Arrays float64: [m] each, ``factors`` [m, rank], ``ridges`` [2], and
    ``relevance`` [g] of each group of public features alone.

    ``counts`` are noisy, and ``popularity`` is what these and the noisy masses tell of the true ones.
    """

    round: int
    counts: Float64Array
    popularity: Float64Array
    bias: Float64Array
    bias_variance: Float64Array
    mass: Float64Array
    factors: Float64Array
    ridges: Float64Array
    relevance: Float64Array


class DpamServer:
    """``odp.algorithms.seam.Server`` of one task.

    Args:
      definition: the task.
      item_features: the public matrix whose hash the definition carries, float32 [m, p]. Without it the server can
        start, but not step.

    Raises:
      ConfigurationError: the definition is no valid DPAM task, or the features are not the ones that it names.
    """

    def __init__(self, definition: common_pb2.TaskDefinition, item_features: Float32Array | None = None) -> None:
        self._terms, self._definition = Terms.of(definition), definition
        self.rounds = self._terms.rounds
        self._features = None if item_features is None else named_features(self._terms, item_features)

    def start(self) -> bytes:
        """The state before the round of counts: every item looks alike."""
        terms = self._terms
        ones, zeros = np.ones(terms.items), np.zeros(terms.items)
        ridges = np.array([max(terms.user_ridge, 1e-6) * terms.residual_variance, terms.user_bias_ridge])
        factors, relevance = np.zeros((terms.items, terms.rank)), np.ones(len(terms.item_feature_groups))
        return _packed(_State(0, ones, ones, zeros, zeros, ones, factors, ridges, relevance))

    def broadcast(self, state: bytes) -> ModelVersion:
        """Keyed table "items" [m, 3 + rank]: count, bias, trust, factors. Dense table "globals" [1, 2]: user ridges.

        Raises:
          StateError: ``state`` is not of this task.
        """
        current = self._unpacked(state)
        variance = self._terms.residual_variance
        trust = variance / (variance + current.bias_variance)
        columns = (current.popularity[:, None], current.bias[:, None], trust[:, None], current.factors)
        return server_steps.version(self._terms, current.round, np.concatenate(columns, axis=1), current.ridges)

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The state after a round's release.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round, its tensors are not the declared ones, or no model
            follows from numbers of that size.
        """
        current = self._unpacked(state)
        with server_steps.opened(release, self._terms, self._definition, round=current.round) as sums:
            following = self._following(current, sums)
        return _packed(replace(following, round=current.round + 1))

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as noisy counts and masses tell it; 1 before them.

        Raises:
          StateError: ``state`` is not of this task.
        """
        return self._unpacked(state).popularity

    def _following(self, current: _State, release: NoisyTensors) -> _State:
        if current.round == COUNTS_ROUND:
            counts = self._tensor(release, "counts")
            return replace(current, counts=counts, popularity=self._counted(counts).mean)
        return (self._after_biases if current.round == BIASES_ROUND else self._after_factors)(current, release)

    def _after_biases(self, current: _State, release: NoisyTensors) -> _State:
        terms = self._terms
        mass, item_popularity = estimation.masses(
            self._tensor(release, "mass"),
            self._counted(current.counts),
            current.popularity,
            terms.weight_exponent if terms.adaptive else 0.0,
            noise_std=terms.bias_mass_noise,
        )
        restored = self._restored(current.round)
        sums = restored * self._tensor(release, "sums")
        noise_std = restored * terms.bias_sum_noise * terms.bias_vector_clip
        groups = self._groups(mass.mean)

        def relevance_of(some: list[Float64Array]) -> Float64Array:
            return relevances(
                sums, mass, item_popularity.mean, some, noise_std=noise_std, residual_variance=terms.residual_variance
            )

        bias = estimation.biases(
            sums,
            mass,
            item_popularity.mean,
            features.joined(groups, relevance_of(groups), mass.mean),
            noise_std=noise_std,
            residual_variance=terms.residual_variance,
        )
        stretch = estimation.unclipped(terms.bias_target_clip, terms.residual_variance)
        following = replace(
            current,
            popularity=item_popularity.mean,
            bias=stretch * bias.mean,
            bias_variance=stretch**2 * bias.variance,
            mass=mass.mean,
            # Of each group alone: that another one explains the biases as well says nothing of tastes.
            relevance=np.array([float(relevance_of([group])[0]) for group in groups]),
        )
        return replace(following, factors=self._first_factors(following))

    def _first_factors(self, current: _State) -> Float64Array:
        """Derived columns (bias, log count), then components of the features, then random ones, as the rank allows.

        Random columns are larger for popular items; without a factor round they would stay random, so they are zero.
        """
        terms = self._terms
        derived = np.stack((current.bias, np.log(current.popularity)), axis=1)
        derived = derived - np.average(derived, axis=0, weights=current.mass)
        derived /= np.sqrt(np.average(derived**2, axis=0, weights=current.mass)) + 1e-9
        content = self._content(current)
        informed = np.concatenate((_DERIVED_STD * derived, _CONTENT_STD * content), axis=1)[:, : terms.rank]
        random = public_normals(terms.start_seed, (terms.items, terms.rank - informed.shape[1]))
        random = _START_STD * random if terms.steps else np.zeros_like(random)
        return math.sqrt(terms.residual_variance) * np.concatenate((informed, random), axis=1)

    def _after_factors(self, current: _State, release: NoisyTensors) -> _State:
        terms = self._terms
        width = 1 + terms.rank
        scale = np.concatenate(([1.0 / codec.constant(terms)], np.ones(terms.rank)))
        first, second = np.triu_indices(width)
        gram = estimation.grams(
            self._tensor(release, "gram"),
            current.mass,
            width=width,
            noise_std=terms.gram_noise * terms.full_row_bound**2,
            scale=scale[first] * scale[second],
        )
        content = self._content(current)
        start = np.concatenate((np.zeros((terms.items, 1)), current.factors), axis=1)
        if current.round == FIRST_FACTOR_ROUND:
            start[:, 1 + DERIVED_FACTORS + content.shape[1] :] = 0.0  # a random start is no estimate
        restored = self._restored(current.round)
        rows = features.hybrid_rows(
            restored * self._tensor(release, "targets") * scale,
            gram,
            current.mass / current.popularity,
            start,
            current.bias_variance,
            content,
            noise_std=restored * terms.target_noise * terms.full_row_bound * terms.factor_vector_clip,
            residual_variance=terms.residual_variance,
            ridge=terms.item_ridge,
        )
        # Gauge: rows of users get mean 0 and covariance 1, so that the same ridge and clip fit every step; what their
        # mean contributed moves to the item biases.
        mean = gram.common[0, 1:] / gram.common[0, 0]
        spread = gram.common[1:, 1:] / gram.common[0, 0] - np.outer(mean, mean)
        spread = estimation.nearest_psd(spread[None])[0] + 1e-6 * np.eye(terms.rank)
        factors = rows.mean[:, 1:]
        return replace(
            current,
            bias=current.bias + rows.mean[:, 0] + factors @ mean,
            bias_variance=rows.variance[:, 0],
            factors=(factors - np.average(factors, axis=0, weights=current.mass)) @ np.linalg.cholesky(spread),
        )

    def _restored(self, round: int) -> float:
        """What target sums are multiplied by, since users' targets were shortened to the vector clip on average."""
        size = _SIZE_BEFORE_BIASES if round == BIASES_ROUND else _SIZE_AFTER_BIASES
        return max(1.0, size * math.sqrt(self._terms.residual_variance) / self._terms.vector_clip(round))

    def _content(self, current: _State) -> Float64Array:
        """Components [m, q] of all features that tell something of tastes.

        The variances of groups that tell much add up to at most 1. One that tells little of biases tells less of
        tastes, and where factors are learned from releases it would only be in their way.
        """
        share = np.minimum(current.relevance, 1.0)
        strong = share >= _LEAST_BESIDE_FACTORS
        weak = np.zeros_like(share) if self._terms.steps else share**2
        share = np.where(strong, share / max(1.0, float(share[strong].sum())), weak)
        return features.joined(self._groups(current.mass), share, current.mass)

    def _groups(self, mass: Float64Array) -> list[Float64Array]:
        return server_steps.feature_groups(self._terms, self._features, mass)

    def _counted(self, counts: Float64Array) -> Popularity:
        return popularity(counts, noise_std=self._terms.count_noise_std)

    def _tensor(self, release: NoisyTensors, name: str) -> Float64Array:
        shapes = {"gram": (self._terms.items, self._terms.pairs), "targets": (self._terms.items, 1 + self._terms.rank)}
        return server_steps.tensor(release, name, shapes.get(name, (self._terms.items,)))

    def _unpacked(self, state: bytes) -> _State:
        terms = self._terms
        magic = state[:8]
        groups = (len(terms.item_feature_groups),)
        shapes = [(terms.items,)] * (4 if magic == _MAGIC_BEFORE else 5) + [(terms.items, terms.rank), (2,)]
        shapes += [groups] if magic == _MAGIC else []
        length = sum(math.prod(shape) for shape in shapes)
        if len(state) != _HEADER.size + 8 * length or magic not in (_MAGIC, _MAGIC_ALIKE, _MAGIC_BEFORE):
            raise StateError("Expected the state of this very DPAM task: restore it, or start the task again")
        round = int(_HEADER.unpack_from(state)[1])
        flat = np.frombuffer(state, dtype="<f8", offset=_HEADER.size)
        arrays, start = [], 0
        for shape in shapes:
            size = math.prod(shape)
            arrays.append(flat[start : start + size].reshape(shape))
            start += size
        if magic != _MAGIC:
            arrays.append(np.ones(groups))
        if magic == _MAGIC_BEFORE:
            arrays.insert(1, self._counted(arrays[0]).mean if round else arrays[0])
        return _State(round, *arrays)


def _packed(state: _State) -> bytes:
    arrays = [np.asarray(getattr(state, field.name), dtype="<f8").tobytes() for field in fields(state)[1:]]
    return _HEADER.pack(_MAGIC, state.round) + b"".join(arrays)

"""The server half of DPAM on implicit feedback: from noisy releases to the next model. It sees nothing but releases.

It alternates users' rows and items' rows of the best approximation of low rank of X, the interactions weighted by
(noisy count)^-weight_exponent, each user of length 1: least |X - U V'|^2 over all cells, by subspace iteration.
After the counts, the head (items of largest noisy count) gets rows with orthonormal columns: what public features tell,
an earlier model's items among them, and random ones. Every factor round then measures X'X times them, and the columns
of the combined estimate of all rounds start the next one.

The finished model is the filter of these directions: a user's row is the sum over its items of weight times row, its
score of an item the product of both rows. With noise, popularity is one direction, the others count as far as the last
round confirms them (``evidence.py``), and each by the square root of its strength; without, it is the ideal low-pass
filter, between weights to the left and their inverses to the right.

Source: Cremonesi, Koren, Turrin 2010 (PureSVD); Shen et al. 2021 (arXiv 2108.07567, GF-CF) for weights and filter.

State, little-endian: a header (magic, next round, size of the head); float64 counts [m] and weights [m]; float32
factors [m, rank]; and per finished factor round float64 users and float32 [h, rank] twice, start and sums of the head.
The finished state has no rounds.

From noisy sums to item rows: empirical Bayes with the known noise level, all of it post-processing.

Let M [h, h] be the mean of x x' over users, x a user's weighted interactions of length 1. A factor round that starts
from V (orthonormal columns) releases Y = sum over users of x times the direction of x V: a noisy measurement of M V, up
to a factor. Subspace iteration goes on from the last Y alone. Here every round counts: each is a linear measurement of
the same M, and what they say together of M W, for a basis W of the newest subspace, has less noise than the last.

Source: Halko, Martinsson, Tropp 2011 (arXiv 0909.4061) for subspace iteration; Hardt and Price 2014 (arXiv 1311.2495)
for its noisy form; Efron and Morris 1973 for shrinkage. The combination and the variance model are derived here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odp.algorithms.factorization.popularity import popularity
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.factorization.terms import named_features
from odp.algorithms.implicit.evidence import Products, evidence
from odp.algorithms.implicit.query import declared_releases
from odp.algorithms.implicit.terms import COUNTS_ROUND, ITEMS_TABLE, LARGEST_FACTOR, TAIL_WEIGHT, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

_STEPS = 10
_COMBINATIONS = 2
# What features tell is first unknown and counts as the items' own variance: the second and third time it does not.
_FEATURE_TURNS = 3
# Of the largest eigenvalue: directions that the rounds measured less are estimated as if they had this much.
_LEAST_INFORMATION = 1e-6
# Of the largest singular value: columns of features that say less are rounding error.
_LEAST_DIRECTION = 1e-6

#: A training round scales its rows so that a user of random taste has a row of this many clips.
REACH = 4.0


@dataclass(frozen=True)
class Estimate:
    """What rounds tell of M: ``sums`` [h, d] are M ``basis``, of orthonormal columns [h, d]; of one round, times c."""

    sums: Float64Array
    basis: Float64Array


@dataclass(frozen=True)
class Measurement:
    """One factor round: ``sums`` [h, d] over ``users`` whose rows have length 1, from ``start`` [h, d], orthonormal."""

    users: float
    start: Float32Array
    sums: Float32Array

    @property
    def scale(self) -> float:
        """c in sums = c M start + noise: users by the mean length of x V, which the trace of V' sums tells.

        The length is at most 1, and is taken to be no less than what makes a row reach its clip.
        """
        users = max(self.users, 1.0)
        total = float(np.einsum("hd,hd->", self.start, self.sums, dtype=np.float64))
        least = math.sqrt(self.start.shape[1] / len(self.start)) / REACH
        return users / min(max(total / users, least), 1.0)

    def products(self, *, noise_std: float, first: int = 0) -> Products:
        """M times the columns of the start from ``first`` on; ``noise_std`` is that of every entry of ``sums``."""
        start, sums = (columns[:, first:].astype(np.float64) for columns in (self.start, self.sums))
        return Products(start, sums / self.scale, noise_std / self.scale)


def visitors(
    noisy: Float64Array,
    mass: Float64Array,
    *,
    noise_std: float,
    directions: Float64Array | None = None,
    supported: bool = False,
) -> Float64Array:
    """Noisy right-hand sides [h, d], shrunk toward mass times what all items have in common, and features tell of it.

    Model: noisy_j = mass_j x_j + noise, x_j ~ N(mean + features_j B, covariance). The mean is the least-squares one.
    Along each direction of the features, B is the least-squares one by a factor of James and Stein, 0 where the energy
    is no more than items without features would have. The covariance is estimated by a few steps of EM. Where noise
    drowns an item, it keeps its popularity and what features tell, and loses its own character.

    Args:
      noisy: [h, d].
      mass: estimated masses [h] > 0, up to a common factor, on which ``sums`` do not depend.
      noise_std: of every entry of ``noisy``; with 0 they are returned as they are.
      directions: orthonormal columns [h, k] of mass times features (``feature_directions``); None is the first one
        alone.
      supported: leaves out axes of the covariance that noise alone may explain: those that raise the log likelihood by
        at most d. The first of d axes of pure noise reaches about d (the edge of its eigenvalues).
    """
    mean = mass @ noisy / max(float(mass @ mass), 1e-300)
    if not noise_std:
        return noisy
    variance = noise_std**2
    expected, start = _predicted_sums(noisy, mass, mean, variance=variance, directions=directions)
    off = noisy - expected
    covariance = start * np.eye(noisy.shape[1])
    for _ in range(_STEPS):
        # In the covariance's own axes every coordinate of every item is a scalar problem.
        values, axes = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        prior_variance = mass[:, None] ** 2 * values
        gain = prior_variance / (prior_variance + variance)
        turned = off @ axes
        change = gain * turned / mass[:, None]
        spread = change.T @ change + np.diag((values * (1.0 - gain)).sum(axis=0))
        covariance = axes @ (spread / len(noisy)) @ axes.T
        covariance = (covariance + covariance.T) / 2
    if supported:
        likelihood = 0.5 * (gain * turned**2 / variance - np.log1p(prior_variance / variance)).sum(axis=0)
        change = change * (likelihood > len(likelihood))
    return np.asarray(expected + mass[:, None] * (change @ axes.T))


def _predicted_sums(
    noisy: Float64Array, mass: Float64Array, mean: Float64Array, *, variance: float, directions: Float64Array | None
) -> tuple[Float64Array, float]:
    """(what mean and features tell of the sums [h, d], mean variance of an item's x_j around it in each column)."""
    first = mass[:, None] * mean
    expected, start = first, 0.0
    for turn in range(1 if directions is None else 1 + _FEATURE_TURNS):
        if directions is not None and turn:
            further = directions[:, 1:]
            coefficients = further.T @ noisy
            alike = noisy.shape[1] * (variance + start * (mass**2 @ further**2))
            expected = first + further @ (
                np.maximum(1.0 - alike / np.square(coefficients).sum(axis=1), 0.0)[:, None] * coefficients
            )
        spread = float(np.square(noisy - expected).mean()) - variance
        start = max(spread, 1e-3 * variance) / float((mass**2).mean())
    return expected, start


def combined(
    measurements: Sequence[Measurement],
    mass: Float64Array,
    *,
    noise_std: float,
    directions: Float64Array | None = None,
    supported: bool = False,
) -> Estimate:
    """M W [h, d] up to a factor, from all rounds so far, W a basis of the column space of the newest estimate.

    With Y_s = c_s M V_s + noise and M V_s ~ M W W' V_s, each round measures M W through B_s = c_s W' V_s. The
    least-squares sums are turned and scaled so that their noise is white, shrunk, and turned back. What lies outside of
    W counts as noise of its round: the second time, a round's noise is that of its residuals, if that is more.

    Args:
      measurements: in the order of the rounds; of the newest alone, its sums are shrunk.
      mass, directions, supported: as of ``visitors``.
      noise_std: of every entry of every round's sums; with 0, the newest sums are exact and are returned.
    """
    newest, single = measurements[-1], len(measurements) == 1
    sums = visitors(
        newest.sums.astype(np.float64), mass, noise_std=noise_std, directions=directions, supported=supported and single
    )
    estimate = Estimate(sums, newest.start.astype(np.float64))
    if single or not noise_std:
        return estimate
    stds = [noise_std] * len(measurements)
    for turn in range(_COMBINATIONS):
        basis = orthonormal(estimate.sums)
        information = np.zeros((basis.shape[1], basis.shape[1]))
        sums = np.zeros_like(basis)
        reaches = [basis.T @ measured.start * measured.scale for measured in measurements]
        for measured, reach, std in zip(measurements, reaches, stds, strict=True):
            information += reach @ reach.T / std**2
            sums += measured.sums @ (reach.T / std**2)
        values, axes = np.linalg.eigh(information)
        root = np.sqrt(np.maximum(values, _LEAST_INFORMATION * values[-1]))
        last = turn == _COMBINATIONS - 1
        white = visitors(sums @ axes / root, mass, noise_std=1.0, directions=directions, supported=supported and last)
        estimate = Estimate((white / root) @ axes.T, basis)
        residuals = [
            measured.sums - estimate.sums @ reach for measured, reach in zip(measurements, reaches, strict=True)
        ]
        stds = [max(noise_std, math.sqrt(float(np.square(residual).mean()))) for residual in residuals]
    return estimate


def confirmed(
    measurements: Sequence[Measurement],
    mass: Float64Array,
    estimate: Estimate,
    *,
    noise_std: float,
    directions: Float64Array | None,
) -> Float64Array:
    """M [h, d] times popularity, and times what all rounds but the last found, as far as the last one confirms it.

    The first column is ``mass`` itself, up to its length, since counts tell popularity better than sums do. The others
    are at right angles to it, and near 0 where people have no tastes (``evidence``).

    Args:
      measurements: two or more, in the order of the rounds.
      estimate: what they tell together.
      mass, noise_std, directions: as of ``combined``.
    """
    before = combined(measurements[:-1], mass, noise_std=noise_std, directions=directions).sums
    popular = (mass / np.linalg.norm(mass))[:, None]
    earlier = np.linalg.svd(before - popular @ (popular.T @ before), full_matrices=False)[0][:, :-1]
    sums = estimate.sums @ (estimate.basis.T @ np.concatenate((popular, earlier), axis=1))
    strength = np.linalg.norm(sums[:, 0])
    tastes = sums[:, 1:] - popular @ (popular.T @ sums[:, 1:])
    tastes *= evidence(
        earlier, mass,
        random=measurements[0].products(noise_std=noise_std, first=0 if directions is None else directions.shape[1]),
        last=measurements[-1].products(noise_std=noise_std),
        users=measurements[-1].users, rounds=len(measurements),
    )  # fmt: skip
    return np.concatenate((popular * strength, tastes), axis=1)


def orthonormal(columns: Float64Array) -> Float64Array:
    """An orthonormal basis [h, d] of a space that has the columns of [h, d], d <= h."""
    return np.asarray(np.linalg.qr(columns)[0])


def feature_directions(features: Float64Array, mass: Float64Array) -> Float64Array:
    """Orthonormal columns [h, at most 1 + p]: ``mass`` [h] itself, then those of mass times features, strongest first.

    An item's row of sums is its mass times what its users have in common, which ``features`` [h, p] may tell.
    """
    first = (mass / max(float(np.linalg.norm(mass)), 1e-300))[:, None]
    columns = mass[:, None] * features
    largest = float(np.linalg.norm(columns, axis=0).max())
    columns = columns - first @ (first.T @ columns)
    basis, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.concatenate((first, basis[:, values > _LEAST_DIRECTION * largest]), axis=1)


def spectral_map(sums: Float64Array, *, exponent: float) -> Float64Array:
    """T [d, d] such that, with sums = U diag(s) W', sums T = U diag((s / s_1)^exponent).

    Directions whose singular value is rounding error become 0.
    """
    _, values, axes = np.linalg.svd(sums, full_matrices=False)
    real = values > values[0] * max(sums.shape) * np.finfo(np.float64).eps
    inverse = np.zeros_like(values)
    inverse[real] = (values[real] / values[0]) ** exponent / values[real]
    return np.asarray(axes.T * inverse)


_HEADER = struct.Struct("<8sII")
_MAGIC = b"odpimpl2"
# With noise, of a direction's strength, in the rows of both sides.
_STRENGTH_EXPONENT = 0.25


@dataclass(frozen=True)
class _State:
    """``round`` is the next one to run. ``counts`` [m] >= 0, relative ``weights`` [m] and ``factors`` [m, rank].

    Until the model is finished, weights and factors are 0 off the head, and ``measurements`` has the factor rounds.
    """

    round: int
    counts: Float64Array
    weights: Float64Array
    factors: Float32Array
    measurements: tuple[Measurement, ...] = ()


class ImplicitServer:
    """``odp.algorithms.seam.Server`` of one task.

    Args:
      definition: the task.
      item_features: the public matrix whose hash the definition carries, float32 [m, p]. Without it the server can
        start, but not step.

    Raises:
      ConfigurationError: the definition is no valid task on implicit data, or the features are not those that it names.
    """

    def __init__(self, definition: common_pb2.TaskDefinition, item_features: Float32Array | None = None) -> None:
        self._terms = Terms.of(definition)
        self.rounds = self._terms.rounds
        self._features = None if item_features is None else named_features(self._terms, item_features)

    def start(self) -> bytes:
        """The state before the round of counts: every item looks alike."""
        ones = np.ones(self._terms.items)
        return _packed(_State(0, ones, ones, np.zeros((self._terms.items, self._terms.rank), dtype=np.float32)))

    def broadcast(self, state: bytes) -> ModelVersion:
        """Keyed table "items" [m, 1 + rank]: relative weight, factors.

        Raises:
          StateError: ``state`` is not of this task.
        """
        current = self._unpacked(state)
        rows = np.concatenate((current.weights[:, None].astype(np.float32), current.factors), axis=1)
        return ModelVersion(version=current.round, tables=(TableValues(ITEMS_TABLE, rows, keyed=True),))

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
            return _packed(self._after_counts(tensors["counts"], release.contributions))
        return _packed(self._after_factors(current, tensors["targets"], release.contributions))

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as the noisy counts tell it; 1 before them.

        Raises:
          StateError: ``state`` is not of this task.
        """
        return self._unpacked(state).counts

    def _after_counts(self, noisy: Float64Array, users: int) -> _State:
        terms = self._terms
        counts = popularity(noisy, noise_std=terms.count_noise_std).mean if terms.noisy else np.maximum(noisy, 0.0)
        order = np.argsort(-noisy, kind="stable")
        relative = self._relative(counts)
        head = np.sort(order[: terms.head_items or self._head_size(counts[order], relative[order], users)])
        weights = np.zeros(terms.items)
        weights[head] = relative[head]
        start = self._first_columns(head, counts * relative)
        return _State(COUNTS_ROUND + 1, counts, weights, self._training_factors(head, start))

    def _first_columns(self, head: Int64Array, mass: Float64Array) -> Float64Array:
        """Orthonormal columns [h, rank] that the first factor round measures: what features tell, and random ones."""
        random = public_normals(self._terms.start_seed, (len(head), self._terms.rank))
        if (directions := self._feature_directions(head, mass)) is None:
            return orthonormal(random)
        directions = directions[:, : self._terms.rank]
        return orthonormal(np.concatenate((directions, random[:, directions.shape[1] :]), axis=1))

    def _feature_directions(self, head: Int64Array, mass: Float64Array) -> Float64Array | None:
        """Directions of the head's public features; None without features."""
        if not self._terms.item_features_width:
            return None
        if self._features is None:
            raise ConfigurationError("Expected item_features: the task definition names a matrix that was not given")
        return feature_directions(self._features[head].astype(np.float64), mass[head])

    def _after_factors(self, current: _State, targets: Float64Array, users: int) -> _State:
        terms, head = self._terms, np.flatnonzero(current.weights > 0)
        following, unit = current.round + 1, math.sqrt(terms.max_items)
        start = current.factors[head]
        measured = Measurement(
            users=float(users),
            start=start / np.linalg.norm(start[:, 0]),
            sums=(targets[head] / (unit * terms.row_clip)).astype(np.float32),
        )
        measurements = (*current.measurements, measured)
        mass = current.counts * self._relative(current.counts)
        features = self._feature_directions(head, mass)
        noise_std, last = terms.target_noise / unit, following == self.rounds
        estimate = combined(measurements, mass[head], noise_std=noise_std, directions=features, supported=last)
        if last:
            sums = estimate.sums
            if terms.noisy and min(len(measurements), terms.rank) > 1:
                sums = confirmed(measurements, mass[head], estimate, noise_std=noise_std, directions=features)
            weights, factors = self._finished(current, head, sums)
            return _State(following, current.counts, weights, factors)
        factors = self._training_factors(head, orthonormal(estimate.sums))
        return _State(following, current.counts, current.weights, factors, measurements)

    def _training_factors(self, head: Int64Array, columns: Float64Array) -> Float32Array:
        """Factors [m, rank] of a training round: orthonormal ``columns`` [h, rank] of the head, scaled.

        With noise, most rows of users are longer than the clip, so that users count alike. Without, none is: the
        rounds are subspace iteration, exact but for the units of contributions.
        """
        terms = self._terms
        scale = terms.row_clip
        if terms.noisy:
            scale *= REACH * math.sqrt(len(head) / terms.rank)
        factors = np.zeros((terms.items, terms.rank), dtype=np.float32)
        factors[head] = columns * min(scale, LARGEST_FACTOR / float(np.abs(columns).max()))
        return factors

    def _finished(self, current: _State, head: Int64Array, sums: Float64Array) -> tuple[Float64Array, Float32Array]:
        """Weights [m] and factors [m, rank] of the finished model."""
        terms = self._terms
        spectral = spectral_map(sums, exponent=_STRENGTH_EXPONENT if terms.noisy else 0.0)
        factors = np.zeros((terms.items, terms.rank))
        factors[head] = sums @ spectral
        if terms.noisy:
            # The weakest direction gives way to popularity. A head item of another taste has a negative product with a
            # user, and would stand behind items of which nothing is known; so all of the head gets a common part.
            typical = math.sqrt(float((factors[head] ** 2).sum(axis=1).mean()))
            place = np.zeros(terms.items)
            place[head] = 1.0
            factors[:, -1] = typical * (place + TAIL_WEIGHT * np.sqrt(current.counts / current.counts.max()))
        relative = self._relative(current.counts)
        weights = np.where(current.weights > 0, relative, TAIL_WEIGHT * relative)
        if not terms.noisy:
            weights, factors = weights * relative, factors / relative[:, None]
        # Gauge: a typical item of a history has a row of norm 1.
        typical = math.sqrt(
            current.counts[head] @ (factors[head] ** 2).sum(axis=1) / max(current.counts[head].sum(), 1.0)
        )
        most = float(np.abs(factors).max())
        factors *= min(1.0 / max(typical, 1e-300), LARGEST_FACTOR / max(most, 1e-300))
        return weights, factors.astype(np.float32)

    def _head_size(self, counts: Float64Array, relative: Float64Array, users: int) -> int:
        """How many of the items (largest count first) have a right-hand side that may stand out of its noise.

        The rule: with every row at its clip, the sum of an item's weights is at least 1.7 times the norm of the noise
        that all steps together leave.
        """
        terms = self._terms
        mass = counts * relative
        if terms.adaptive:
            squares = np.maximum(np.cumsum(mass * relative), 1e-300)
            mass = mass * np.sqrt(terms.max_items * users / squares)
        strong = np.flatnonzero(mass >= 1.7 * terms.target_noise * math.sqrt(terms.rank / terms.steps))
        return min(terms.items, max(int(strong[-1]) + 1 if len(strong) else 0, terms.rank))

    def _relative(self, counts: Float64Array) -> Float64Array:
        """Relative weights [m] of the items, were they all in the head."""
        return np.maximum(counts, 1.0) ** -self._terms.weight_exponent if self._terms.adaptive else np.ones(len(counts))

    def _tensors(self, release: NoisyTensors) -> dict[str, Float64Array]:
        tensors = {}
        for declared in declared_releases(self._terms, release.round):
            tensor = release.tensors.get(declared.name)
            if tensor is None or tensor.shape != declared.shape:
                raise ConfigurationError(
                    f"Expected release {declared.name!r} of shape {list(declared.shape)} in round {release.round}"
                )
            tensors[declared.name] = np.asarray(tensor, dtype=np.float64)
        return tensors

    def _unpacked(self, state: bytes) -> _State:
        items, rank = self._terms.items, self._terms.rank
        if len(state) < _HEADER.size or state[:8] != _MAGIC:
            raise _other_state()
        _, round, size = _HEADER.unpack_from(state)
        finished = max(round - 1, 0) if round < self.rounds else 0
        table = 16 * items + 4 * items * rank
        measured = 8 + 8 * size * rank
        if round > self.rounds or size > items or len(state) != _HEADER.size + table + finished * measured:
            raise _other_state()
        counts, weights = np.frombuffer(state, "<f8", 2 * items, _HEADER.size).reshape(2, items)
        factors = np.frombuffer(state, "<f4", items * rank, _HEADER.size + 16 * items).reshape(items, rank)
        measurements = []
        for number in range(finished):
            place = _HEADER.size + table + number * measured
            (users,) = np.frombuffer(state, "<f8", 1, place).tolist()
            start, sums = np.frombuffer(state, "<f4", 2 * size * rank, place + 8).reshape(2, size, rank)
            measurements.append(Measurement(users, start, sums))
        if measurements and np.count_nonzero(weights > 0) != size:
            raise _other_state()
        return _State(round, counts, weights, factors, tuple(measurements))


def _other_state() -> StateError:
    return StateError("Expected the state of this very task: restore it, or start the task again")


def _packed(state: _State) -> bytes:
    size = len(state.measurements[0].start) if state.measurements else 0
    parts = [_HEADER.pack(_MAGIC, state.round, size)]
    parts += [np.asarray(array, dtype="<f8").tobytes() for array in (state.counts, state.weights)]
    parts.append(np.asarray(state.factors, dtype="<f4").tobytes())
    for measured in state.measurements:
        parts.append(struct.pack("<d", measured.users))
        parts += [np.asarray(array, dtype="<f4").tobytes() for array in (measured.start, measured.sums)]
    return b"".join(parts)

"""The server half of gradient steps: from noisy releases to the next model. Untrusted: it sees nothing but releases.

State: a header (magic, next round) and float64 arrays, little-endian, whose shapes follow from the task definition.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, fields, replace

import numpy as np

from odp.algorithms.dpam import features, gradient_codec as codec, gradient_filter as filtering, server_steps
from odp.algorithms.dpam.gradient_filter import Items, Moments
from odp.algorithms.dpam.terms import COUNTS_ROUND, DERIVED_FACTORS, Terms
from odp.algorithms.dpam.uncertainty import Uncertainty
from odp.algorithms.factorization.popularity import popularity
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.factorization.terms import named_features
from odp.algorithms.seam import NoisyTensors
from odp.errors import StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

_HEADER = struct.Struct("<8sI")
_MAGIC = b"odpgrad1"
_START_STD = 0.2
# Of the derived columns, in standard deviations of a residual: what they begin with, and from which step on they count.
_DERIVED_STD = 0.15
_DERIVED_FROM = 2


@dataclass(frozen=True)
class _State:
    """``round`` is the next one to run. Arrays float64, m items and w learned numbers of each.

    Attributes:
      counts: popularity [m], as the noisy masses tell it.
      scale: raters of an item per its mass [1].
      devices: with data, and contributions, in the round of masses [2].
      trust: of the items [m].
      moments: ``Moments`` as numbers.
      items: ``Items``.
    """

    round: int
    counts: Float64Array
    scale: Float64Array
    devices: Float64Array
    trust: Float64Array
    moments: Float64Array
    items: Items


class GradientServer:
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
        """The state before the round of masses: every item looks alike."""
        items, width = self._terms.items, self._terms.learned
        values = np.zeros((items, width))
        values[:, 1:] = _START_STD * public_normals(self._terms.start_seed, (items, width - 1))
        moments = Moments.before(width).numbers()
        ones = np.ones(items)
        return _packed(_State(COUNTS_ROUND, ones, np.ones(1), np.ones(2), ones, moments, Items.before(values)))

    def broadcast(self, state: bytes) -> ModelVersion:
        """Keyed table "items" [m, 3 + rank]: count, bias, trust, factors. Dense table "globals": ridges, uncertainty.

        Raises:
          StateError: ``state`` is not of this task.
        """
        current = self._unpacked(state)
        terms, unit = self._terms, math.sqrt(self._terms.residual_variance)
        moments = Moments.of(current.moments, terms.learned)
        columns = (
            current.counts[:, None], unit * current.items.values[:, :1], current.trust[:, None],
            unit * self._derived(current, moments), unit * current.items.values[:, 1:],
        )  # fmt: skip
        released = moments.residual
        ridges = (terms.user_ridge * released * terms.residual_variance, terms.user_bias_ridge * min(1.0, released))
        dense = np.concatenate((ridges, _uncertainty(current.items, moments).numbers()))
        return server_steps.version(terms, current.round, np.concatenate(columns, axis=1), dense)

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The state after a round's release.

        Raises:
          StateError: ``state`` is not of this task.
          ConfigurationError: the release is of another round, its tensors are not the declared ones, or no model
            follows from numbers of that size.
        """
        current = self._unpacked(state)
        after = self._after_masses if current.round == COUNTS_ROUND else self._after_gradients
        with server_steps.opened(release, self._terms, self._definition, round=current.round) as sums:
            following = after(current, sums)
        return _packed(replace(following, round=current.round + 1))

    def counts(self, state: bytes) -> Float64Array:
        """Popularity float64 [m] as noisy masses tell it; 1 before them.

        Raises:
          StateError: ``state`` is not of this task.
        """
        return self._unpacked(state).counts

    def _after_masses(self, current: _State, release: NoisyTensors) -> _State:
        terms = self._terms
        per_mass = 1.0 / math.sqrt(terms.max_items)
        masses = per_mass * server_steps.tensor(release, "masses", (terms.items,))
        devices = max(float(server_steps.tensor(release, "devices", (1,))[0]), 1.0)
        # A user adds 1 / sqrt(n) to each of its n items: their sum is sqrt(n).
        scale = max(float(masses.sum()) / devices, 1.0)
        noise_std = scale * per_mass * terms.count_noise_std
        counts = popularity(scale * masses, noise_std=noise_std).mean
        cohort = np.array([devices, max(release.contributions, 1)])
        return replace(current, counts=counts, scale=np.array([scale]), devices=cohort)

    def _after_gradients(self, current: _State, release: NoisyTensors) -> _State:
        terms, step = self._terms, current.round - 1
        clip = codec.clip(terms)
        prior = clip / math.sqrt(1.0 + min(terms.learned - 1.0, terms.row_clip**2))
        moments = Moments.of(current.moments, terms.learned).after(
            server_steps.tensor(release, "moments", (codec.moments_of(terms),)),
            users=self._users(current, release),
            noise_std=terms.gram_noise * codec.MOMENTS_CLIP,
            curvature_unit=codec.curvature_unit(terms) * math.sqrt(terms.learned),
            prior=prior,
            step=step,
            derived=step >= _DERIVED_FROM,
        )
        scale = float(current.scale[0])
        items = current.items.after(
            server_steps.tensor(release, "gradients", (terms.items, terms.learned))
            / math.sqrt(terms.residual_variance),
            moments,
            masses=current.counts / scale,
            scale=scale,
            noise_std=terms.target_noise * clip,
            prior=prior,
            trend=self._trend(current.counts),
            progress=(step, terms.steps),
        )
        if not np.isfinite(items.values).all():
            raise np.linalg.LinAlgError("values that are no numbers")
        uncertain = np.trace(_uncertainty(items, moments).of(current.counts), axis1=1, axis2=2)
        trust = moments.residual / (moments.residual + uncertain)
        return replace(current, trust=trust, moments=moments.numbers(), items=items)

    def _users(self, current: _State, release: NoisyTensors) -> Float64Array:
        """How many each moment is a mean over [p].

        The sum of an item's gradients has the curvature of its mass if that of a user is taken per device of the round
        of masses, however many came to this round; all else is a mean over those who came.
        """
        devices, contributions = current.devices.tolist()
        users = np.full(codec.moments_of(self._terms), devices)
        users[self._terms.learned_pairs :] *= max(release.contributions, 1) / contributions
        return users

    def _derived(self, current: _State, moments: Moments) -> Float64Array:
        """Columns that every user has a taste for without a release: an item's bias, and the logarithm of its count."""
        if current.round <= _DERIVED_FROM:
            return np.zeros((self._terms.items, DERIVED_FACTORS))
        derived = np.stack((current.items.values[:, 0], np.log(current.counts)), axis=1)
        derived = derived - np.average(derived, axis=0, weights=current.counts)
        derived /= np.sqrt(np.average(derived**2, axis=0, weights=current.counts)) + 1e-9
        return np.asarray(derived * moments.derived * math.sqrt(moments.residual))

    def _trend(self, counts: Float64Array) -> filtering.Trend:
        """What items' values follow: their counts, and public features."""
        groups = server_steps.feature_groups(self._terms, self._features, counts)
        return filtering.trend(counts, features.joined(groups, np.ones(len(groups)), counts))

    def _unpacked(self, state: bytes) -> _State:
        items, width = self._terms.items, self._terms.learned
        matrix, table = (width, width), (items, width)
        shapes = [(items,), (1,), (2,), (items,), (Moments.size(width),), table, table, *[matrix] * 6]
        length = sum(math.prod(shape) for shape in shapes)
        if len(state) != _HEADER.size + 8 * length or state[:8] != _MAGIC:
            raise StateError("Expected the state of this very DPAM task: restore it, or start the task again")
        flat = np.frombuffer(state, dtype="<f8", offset=_HEADER.size)
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        parts = np.split(flat, ends)
        arrays = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        counts, scale, devices, trust, moments = arrays[:5]
        number = int(_HEADER.unpack_from(state)[1])
        return _State(number, counts, scale, devices, trust, moments, Items(*arrays[5:]))


def _uncertainty(items: Items, moments: Moments) -> Uncertainty:
    return Uncertainty(moments.residual, items.shrinking, items.noise, items.sampling)


def _packed(state: _State) -> bytes:
    numbers = [getattr(state, field.name) for field in fields(state)[1:-1]]
    numbers += [getattr(state.items, field.name) for field in fields(state.items)]
    arrays = [np.asarray(array, dtype="<f8").tobytes() for array in numbers]
    return _HEADER.pack(_MAGIC, state.round) + b"".join(arrays)

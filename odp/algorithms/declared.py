"""What a round releases: one tensor of int64 sums on a grid, by what keeps it private.

==================  ============================================  ================================================
release             noise                                         charge
==================  ============================================  ================================================
``GaussianSum``     of the enclave, at each release               its own Gaussian mechanism
``SharedNoiseSum``  of at least ``sharers`` honest devices        theirs together (``odp.algorithms.dense.shares``)
``StreamSum``       of the enclave, correlated over the stream    the stream's, with its first release
``ShuffledCounts``  none: the reports are private by themselves   the shuffled reports'
==================  ============================================  ================================================

Noise and charge follow from the same numbers, so that no release can have less noise than it is charged for.
"""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass

import numpy as np

from odp.crypto.secure_aggregation.parameters import graph_delta
from odp.errors import ConfigurationError, PrivacyError
from odp.numerics.arrays import Float64Array
from odp.privacy.events import DistributedRelease, GaussianRelease, StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.privacy.local_events import ShuffledReports
from odp.privacy.mechanisms.rounded_gaussian import MAX_RATIO, MIN_RATIO

TensorCharge = GaussianRelease | DistributedRelease | CoveredRelease | ShuffledReports
"""The part of a ledger's entry that one released tensor has."""


@dataclass(frozen=True)
class Sums(abc.ABC):
    """A tensor ``name`` of sums in steps of ``step``, in data units."""

    name: str
    shape: tuple[int, ...]
    step: float

    @property
    def coordinates(self) -> int:
        """Number of sums."""
        return math.prod(self.shape)

    @property
    @abc.abstractmethod
    def charge(self) -> TensorCharge:
        """What the ledger lists for the release.

        Raises:
            ConfigurationError: nobody can draw the noise.
            PrivacyError: the release is none of its stream.
        """


@dataclass(frozen=True)
class GaussianSum(Sums):
    """Sums plus rounded Gaussian noise.

    ``sensitivity`` and ``noise_std`` are what the ledger charges: L2 over the whole tensor, in data units, between any
    contribution of one user and the empty one (``odp.privacy.adjacency``). ``packed``: the last axis is the upper
    triangle of a symmetric matrix, of which the norm counts every entry off the diagonal twice.

    Raises:
        ConfigurationError: ``packed``, and the last axis is no upper triangle.
    """

    sensitivity: float
    noise_std: float
    packed: bool = False

    def __post_init__(self) -> None:
        if self.packed and math.isqrt(8 * self.shape[-1] + 1) ** 2 != 8 * self.shape[-1] + 1:
            raise ConfigurationError(
                f"Expected the last axis of release {self.name!r} to be an upper triangle, got {self.shape[-1]} entries"
            )

    @functools.cached_property
    def column_std(self) -> Float64Array:
        """The noise's standard deviation per entry of the last axis, in data units, float64 [shape[-1]].

        ``noise_std``, and over sqrt(2) for entries that the norm counts twice: as if both copies had noise of their
        own and were averaged.
        """
        if not self.packed:
            return _alike(self.noise_std, self.shape[-1])
        first, second = np.triu_indices((math.isqrt(8 * self.shape[-1] + 1) - 1) // 2)
        return np.where(first == second, self.noise_std, self.noise_std / math.sqrt(2.0))

    @property
    def charge(self) -> GaussianRelease:
        """The Gaussian mechanism."""
        _require_drawable(self.name, self.noise_std, self.step)
        return GaussianRelease(self.name, self.sensitivity, self.noise_std, self.coordinates)


@dataclass(frozen=True)
class SharedNoiseSum(Sums):
    """Sums of vectors to which at least ``sharers`` honest devices add the noise in shares: no party rounds it.

    ``noise_std`` is of all shares together, in data units, the same in every place.
    """

    sensitivity: float
    noise_std: float
    sharers: int

    @property
    def column_std(self) -> Float64Array:
        """As that of ``GaussianSum``."""
        return _alike(self.noise_std, self.shape[-1])

    @property
    def charge(self) -> DistributedRelease:
        """The mechanism of the shares."""
        _require_drawable(self.name, self.noise_std, self.step)
        return DistributedRelease(
            name=self.name, sensitivity=self.sensitivity, noise_std=self.noise_std, coordinates=self.coordinates,
            sharers=self.sharers, step=self.step, graph_delta=graph_delta(),
        )  # fmt: skip


@dataclass(frozen=True)
class StreamSum(Sums):
    """The encoded sums at ``place`` of a ``stream``, with noise of the stream's size, the same in every place."""

    stream: StreamRelease
    place: int

    @property
    def sensitivity(self) -> float:
        """Of the whole stream."""
        return self.stream.sensitivity

    @property
    def noise_std(self) -> float:
        """Of the stream, in data units."""
        return self.stream.noise_std

    @property
    def column_std(self) -> Float64Array:
        """As that of ``GaussianSum``."""
        return _alike(self.noise_std, self.shape[-1])

    @property
    def charge(self) -> StreamRelease | CoveredRelease:
        """The whole stream with its first release; for those after it, that it covers them."""
        if (self.name, self.coordinates * self.stream.rounds) != (self.stream.name, self.stream.coordinates):
            raise PrivacyError(f"release {self.name!r} declares other numbers than its stream has")
        return CoveredRelease(self.stream, self.place) if self.place else self.stream


@dataclass(frozen=True)
class ShuffledCounts(Sums):
    """Numbers of ``reports`` that are private by themselves, and of which nobody knows whose they are: no noise."""

    reports: ShuffledReports

    @property
    def charge(self) -> ShuffledReports:
        """The reports, shuffled."""
        return self.reports


NoisySum = GaussianSum | SharedNoiseSum | StreamSum
DeclaredRelease = NoisySum | ShuffledCounts


def _alike(std: float, width: int) -> Float64Array:
    # One number in memory: a task has releases of all its rounds.
    return np.broadcast_to(np.float64(std), width)


def _require_drawable(name: str, noise_std: float, step: float) -> None:
    ratio = noise_std / step
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        raise ConfigurationError(
            f"Expected noise_std={noise_std!r} of release {name!r} to be {MIN_RATIO:g} to {MAX_RATIO:g} steps of its "
            f"grid (got {ratio!r}): no enclave draws such noise"
        )

"""The events of a privacy ledger: the closed list of mechanisms that can be charged, as value objects.

Every event names the adjacency that it is a claim about (``adjacency.py``); a mechanism refuses those that its bound
does not hold for. A mechanism that is not a class of this module cannot be charged, so it cannot be released.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import adjacency as adjacencies
from odp.privacy.adjacency import Adjacency, require_adjacency
from odp.privacy.local_events import (
    LOCAL,
    LOCAL_ADJACENCIES,
    LOCAL_KEYS,
    SHUFFLED,
    SHUFFLED_ADJACENCIES,
    SHUFFLED_KEYS,
    LocalReport as LocalReport,
    ShuffledReports as ShuffledReports,
)

GAUSSIAN = "gaussian"
TRUNCATED_POISSON = "truncated_poisson_gaussian"
DISTRIBUTED = "distributed_discrete_gaussian"
MATRIX = "matrix_gaussian"

_LEAST_JOINT_NOISE = 0.1
_SMALLEST_SHARE = 4.0 * (1.0 - 1e-12)
_GAUSSIAN_KEYS = ("adjacency", "coordinates", "mechanism", "name", "noise_std", "norm", "sensitivity")
_DISTRIBUTED_KEYS = tuple(sorted((*_GAUSSIAN_KEYS, "graph_delta", "sharers", "step")))
_MATRIX_KEYS = tuple(sorted((*_GAUSSIAN_KEYS, "matrix_sha256", "most", "rounds", "separation")))
_SAMPLED_KEYS = ("adjacency", "cap", "mechanism", "population_bound", "releases", "sampling_probability")
_BOTH = (Adjacency.ZERO_OUT_USER, Adjacency.ADD_REMOVE_USER)
_ADJACENCIES: dict[str, tuple[Adjacency, ...]] = {
    GAUSSIAN: _BOTH,
    MATRIX: _BOTH,
    TRUNCATED_POISSON: _BOTH,
    DISTRIBUTED: (Adjacency.ZERO_OUT_USER,),
    LOCAL: LOCAL_ADJACENCIES,
    SHUFFLED: SHUFFLED_ADJACENCIES,
}
_KEYS = {
    GAUSSIAN: _GAUSSIAN_KEYS,
    MATRIX: _MATRIX_KEYS,
    TRUNCATED_POISSON: _SAMPLED_KEYS,
    DISTRIBUTED: _DISTRIBUTED_KEYS,
    LOCAL: LOCAL_KEYS,
    SHUFFLED: SHUFFLED_KEYS,
}


@dataclass(frozen=True)
class GaussianRelease:
    """One Gaussian release in which every user takes part; no amplification by sampling is claimed.

    Attributes:
        name: what is released, for people and for the report (``counts``, ``right_hand_sides``).
        sensitivity: the most that all contributions of one user move the sum, in ``norm``, data units. It is the bound
            that the enclave enforces.
        noise_std: standard deviation of the noise of every coordinate, data units.
        coordinates: number of noised numbers, which bounds the delta that sampling on a computer adds.
        norm: ``l2``, the only norm of this mechanism.
        adjacency: what is compared; ``add_remove_user`` where nothing that is released depends on how many contribute.

    Raises:
        ConfigurationError: a field is not finite, not positive (zero noise is not a free event), or not a name.
        PrivacyError: another norm, or an adjacency that the bound is not for.
    """

    name: str
    sensitivity: float
    noise_std: float
    coordinates: int
    norm: str = "l2"
    adjacency: Adjacency = Adjacency.ZERO_OUT_USER

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name)
        _validate.positive(sensitivity=self.sensitivity, noise_std=self.noise_std)
        _validate.integer(low=1, high=2**53, coordinates=self.coordinates)
        if self.norm != "l2":
            raise PrivacyError(f"norm={self.norm!r} cannot be charged for Gaussian noise: only 'l2'")
        object.__setattr__(self, "adjacency", _fitting(self.adjacency, GAUSSIAN))
        object.__setattr__(self, "sensitivity", float(self.sensitivity))
        object.__setattr__(self, "noise_std", float(self.noise_std))
        if not 1e-100 < self.mu < 1e100:
            raise ConfigurationError(
                f"Expected sensitivity / noise_std = {self.sensitivity!r} / {self.noise_std!r}"
                " to be within [1e-100, 1e100]"
            )

    @property
    def mu(self) -> float:
        """The mu of this release in Gaussian differential privacy (Dong, Roth, Su 2022, Theorem 1)."""
        return self.sensitivity / self.noise_std

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sensitivity."""
        return self.noise_std / self.sensitivity

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``from_json`` gives back an equal event, bit for bit."""
        return {
            "adjacency": self.adjacency.value,
            "coordinates": self.coordinates,
            "mechanism": GAUSSIAN,
            "name": self.name,
            "noise_std": self.noise_std,
            "norm": self.norm,
            "sensitivity": self.sensitivity,
        }


@dataclass(frozen=True, kw_only=True)
class StreamRelease(GaussianRelease):
    """All releases of one stream with a matrix mechanism: together one Gaussian release, of this ``mu``.

    Attributes:
        sensitivity: the most that one user moves all encoded sums together, over the rounds that it may be in.
        coordinates: noised numbers of all rounds, as many in each.
        rounds: of the stream.
        most: the most rounds that one user is in.
        separation: the least distance between two of them.
        matrix_sha256: of the encoder matrix (``EncoderMatrix.digest``): with the three numbers before and the task's
            clip norm, an auditor computes the sensitivity again.

    Raises:
        ConfigurationError, PrivacyError: as ``GaussianRelease``, or a number of the stream is out of range.
    """

    rounds: int
    most: int
    separation: int
    matrix_sha256: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(low=1, high=2**31 - 1, rounds=self.rounds)
        _validate.integer(low=1, high=self.rounds, most=self.most, separation=self.separation)
        if self.coordinates % self.rounds:
            raise ConfigurationError(
                f"Expected coordinates={self.coordinates} of a stream to be a multiple of rounds={self.rounds}"
            )
        if not isinstance(self.matrix_sha256, bytes) or len(self.matrix_sha256) != 32:
            raise ConfigurationError("Expected matrix_sha256 to be 32 bytes")

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; bytes as lower-case hexadecimal."""
        stream_terms = {
            "matrix_sha256": self.matrix_sha256.hex(),
            "mechanism": MATRIX,
            "most": self.most,
            "rounds": self.rounds,
            "separation": self.separation,
        }
        return dict(sorted({**super().to_json(), **stream_terms}.items()))


@dataclass(frozen=True)
class DistributedRelease:
    """One release whose noise is the sum of discrete Gaussian shares that devices drew; every user takes part.

    Attributes:
        name, sensitivity, coordinates, norm: as of ``GaussianRelease``.
        noise_std: standard deviation of the shares of ``sharers`` devices together, data units: what is charged.
            Devices beyond those only add noise, and the shares of corrupt devices are not counted.
        sharers: fewest honest devices in any sum that is released.
        step: of the grid on which data and shares are integers, data units.
        graph_delta: probability that the graph of any session of the round fails, and the sum of some of its devices
            is learned: it adds to delta (``odp.crypto.secure_aggregation.parameters.graph_delta``).
        adjacency: ``zero_out_user``: of an absent user, the share of the noise would be missing as well.

    Raises:
        ConfigurationError: a number is out of range, or a share is below four grid units.
        PrivacyError: another norm or another adjacency.
    """

    name: str
    sensitivity: float
    noise_std: float
    coordinates: int
    sharers: int
    step: float
    graph_delta: float
    norm: str = "l2"
    adjacency: Adjacency = Adjacency.ZERO_OUT_USER

    def __post_init__(self) -> None:
        GaussianRelease(self.name, self.sensitivity, self.noise_std, self.coordinates, self.norm)
        object.__setattr__(self, "adjacency", _fitting(self.adjacency, DISTRIBUTED))
        _validate.positive(step=self.step)
        _validate.integer(low=1, high=2**32, sharers=self.sharers)
        _validate.within(low=0.0, high=1.0, graph_delta=self.graph_delta)
        for name in ("sensitivity", "noise_std", "step", "graph_delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not self.share_std >= _SMALLEST_SHARE:
            raise ConfigurationError(
                f"Expected noise_std={self.noise_std!r} of sharers={self.sharers} to be at least {_SMALLEST_SHARE:g} "
                f"steps for each share (step={self.step!r})"
            )

    @property
    def mu(self) -> float:
        """Sensitivity over noise; the release is (mu^2 / 2)-zCDP, and not mu-GDP."""
        return self.sensitivity / self.noise_std

    @property
    def rho(self) -> float:
        """The rho of the discrete Gaussian in concentrated differential privacy (``concentrated.py``)."""
        return 0.5 * self.mu**2

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sensitivity."""
        return self.noise_std / self.sensitivity

    @property
    def share_std(self) -> float:
        """Standard deviation of one device's share, grid units."""
        return self.noise_std / self.step / math.sqrt(self.sharers)

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``from_json`` gives back an equal event, bit for bit."""
        return {
            "adjacency": self.adjacency.value,
            "coordinates": self.coordinates,
            "graph_delta": self.graph_delta,
            "mechanism": DISTRIBUTED,
            "name": self.name,
            "noise_std": self.noise_std,
            "norm": self.norm,
            "sensitivity": self.sensitivity,
            "sharers": self.sharers,
            "step": self.step,
        }


@dataclass(frozen=True)
class Sampling:
    """The enclave's sampling of the contributions that count; the draw and its size stay inside (rule P13).

    Each accepted contribution is drawn independently with ``probability``; of a round that drew more than ``cap``, none
    counts.

    Attributes:
        probability: of one contribution, strictly between 0 and 1. It is the probability of the enclave's coins, never
            a cohort divided by a guessed population.
        population_bound: most contributions that the enclave accepts in a round.
        cap: most drawn contributions that are summed.

    Raises:
        ConfigurationError: a number is out of range.
    """

    probability: float
    population_bound: int
    cap: int

    def __post_init__(self) -> None:
        _validate.finite(sampling_probability=self.probability)
        if not 1e-9 <= self.probability < 1.0:
            raise ConfigurationError(
                f"Expected sampling_probability={self.probability!r} to be from 1e-9 and below 1: full participation"
                " is charged without sampling"
            )
        _validate.integer(low=1, high=10**9, population_bound=self.population_bound)
        _validate.integer(low=1, high=self.population_bound, cap=self.cap)
        object.__setattr__(self, "probability", float(self.probability))


@dataclass(frozen=True)
class SampledRound:
    """All releases of one round over one secret draw: one joint event, never one event per release (rule P8).

    Divided by its noise std, every release has noise 1 per number, and one user moves all of them together by at most
    ``sqrt(sum of mu^2)``: a single subsampled Gaussian mechanism. Source of its accounting: arXiv 2508.15089.

    Attributes:
        releases: what is released, at least one.
        sampling: the draw that they share.

    Raises:
        ConfigurationError: no releases, or together they are beyond what can be accounted for.
        PrivacyError: releases of two adjacencies, or a stream.
    """

    releases: tuple[GaussianRelease, ...]
    sampling: Sampling

    def __post_init__(self) -> None:
        if not self.releases or not all(isinstance(release, GaussianRelease) for release in self.releases):
            raise ConfigurationError("Expected a sampled round to have Gaussian releases, at least one")
        # Below, epsilon has no meaning, and its computation takes memory without end.
        if not _LEAST_JOINT_NOISE <= self.noise_multiplier <= 1e6:
            raise ConfigurationError(
                f"Expected the joint noise_multiplier={self.noise_multiplier!r} of a sampled round to be within"
                f" [{_LEAST_JOINT_NOISE}, 1e6]"
            )
        if any(isinstance(release, StreamRelease) for release in self.releases):
            raise PrivacyError("a stream is charged without sampling: its rounds share users, and no draw amplifies it")
        if len({release.adjacency for release in self.releases}) > 1:
            raise PrivacyError("adjacency of the releases of a sampled round: they are one event, and need the same")

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the releases."""
        return self.releases[0].adjacency

    @property
    def name(self) -> str:
        """The names of the releases, for people."""
        return "+".join(release.name for release in self.releases)

    @property
    def joint_mu(self) -> float:
        """``sqrt(sum of mu^2)`` of the releases, before any amplification by sampling."""
        return math.sqrt(math.fsum(release.mu**2 for release in self.releases))

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the joint Gaussian mechanism: the reciprocal of ``joint_mu``."""
        return 1.0 / self.joint_mu

    @property
    def coordinates(self) -> int:
        """Number of noised numbers."""
        return sum(release.coordinates for release in self.releases)

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``from_json`` gives back an equal event, bit for bit."""
        return {
            "adjacency": self.adjacency.value,
            "cap": self.sampling.cap,
            "mechanism": TRUNCATED_POISSON,
            "population_bound": self.sampling.population_bound,
            "releases": [release.to_json() for release in self.releases],
            "sampling_probability": self.sampling.probability,
        }


NoisedEvent = GaussianRelease | SampledRound | DistributedRelease
"""Events of sums that get Gaussian noise."""

Event = NoisedEvent | LocalReport | ShuffledReports
"""Everything that a ledger can be charged for."""


def scaled(event: NoisedEvent, factor: float) -> NoisedEvent:
    """The same event with ``factor`` times the noise."""
    if isinstance(event, SampledRound):
        noisier = tuple(
            dataclasses.replace(release, noise_std=factor * release.noise_std) for release in event.releases
        )
        return SampledRound(noisier, event.sampling)
    return dataclasses.replace(event, noise_std=factor * event.noise_std)


def releases_of(event: Event) -> tuple[GaussianRelease | DistributedRelease | ShuffledReports, ...]:
    """What an enclave releases for an event: tensors, or reports without senders.

    Raises:
        PrivacyError: a report under the name of its device, which no enclave releases.
    """
    if isinstance(event, LocalReport):
        raise PrivacyError(f"{event.name} is a report under the name of its device: no enclave releases it")
    return event.releases if isinstance(event, SampledRound) else (event,)


def adjacency_of(events: Iterable[Event]) -> Adjacency:
    """The joint claim of the events (``adjacency.of_list``)."""
    return adjacencies.of_list(event.adjacency for event in events)


_UNIFORM: dict[str, type[GaussianRelease | DistributedRelease | LocalReport | ShuffledReports]] = {
    GAUSSIAN: GaussianRelease,
    DISTRIBUTED: DistributedRelease,
    LOCAL: LocalReport,
    SHUFFLED: ShuffledReports,
}


def from_json(value: object) -> Event:
    """The event that ``to_json`` wrote.

    Earlier versions wrote ``add_remove_user`` into every event. It is read as what it says where the mechanism holds
    for it; noise in shares never did, and is refused by name.

    Raises:
        ConfigurationError: missing, unknown or malformed fields.
        PrivacyError: a mechanism or an adjacency that has no accounting here.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"Expected a privacy event to be an object, got {type(value).__name__}")
    mechanism = value.get("mechanism")
    if not isinstance(mechanism, str) or mechanism not in _KEYS:
        raise PrivacyError(f"mechanism={mechanism!r} cannot be charged; mechanisms with accounting: {', '.join(_KEYS)}")
    adjacency = _fitting(value.get("adjacency"), mechanism)
    fields = _validate.json_object(value, _KEYS[mechanism], where="a privacy event")
    if mechanism == TRUNCATED_POISSON:
        sampled = SampledRound(
            releases=_gaussians(fields["releases"]),
            sampling=Sampling(fields["sampling_probability"], fields["population_bound"], fields["cap"]),
        )
        if sampled.adjacency is not adjacency:
            raise PrivacyError(f"adjacency={adjacency.value!r} of a sampled round is not that of its releases")
        return sampled
    del fields["mechanism"]
    fields["adjacency"] = adjacency
    if mechanism == MATRIX:
        return StreamRelease(**{**fields, "matrix_sha256": _sha256(fields["matrix_sha256"])})
    return _UNIFORM[mechanism](**fields)


def _fitting(name: object, mechanism: str) -> Adjacency:
    """The adjacency of that name. Raises PrivacyError if the bound of ``mechanism`` does not hold for it."""
    return require_adjacency(name, _ADJACENCIES[mechanism], mechanism)


def _sha256(value: object) -> bytes:
    try:
        return bytes.fromhex(str(value))
    except ValueError:
        raise ConfigurationError("Expected matrix_sha256 of a privacy event to be hexadecimal") from None


def _gaussians(value: object) -> tuple[GaussianRelease, ...]:
    events = tuple(from_json(item) for item in value) if isinstance(value, list) else ()
    gaussians = tuple(event for event in events if isinstance(event, GaussianRelease))
    if len(gaussians) != len(events) or not gaussians:
        raise ConfigurationError("Expected the releases of a sampled round to be a list of gaussian events")
    return gaussians

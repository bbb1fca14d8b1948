"""What a release costs: the closed list of mechanisms that may be charged, as values.

Adjacency is fixed: two populations differ by *everything* of one user (``add_remove_user``), an absent user is the
zero vector of every query. A mechanism that is not a class of this module cannot be charged, so it cannot be released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError

ADJACENCY = "add_remove_user"

_KEYS = ("adjacency", "coordinates", "mechanism", "name", "noise_std", "norm", "sensitivity")


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

    Raises:
        ConfigurationError: a field is not finite, not positive (zero noise is not a free event), or not a name.
        PrivacyError: another norm.
    """

    name: str
    sensitivity: float
    noise_std: float
    coordinates: int
    norm: str = "l2"

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name)
        _validate.positive(sensitivity=self.sensitivity, noise_std=self.noise_std)
        _validate.integer(low=1, high=2**53, coordinates=self.coordinates)
        if self.norm != "l2":
            raise PrivacyError(f"norm={self.norm!r} cannot be charged for Gaussian noise: only 'l2'")
        object.__setattr__(self, "sensitivity", float(self.sensitivity))
        object.__setattr__(self, "noise_std", float(self.noise_std))
        if not 1e-100 < self.mu < 1e100:
            raise ConfigurationError(
                f"Expected sensitivity / noise_std = {self.sensitivity!r} / {self.noise_std!r}"
                " to be within [1e-100, 1e100]"
            )

    @property
    def mu(self) -> float:
        """The mu of Gaussian differential privacy of this release (Dong, Roth, Su 2022, Theorem 1)."""
        return self.sensitivity / self.noise_std

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sensitivity."""
        return self.noise_std / self.sensitivity

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``from_json`` gives back an equal event, bit for bit."""
        return {
            "adjacency": ADJACENCY,
            "coordinates": self.coordinates,
            "mechanism": "gaussian",
            "name": self.name,
            "noise_std": self.noise_std,
            "norm": self.norm,
            "sensitivity": self.sensitivity,
        }


def from_json(value: object) -> GaussianRelease:
    """The event that ``to_json`` wrote.

    Raises:
        ConfigurationError: missing, unknown or malformed fields.
        PrivacyError: a mechanism or an adjacency that has no accounting here.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"Expected a privacy event to be an object, got {type(value).__name__}")
    mechanism = value.get("mechanism")
    if mechanism != "gaussian":
        raise PrivacyError(f"mechanism={mechanism!r} cannot be charged; mechanisms with accounting: gaussian")
    if value.get("adjacency") != ADJACENCY:
        raise PrivacyError(f"adjacency={value.get('adjacency')!r} cannot be charged; only {ADJACENCY!r}")
    _validate.known_keys(map(str, value), _KEYS, where="a privacy event")
    for key in _KEYS:
        if key not in value:
            raise ConfigurationError(f"Missing key {key!r} in a privacy event")
    return GaussianRelease(
        name=value["name"],
        sensitivity=value["sensitivity"],
        noise_std=value["noise_std"],
        coordinates=value["coordinates"],
        norm=value["norm"],
    )

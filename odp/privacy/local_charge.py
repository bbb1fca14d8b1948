"""What a report costs that is private by itself: pure epsilon, whoever reads it, and how often a device pays it.

The claim compares one person with any data, and the same person with any other data or none. It needs no trust in
enclave or server. Reports of one person compose by addition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.adjacency import Adjacency
from odp.privacy.mechanisms.spherical_cap import LARGEST_DIMENSION

if TYPE_CHECKING:
    from odp.privacy.reconstruction import ReconstructionCertificate

CORRELATION = 0.5
"""Least cosine of a breach in the certificates of reports: a distance of 1 between unit vectors."""


@dataclass(frozen=True)
class LocalCharge:
    """The cost of the reports of one task to one device.

    Attributes:
      parts: (name, epsilon) of each independent answer of a report.
      most: reports that one device sends in its life, at most: the device counts them.
      dimension: of the unit vector that a report is about, for the certificate against its reconstruction; 0 where
        it is about none.

    Raises:
      ConfigurationError: no part, or a number is out of range.
    """

    adjacency: ClassVar[Adjacency] = Adjacency.ANY_TWO_INPUTS

    parts: tuple[tuple[str, float], ...]
    most: int
    dimension: int = 0

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigurationError("Expected a report to have at least one private answer")
        for name, epsilon in self.parts:
            _validate.positive(**{f"epsilon_of_{name}": epsilon})
        _validate.integer(low=1, high=2**20, most_participations=self.most)
        _validate.integer(low=0, high=LARGEST_DIMENSION, dimension=self.dimension)

    @property
    def epsilon(self) -> float:
        """Of one report."""
        return self.after(1)

    @property
    def lifetime(self) -> float:
        """Of all reports that a device sends."""
        return self.after(self.most)

    def after(self, reports: int) -> float:
        """Of that many reports together, rounded up."""
        exact = reports * sum(Fraction(epsilon) for _, epsilon in self.parts)
        total = float(exact)
        return total if Fraction(total) >= exact else math.nextafter(total, math.inf)

    @property
    def certificate(self) -> ReconstructionCertificate | None:
        """Against the reconstruction of the direction from all reports of a device; None where there is none."""
        if self.dimension < 2:
            return None
        from odp.privacy.reconstruction import projection_breach

        return projection_breach(self.lifetime, self.dimension, correlation=CORRELATION)

    @property
    def in_words(self) -> str:
        """One sentence for people."""
        parts = " + ".join(f"{epsilon:g} ({name})" for name, epsilon in self.parts)
        parts = f"{parts} = {self.epsilon:.6g}" if len(self.parts) > 1 else f"{self.epsilon:.6g}"
        return (
            f"each report is private by itself: ε = {parts}, whoever reads it; a device sends at "
            f"most {self.most}, ε = {self.lifetime:.6g} over its life"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "adjacency": self.adjacency.value,
            "parts": [{"name": name, "epsilon": epsilon} for name, epsilon in self.parts],
            "epsilon": self.epsilon,
            "most_participations": self.most,
            "lifetime_epsilon": self.lifetime,
        }

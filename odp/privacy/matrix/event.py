"""What a whole stream costs, as one event of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.events import GaussianRelease

MATRIX = "matrix_gaussian"


@dataclass(frozen=True, kw_only=True)
class StreamRelease(GaussianRelease):
    """All releases of one stream with a matrix mechanism: together one Gaussian release, of this ``mu``.

    Attributes:
        sensitivity: the most that one user moves all encoded sums together, over the rounds that it may be in.
        coordinates: noised numbers of all rounds.
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
        if not isinstance(self.matrix_sha256, bytes) or len(self.matrix_sha256) != 32:
            raise ConfigurationError("Expected matrix_sha256 to be 32 bytes")

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; bytes as lower-case hexadecimal."""
        own = {
            "matrix_sha256": self.matrix_sha256.hex(),
            "mechanism": MATRIX,
            "most": self.most,
            "rounds": self.rounds,
            "separation": self.separation,
        }
        return dict(sorted({**super().to_json(), **own}.items()))

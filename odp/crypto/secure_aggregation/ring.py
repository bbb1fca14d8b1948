"""The ring that a round sums in: integers of a declared range, for which no sum can wrap around.

Devices send integers within [-bound, bound] as their residues modulo 2^32 or 2^64. ``maximum`` devices and the noise
stay below half of the ring, so the residue of the sum *is* the sum: overflow is impossible by construction and needs no
check at run time. Where even 2^64 is too small, the configuration is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.secure_aggregation.keystream import RingArray
from odp.errors import ConfigurationError

BITS = (32, 64)


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Declared ranges of one round.

    Attributes:
        bits: 32 or 64: numbers are residues modulo 2^bits.
        bound: largest absolute value of one device's number.
        maximum: most devices in one sum.
        noise: largest absolute value of the noise that is added to the sum; 0 without.

    Raises:
        ConfigurationError: a value is out of its range, or a sum could reach half of the ring; the message says which
            ring is large enough.
    """

    bits: int
    bound: int
    maximum: int
    noise: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ConfigurationError(f"Expected bits={self.bits!r} to be 32 or 64")
        _validate.integer(low=1, high=2**63 - 1, bound=self.bound)
        _validate.integer(low=1, high=2**32 - 1, maximum=self.maximum)
        _validate.integer(low=0, high=2**63 - 1, noise=self.noise)
        if not _fits(self):
            advice = "take bits=64" if self.bits == 32 and _fits(self, bits=64) else "choose a coarser grid"
            raise ConfigurationError(
                f"{self.maximum} devices with numbers up to {self.bound} and noise up to {self.noise} do not fit a "
                f"ring of 2^{self.bits}; {advice}"
            )

    @classmethod
    def smallest(cls, *, bound: int, maximum: int, noise: int = 0) -> Ring:
        """The smaller of the two rings that is large enough."""
        try:
            return cls(bits=32, bound=bound, maximum=maximum, noise=noise)
        except ConfigurationError:
            return cls(bits=64, bound=bound, maximum=maximum, noise=noise)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """uint32 or uint64."""
        return np.dtype(np.uint32 if self.bits == 32 else np.uint64)

    def encode(self, values: npt.NDArray[np.int64]) -> RingArray:
        """The residues of one device's numbers, int64 [n] -> uint32 or uint64 [n].

        Raises ConfigurationError for a number beyond the declared bound.
        """
        if values.dtype != np.int64 or values.ndim != 1:
            raise ConfigurationError(f"Expected int64 [n], got {values.dtype} {values.shape}")
        if values.size and (int(values.max()) > self.bound or int(values.min()) < -self.bound):
            raise ConfigurationError(f"Expected every number to be within {-self.bound} and {self.bound}")
        return values.view(np.uint64).astype(self.dtype)

    def decode(self, residues: RingArray) -> npt.NDArray[np.int64]:
        """The sum behind its residues, as int64 [n]."""
        if residues.dtype != self.dtype:
            raise ConfigurationError(f"Expected residues of {self.dtype}, got {residues.dtype}")
        return residues.view(np.int32 if self.bits == 32 else np.int64).astype(np.int64)

    def from_bytes(self, data: bytes, *, length: int) -> RingArray:
        """A vector that came over the wire, little-endian; read-only. Raises ConfigurationError for another length."""
        if len(data) != length * self.dtype.itemsize:
            raise ConfigurationError(f"Expected a vector of {length * self.dtype.itemsize} bytes, got {len(data)}")
        return np.frombuffer(data, dtype=self.dtype.newbyteorder("<"))


def _fits(ring: Ring, *, bits: int | None = None) -> bool:
    half = 1 << ((ring.bits if bits is None else bits) - 1)
    return ring.maximum * ring.bound + ring.noise < half

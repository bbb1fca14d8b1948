"""A clip norm that follows a quantile of the users' norms, by noisy counts that are charged together with the updates.

Each user adds one number to its contribution: whether its norm was within the clip norm, *centred*, +1/2 or -1/2; an
absent user adds 0. After each round the clip norm moves by

    C <- C exp(-rate (b - quantile)),    b = clamp(1/2 + (sum of centred bits + noise) / cohort, 0, 1).

Guarantee: the update in units of the clip norm has sensitivity 1 and noise z_update, the centred bit has sensitivity
1/2 and noise ``bit_std``: one user moves both, scaled by their noise, by ``sqrt(1 / z_update^2 + 1 / (2 bit_std)^2)``.
Together they are one Gaussian release of noise multiplier z, with 1/z^2 the sum of both squares (rule P8): ``split``
finds z_update for a wanted z. A bit in {0, 1} would have sensitivity 1, and cost four times as much.

The clip norm is a function of releases alone, so everybody may know it (rule P7), and the same bytes reach devices and
enclave: it is rounded to a float of 24 bits. Not with streams of correlated noise: past noise has the scale of its own
round (``odp.privacy.matrix``). Raw norms are never logged.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", algorithm 1 and theorem 1.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import GaussianRelease

#: Of the centred bit: half of it, in either direction.
SENSITIVITY = 0.5
LEAST_CLIP = 1e-9
LARGEST_CLIP = 1e9
_STEPS_PER_DEVIATION = 64  # rule P16, for the grid of the bits' sum
_STATE = struct.Struct("<4sdQ")
_MAGIC = b"OCL1"


@dataclass(frozen=True, kw_only=True)
class ClipTerms:
    """The public numbers of an adaptive clip norm.

    Attributes:
        start: the clip norm of the first round.
        cohort: expected number of contributions, the fixed divisor (rule P15).
        bit_std: standard deviation of the noise on the sum of centred bits.
        quantile: share of the users whose norm should be within the clip norm.
        rate: how fast the logarithm of the clip norm moves.

    Raises:
        ConfigurationError: a number is out of range.
    """

    start: float
    cohort: float
    bit_std: float
    quantile: float = 0.5
    rate: float = 0.2

    def __post_init__(self) -> None:
        _validate.within(low=LEAST_CLIP, high=LARGEST_CLIP, start=self.start)
        _validate.within(low=1.0, high=1e9, cohort=self.cohort)
        _validate.within(low=0.1, high=1e9, bit_std=self.bit_std)
        _validate.within(low=0.0, high=1.0, quantile=self.quantile)
        _validate.within(low=1e-6, high=10.0, rate=self.rate)

    @property
    def step(self) -> float:
        """Step of the grid of centred bits: 2^-j, at most 1/2, and a 64th of the noise or less."""
        fine = math.ceil(math.log2(_STEPS_PER_DEVIATION / self.bit_std))
        return 2.0 ** -max(1, fine)

    @property
    def units(self) -> int:
        """A centred bit in steps: what a device adds is this number, its negative, or 0."""
        return round(SENSITIVITY / self.step)

    def bits(self, norms: Float64Array, clip: float) -> Int64Array:
        """What users of these norms [n] add, in steps, int64 [n]; a norm that is not finite counts as beyond."""
        return np.where(norms <= clip, self.units, -self.units).astype(np.int64)

    def event(self, name: str = "clip", *, adjacency: Adjacency = Adjacency.ZERO_OUT_USER) -> GaussianRelease:
        """The charge of one round's bits; in a sampled round it belongs to the same event as the update (rule P8)."""
        return GaussianRelease(name, SENSITIVITY, self.bit_std, 1, adjacency=adjacency)

    def split(self, noise_multiplier: float) -> float:
        """The noise multiplier of the update with which update and bit together have ``noise_multiplier``.

        >>> round(ClipTerms(start=0.1, cohort=100.0, bit_std=5.0).split(1.0), 6)
        1.005038

        Raises:
            PrivacyError: the bit alone costs as much, or more: ``noise_multiplier`` must be below 2 bit_std.
        """
        _validate.positive(noise_multiplier=noise_multiplier)
        ratio = noise_multiplier * SENSITIVITY / self.bit_std
        if not ratio < 1.0:
            raise PrivacyError(
                f"noise_multiplier={noise_multiplier!r} must be below {self.bit_std / SENSITIVITY:g}, twice bit_std: "
                "raise bit_std or the cohort"
            )
        return noise_multiplier / math.sqrt((1.0 - ratio) * (1.0 + ratio))


@dataclass(frozen=True)
class ClipState:
    """The clip norm of the next round: the server's state machine, a function of releases alone.

    Attributes:
        terms: of the task.
        clip: the clip norm, a float of 24 bits.
        round: how many rounds it has followed.
    """

    terms: ClipTerms
    clip: float
    round: int = 0

    @classmethod
    def initial(cls, terms: ClipTerms) -> ClipState:
        """Before the first round."""
        return cls(terms, _rounded(terms.start))

    def step(self, released: float) -> ClipState:
        """The state after a round whose noisy sum of centred bits is ``released``, in data units (halves).

        Raises:
            ConfigurationError: ``released`` is not finite.
        """
        _validate.finite(released=released)
        share = self.share_within(released)
        clip = self.clip * math.exp(-self.terms.rate * (share - self.terms.quantile))
        return replace(self, clip=_rounded(min(max(clip, LEAST_CLIP), LARGEST_CLIP)), round=self.round + 1)

    def share_within(self, released: float) -> float:
        """Estimated share of the cohort whose norm was within the clip norm, from 0 to 1."""
        return min(max(0.5 + released / self.terms.cohort, 0.0), 1.0)

    def to_bytes(self) -> bytes:
        """The state, without the terms."""
        return _STATE.pack(_MAGIC, self.clip, self.round)

    @classmethod
    def from_bytes(cls, terms: ClipTerms, data: bytes) -> ClipState:
        """The state that ``to_bytes`` wrote. Raises StateError for other bytes."""
        if len(data) != _STATE.size:
            raise StateError(f"Expected the state of a clip norm to be {_STATE.size} bytes, got {len(data)}")
        magic, clip, round = _STATE.unpack(data)
        if magic != _MAGIC or not LEAST_CLIP * 0.99 <= clip <= LARGEST_CLIP * 1.01 or clip != _rounded(clip):
            raise StateError("The state of a clip norm is damaged: restore a backup")
        return cls(terms, clip, round)


def _rounded(clip: float) -> float:
    """To 24 bits: the last bits of an exponential differ from one processor to the next."""
    if not (rounded := float(np.float32(clip))) > 0.0:
        raise ConfigurationError(f"Expected clip={clip!r} to be > 0")
    return rounded

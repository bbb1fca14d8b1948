"""One DP-FTRL stream: its numbers, its grid, its sensitivity, and what it costs.

Guarantee: all releases of the stream together are mu-GDP with ``mu = sensitivity / noise_std``, exactly, with no
assumption about sampling, if every contribution has norm at most ``clip`` on the grid of step ``step`` (rule P17) and
users take part as ``allowed`` says (``participation.ParticipationRecord``). The whole stream is one event, charged
before its first release: later releases add nothing. A stream that ends early has spent it all.

Neighbours: all contributions of one user in the stream are zero in one of them; nothing else differs. Where nothing
that is released depends on how many contribute, the same holds for a user that is absent.

Source: Denisov et al. 2022 (adaptive streams); Choquette-Choo et al. 2023, theorem 2.1; the grid is rule P18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.accounting import mu_for
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import StreamRelease
from odp.privacy.matrix import encoding
from odp.privacy.matrix.encoding import EncoderMatrix
from odp.privacy.matrix.sensitivity import Participation
from odp.privacy.mechanisms.rounded_gaussian import MAX_RATIO, MIN_RATIO


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The public numbers of a stream.

    Attributes:
        matrix: the encoder matrix.
        allowed: how users take part.
        size: numbers of one round's sum.
        clip: L2 bound of one contribution, data units.
        step: of the grid that contributions are on, data units.
        noise_std: standard deviation of the noise on every encoded number, data units.

    Raises:
        ConfigurationError: a number is out of range, or matrix and participation are of different numbers of rounds.
    """

    matrix: EncoderMatrix
    allowed: Participation
    size: int
    clip: float
    step: float
    noise_std: float

    def __post_init__(self) -> None:
        encoding.require_size(self.size)
        _validate.positive(clip=self.clip, step=self.step, noise_std=self.noise_std)
        _validate.integer(low=self.matrix.rounds, high=self.matrix.rounds, rounds=self.allowed.rounds)
        if not self.step <= self.clip:
            raise ConfigurationError(f"Expected step={self.step!r} to be at most clip={self.clip!r}")
        if not MIN_RATIO <= self.noise_ratio <= MAX_RATIO:
            raise ConfigurationError(
                f"Expected noise_std={self.noise_std!r} to be {MIN_RATIO:g} to {MAX_RATIO:g} steps of the encoded grid "
                f"(step={self.step!r} / 2^{self.matrix.bits})"
            )

    @classmethod
    def within_budget(
        cls, *, matrix: EncoderMatrix, allowed: Participation, size: int, clip: float, step: float,
        epsilon: float, delta: float,
    ) -> Self:  # fmt: skip
        """The stream with the least noise that makes all of it (epsilon, delta)-DP.

        Raises:
            ConfigurationError: as the class.
            PrivacyError: too many numbers are noised: sampling the noise alone uses up delta.
        """
        encoding.require_size(size)
        _validate.positive(clip=clip, step=step)
        largest_mu = mu_for(epsilon=epsilon, delta=delta, coordinates=size * matrix.rounds)
        moved = _moved(matrix, allowed, size=size, clip=clip, step=step)
        return cls(matrix=matrix, allowed=allowed, size=size, clip=clip, step=step, noise_std=moved / largest_mu)

    @property
    def encoded_step(self) -> float:
        """Step of the grid of encoded sums and of the noise, data units."""
        return math.ldexp(self.step, -self.matrix.bits)

    @property
    def noise_ratio(self) -> float:
        """Standard deviation of the noise in steps of the encoded grid: what the sampler takes."""
        return self.noise_std / self.encoded_step

    @property
    def sensitivity(self) -> float:
        """The most that one user moves all encoded sums together, L2, data units."""
        return _moved(self.matrix, self.allowed, size=self.size, clip=self.clip, step=self.step)

    def event(self, name: str, *, adjacency: Adjacency = Adjacency.ZERO_OUT_USER) -> StreamRelease:
        """What a ledger is charged for all rounds, before the first release."""
        return StreamRelease(
            name=name,
            sensitivity=self.sensitivity,
            noise_std=self.noise_std,
            coordinates=self.size * self.matrix.rounds,
            adjacency=adjacency,
            rounds=self.allowed.rounds,
            most=self.allowed.most,
            separation=self.allowed.separation,
            matrix_sha256=self.matrix.digest,
        )


def _moved(matrix: EncoderMatrix, allowed: Participation, *, size: int, clip: float, step: float) -> float:
    """``clip`` times the sensitivity of the matrix, and what the rounding of encoded sums can add."""
    moved = clip * matrix.sensitivity(allowed)
    if matrix.rounding:
        moved += 2.0 * matrix.rounding * math.sqrt(float(size) * matrix.rounds) * step
    return moved * (1.0 + 2.0**-50)  # above the rounding of this line's own arithmetic

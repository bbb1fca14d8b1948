"""The secret draw of a round's contributions: Poisson sampling inside the enclave, with a cap (rules P13 to P15).

Guarantee: with a secret, uniformly random seed, each contribution is drawn with the task's probability, independently
of all others up to the strength of HMAC-SHA-256. Where more than ``cap`` are drawn, none counts: the round releases
noise alone. Which ones count follows from the seed and the set of ids: order, restarts and repeated deliveries cannot
change it.

How: the coin of a contribution is HMAC(seed, id) as a number in [0, 1); it is drawn where that is below the
probability. The seed comes from the operating system and is sealed with the round's noise; the ids are secret 256-bit
numbers of the devices, one per device and round.

Nothing about the draw shows. A contribution that is not drawn is replaced by an empty one, which adds zero to every
sum and takes the same way: the operations of a round, their sizes and the memory that it holds follow from the number
of contributions. The cap is a multiplication of the sums by 1 or 0. Whoever watches the processor closer than by
operations is NON-goal N5 of the threat model.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from odp.numerics.arrays import Int64Array
from odp.privacy.events import Sampling

_RANGE = 2**256  # of HMAC-SHA-256 as a number


class FullParticipation:
    """The draw of a round that is not sampled: every accepted contribution counts.

    ``drawn`` is the number of contributions that counted.
    """

    drawn = 0

    def counted(self, contribution_id: bytes, payload: bytes) -> bytes:
        """``payload``."""
        self.drawn += 1
        return payload

    def within_cap(self, totals: dict[str, Int64Array]) -> dict[str, Int64Array]:
        """``totals``."""
        return totals


class Draw:
    """The draw of one round. Not thread-safe: its owner calls it under a lock.

    Args:
        seed: 32 secret random bytes of this round alone.
        sampling: the task's terms.
        empty: the payload that adds zero to every sum.

    ``drawn`` is the number of contributions that it took so far: as secret as the draw.
    """

    def __init__(self, seed: bytes, sampling: Sampling, *, empty: bytes) -> None:
        self._seed = seed
        self._cap = sampling.cap
        # Rounded down, by less than 2^-200: never drawn more often than it is charged.
        self._threshold = int(Fraction(sampling.probability) * _RANGE)
        self._empty = np.frombuffer(empty, dtype=np.uint8)
        self.drawn = 0

    def counted(self, contribution_id: bytes, payload: bytes) -> bytes:
        """The payload that an accepted contribution adds to the round: its own, or the empty one. Call once per
        contribution.
        """
        coin = int.from_bytes(hmac.digest(self._seed, contribution_id, "sha256"), "big")
        drawn = int(coin < self._threshold)
        self.drawn += drawn
        counted_payload = np.frombuffer(payload, dtype=np.uint8) * np.uint8(drawn)
        counted_payload += self._empty * np.uint8(1 - drawn)
        return counted_payload.tobytes()

    def within_cap(self, totals: Mapping[str, Int64Array]) -> dict[str, Int64Array]:
        """The sums of ``counted`` payloads; zeros if more than the cap were drawn."""
        within = int(self.drawn <= self._cap)
        return {name: total * within for name, total in totals.items()}

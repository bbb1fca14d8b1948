"""The secret draw of a round's contributions: truncated Poisson sampling inside the enclave (rules P13 to P15).

Guarantee: with a secret, uniformly random seed, each contribution is drawn with the task's probability, independently
of all others up to the strength of HMAC-SHA-256, and of more than ``cap`` drawn ones a uniformly random subset of that
size is kept. Which ones are kept follows from the seed and the set of ids alone: order, restarts and repeated
deliveries cannot change it. Nothing about the draw can be asked: a drawn and an undrawn contribution get one answer.

How: the coin of a contribution is HMAC(seed, id) as a number in [0, 1); it is drawn where that is below the
probability, and the ``cap`` smallest coins are kept. The seed comes from the operating system and is sealed with the
round's noise; the ids are secret 256-bit numbers of the devices, one per device and round.

What the host could see is the work: so the sum of a sampled round is made at its close, over as many payloads as the
cap and the number of contributions allow. Places that the draw left empty are filled with a payload that goes into a
sum of its own, which is dropped. Memory still grows with the draw, by its payloads: that is a side channel.
"""

from __future__ import annotations

import heapq
import hmac
import itertools
from collections.abc import Iterator
from fractions import Fraction

from odp.privacy.events import Sampling

SEED_BYTES = 32
_RANGE = 2**256  # of HMAC-SHA-256 as a number


class Draw:
    """The drawn payloads of one round, at most ``sampling.cap``. Not thread-safe: its owner calls it under a lock.

    Args:
        seed: 32 secret random bytes of this round alone.
        sampling: the task's terms.
    """

    def __init__(self, seed: bytes, sampling: Sampling) -> None:
        self._seed = seed
        self.sampling = sampling
        # Rounded down, by less than 2^-200: never drawn more often than it is charged.
        self._threshold = int(Fraction(sampling.probability) * _RANGE)
        self._kept: list[tuple[int, bytes]] = []  # a heap of (-coin, payload): the largest coin leaves first
        self._filler = b""
        self.offered = 0

    def offer(self, contribution_id: bytes, payload: bytes) -> None:
        """Takes an accepted contribution; nobody learns whether it was drawn."""
        coin = int.from_bytes(hmac.digest(self._seed, contribution_id, "sha256"), "big")
        self._filler = payload
        self.offered += 1
        if coin < self._threshold:
            heapq.heappush(self._kept, (-coin, payload))
            if len(self._kept) > self.sampling.cap:
                heapq.heappop(self._kept)

    def kept(self) -> Iterator[bytes]:
        """The payloads that count."""
        return (payload for _, payload in self._kept)

    def fillers(self) -> Iterator[bytes]:
        """Accepted payloads for the places that the draw left empty; their sum is to be dropped."""
        return itertools.repeat(self._filler, min(self.sampling.cap, self.offered) - len(self._kept))

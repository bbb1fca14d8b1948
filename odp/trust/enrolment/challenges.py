"""Challenges that cost an issuer no memory until a device has answered one.

A challenge is ``random (16 bytes) || expiry (8 bytes, whole seconds) || HMAC-SHA-256 (32 bytes)`` under a key of this
process. So a stranger who asks for any number of them fills no memory; a restart ends all of them, and devices ask
again. Only answered challenges are remembered, until they expire: each counts once.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections import deque
from collections.abc import Callable

from odp import _validate
from odp.crypto.domains import CHALLENGE_BYTES
from odp.errors import Busy, EnrolmentError

VALID_SECONDS = 120
_RANDOM_BYTES, _TIME_BYTES, _KEY_BYTES = 16, 8, 32
_RETRY_SECONDS = 5.0


class Challenges:
    """Creates challenges, and accepts each of them once; thread-safe.

    Args:
        clock: seconds since the epoch.
        random_bytes: the source of keys and challenges.
        most: answered challenges that are remembered; beyond them devices get a retry window.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
        most: int = 100_000,
    ) -> None:
        _validate.integer(low=1, high=10**7, most=most)
        self._clock = clock
        self._random_bytes = random_bytes
        self._most = most
        self._key = random_bytes(_KEY_BYTES)
        self._lock = threading.Lock()
        # In the order in which they were answered; each is forgotten at the latest ``VALID_SECONDS`` later.
        self._order: deque[tuple[float, bytes]] = deque()
        self._answered: set[bytes] = set()

    def make(self) -> bytes:
        """A new challenge, ``CHALLENGE_BYTES`` long."""
        expiry = int(self._clock()) + VALID_SECONDS
        body = self._random_bytes(_RANDOM_BYTES) + expiry.to_bytes(_TIME_BYTES, "big")
        return body + hmac.digest(self._key, body, "sha256")

    def check(self, challenge: bytes) -> None:
        """Returns if ``challenge`` is one of this process, has not expired and was not answered.

        Raises EnrolmentError otherwise.
        """
        body, tag = challenge[: _RANDOM_BYTES + _TIME_BYTES], challenge[_RANDOM_BYTES + _TIME_BYTES :]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(tag, hmac.digest(self._key, body, "sha256")):
            raise EnrolmentError("the challenge is not from this run of the issuer; get a new one")
        if self._clock() > int.from_bytes(body[_RANDOM_BYTES:], "big"):
            raise EnrolmentError(f"the challenge is older than {VALID_SECONDS} s; get a new one")
        with self._lock:
            if challenge in self._answered:
                raise _answered()

    def spend(self, challenge: bytes) -> None:
        """Marks a checked challenge as answered.

        Raises EnrolmentError where another call was first, Busy where too many are remembered.
        """
        now = self._clock()
        with self._lock:
            while self._order and self._order[0][0] < now:
                self._answered.discard(self._order.popleft()[1])
            if challenge in self._answered:
                raise _answered()
            if len(self._answered) >= self._most:
                raise Busy(
                    "the issuer of tokens is busy with other devices; try again in a moment",
                    _RETRY_SECONDS,
                    2 * _RETRY_SECONDS,
                )
            self._answered.add(challenge)
            # By then it has expired, whenever it was made.
            self._order.append((now + VALID_SECONDS + 1, challenge))


def _answered() -> EnrolmentError:
    return EnrolmentError("the challenge was answered before; get a new one")

"""Reproducible noise and no noise: for simulation and tests in one process, never for an enclave.

Nothing here protects anyone: whoever knows the seed can subtract the noise.
"""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from odp import _validate
from odp.privacy.mechanisms.rounded_gaussian import MAX_RATIO


class SeededNoise:
    """``NoiseSource`` that repeats its bytes for the same seed: simulation and tests only, never an enclave.

    The bytes are the key stream of AES-256 in counter mode (NIST SP 800-38A), key = SHA-256 of the seed in decimal;
    they do not depend on how the requests are cut.
    """

    def __init__(self, seed: int) -> None:
        _validate.integer(low=-(2**255), high=2**255, seed=seed)
        key = hashlib.sha256(b"odp simulation noise " + str(seed).encode()).digest()
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def random_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return self._stream.update(bytes(count))


class NoNoise:
    """``IntegerNoise`` that is always zero: to compare a simulated with a networked round, never for an enclave."""

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """Zeros, int64 [count]; the arguments are checked as by the real noise."""
        _validate.within(low=0.0, high=MAX_RATIO, ratio=ratio)
        _validate.integer(low=0, high=2**40, count=count)
        return np.zeros(count, dtype=np.int64)

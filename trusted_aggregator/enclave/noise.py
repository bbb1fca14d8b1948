"""The noise that an enclave adds: exact and secret by its attested policy, or repeatable in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from odp import _validate
from odp.privacy.mechanisms import GaussianNoise, IntegerNoise, OperatingSystemNoise
from odp.trust.enclave.policy import EnclavePolicy


class TestNoise:
    """``NoiseSource`` of one round under a ``test_noise_seed``: protects nobody, since the seed is in the policy.

    The key stream of AES-256 in counter mode under a hash of seed and round. It does not depend on the task, whose id
    changes with its developer's key: two runs of one test add the same noise.
    """

    __test__ = False  # not a test of pytest's

    def __init__(self, seed: int, round: int) -> None:
        key = hashlib.sha256(f"odp test noise, protects nobody: {seed} {round}".encode()).digest()
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def random_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return self._stream.update(bytes(count))


def noise_of(policy: EnclavePolicy) -> Callable[[int], IntegerNoise]:
    """The noise of each round, by its number: exact Gaussians from the system's randomness, or from a test's seed."""
    seed = policy.test_noise_seed
    if seed is None:
        exact = GaussianNoise(OperatingSystemNoise())
        return lambda round: exact
    return lambda round: GaussianNoise(TestNoise(seed, round))

"""Reproducible noise and no noise: for simulation and tests in one process, never for an enclave.

``SeededNoise`` and ``RoundedNormals`` protect nobody: who knows the seed can subtract the noise.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from odp import _validate
from odp.errors import PrivacyError
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import MAX_RATIO, IntegerNoise

_CHUNK = 2**20  # numbers per generator
_BLOCK = 2**16  # the same where sums are at hand: their block stays in the processor's cache
_ZEROS = memoryview(bytes(2**20))  # what is encrypted to get the key stream


def _zeros(count: int) -> bytes | memoryview:
    return _ZEROS[:count] if count <= len(_ZEROS) else bytes(count)


class SeededNoise:
    """``NoiseSource`` that repeats its bytes for the same seed: simulation and tests only, never an enclave.

    The bytes are the key stream of AES-256 in counter mode (NIST SP 800-38A), key = SHA-256 of the seed in decimal;
    they do not depend on how the requests are cut.
    """

    def __init__(self, seed: int) -> None:
        _validate.integer(low=-(2**255), high=2**255, seed=seed)
        self._key = hashlib.sha256(b"odp simulation noise " + str(seed).encode()).digest()
        self._position = 0
        self._stream: CipherContext | None = None

    def random_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        if self._stream is None:
            self._stream = self._from(self._position)
        self._position += count
        return self._stream.update(_zeros(count))

    def later(self, count: int) -> Callable[[], bytes]:
        """The next ``count`` bytes of the stream, made when the result is called, in any thread."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        position, self._stream = self._position, None
        self._position += count
        return lambda: self._from(position).update(_zeros(count))

    def _from(self, position: int) -> CipherContext:
        """The key stream from a byte on: the counter is the number of its block."""
        block, skipped = divmod(position, 16)
        stream = Cipher(algorithms.AES256(self._key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        stream.update(_zeros(skipped))
        return stream


class RoundedNormals:
    """``IntegerNoise`` of rounded floating-point normals: the declared law up to rounding at 2^-53, on all processors.

    For releases of many millions of numbers, where the exact sampler would take longer than everything else. It depends
    on the seed, the round and the order of the calls, never on the number of threads.
    """

    def __init__(self, seed: int, round: int) -> None:
        _validate.integer(low=-(2**255), high=2**255, seed=seed)
        self._key = hashlib.sha256(f"odp simulation normals {seed} {round}".encode()).digest()
        self._calls = 0

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """``count`` rounded normals of standard deviation ``ratio`` grid steps, int64 [count]."""
        _validate.within(low=0.0, high=MAX_RATIO, ratio=ratio)
        _validate.integer(low=0, high=2**40, count=count)
        numbers = np.empty(count, dtype=np.int64)
        entropy = [int.from_bytes(self._key, "little"), self._calls]
        self._calls += 1

        def fill(start: int) -> None:
            part = numbers[start : start + _CHUNK]
            generator = np.random.Generator(np.random.SFC64([*entropy, start]))
            normals = generator.standard_normal(len(part))
            normals *= ratio
            part[:] = np.rint(normals, out=normals)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(fill, range(0, count, _CHUNK)))
        return numbers

    def added(self, sums: NDArray[np.int64], ratios: NDArray[np.float64], step: float) -> NDArray[np.float64]:
        """(sums + noise) * step in the memory of ``sums``, which is lost: what a release of millions of numbers is.

        Args:
          sums: contiguous.
          ratios: standard deviation of the noise per entry of the last axis, in grid steps.
          step: of the grid.
        """
        _validate.within(low=0.0, high=MAX_RATIO, smallest_ratio=float(ratios.min()), ratio=float(ratios.max()))
        entropy = [int.from_bytes(self._key, "little"), self._calls]
        self._calls += 1
        integers = sums.reshape(-1, len(ratios))
        values = integers.view(np.float64)
        rows = max(_BLOCK // len(ratios), 1)

        def fill(start: int) -> None:
            part = integers[start : start + rows]
            generator = np.random.Generator(np.random.SFC64([*entropy, start]))
            normals = generator.standard_normal(part.shape)
            normals *= ratios
            part += np.rint(normals, out=normals).astype(np.int64)
            values[start : start + rows] = np.multiply(part, step, out=normals)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(fill, range(0, len(integers), rows)))
        return values.reshape(sums.shape)


def noised(
    event: GaussianRelease | None, exact: NDArray[np.int64], *, step: float, noise: IntegerNoise
) -> NDArray[np.float64]:
    """What a charged ``event`` releases of exact sums on a grid: (exact + noise) * step, in the shape of ``exact``.

    Without an event there is no noise, and no privacy.

    Raises:
      PrivacyError: more numbers than the event is charged for.
    """
    if event is None:
        return exact.astype(np.float64) * step
    if exact.size > event.coordinates:
        raise PrivacyError(f"{event.name} is charged for {event.coordinates} numbers, not for {exact.size}")
    noisy = exact + noise.sample(event.noise_std / step, exact.size).reshape(exact.shape)
    return noisy.astype(np.float64) * step


class NoNoise:
    """``IntegerNoise`` that is always zero: to compare a simulated with a networked round, never for an enclave."""

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """Zeros, int64 [count]; the arguments are checked as by the real noise."""
        _validate.within(low=0.0, high=MAX_RATIO, ratio=ratio)
        _validate.integer(low=0, high=2**40, count=count)
        return np.zeros(count, dtype=np.int64)

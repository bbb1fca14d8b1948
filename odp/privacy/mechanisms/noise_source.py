"""The source of randomness for released noise: the operating system, and in an enclave nothing else."""

from __future__ import annotations

import os
from typing import Protocol

from odp import _validate


class NoiseSource(Protocol):
    """Uniformly random, independent bytes.

    The seam by which a test injects known bytes *in process*. There is no registry and no configuration key for it,
    so no message, flag or environment variable can choose the source of an enclave.
    """

    def random_bytes(self, count: int) -> bytes:
        """Exactly ``count`` bytes, never given out before."""
        ...


class OperatingSystemNoise:
    """The kernel's generator, ``os.urandom``: the only source for real releases. It takes no seed."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` bytes of the kernel's generator.

        Raises:
            ConfigurationError: ``count`` is negative or not a whole number.
        """
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return os.urandom(count)

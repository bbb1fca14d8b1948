"""The source of randomness for released noise: the operating system, and in an enclave nothing else."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Protocol, cast

from odp import _validate


class NoiseSource(Protocol):
    """Uniformly random, independent bytes.

    The seam by which a test injects known bytes *in process*. There is no registry and no configuration key for it,
    so no message, flag or environment variable can choose the source of an enclave.
    """

    def random_bytes(self, count: int) -> bytes:
        """Exactly ``count`` bytes, never given out before."""
        ...


class DeferringSource(NoiseSource, Protocol):
    """A source whose bytes several threads can make at once."""

    def later(self, count: int) -> Callable[[], bytes]:
        """The next ``count`` bytes, which the result makes when it is called: once, and in any thread."""
        ...


def deferred(source: NoiseSource, count: int) -> Callable[[], bytes]:
    """The next ``count`` bytes of any source: made when they are asked for where it can, else now."""
    if hasattr(source, "later"):
        return cast("DeferringSource", source).later(count)
    data = source.random_bytes(count)
    return lambda: data


class OperatingSystemNoise:
    """The kernel's generator, ``os.urandom``: the only source for real releases. It takes no seed."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` bytes of the kernel's generator.

        Raises:
            ConfigurationError: ``count`` is negative or not a whole number.
        """
        return self.later(count)()

    def later(self, count: int) -> Callable[[], bytes]:
        """As of ``DeferringSource``; raises as ``random_bytes``."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return functools.partial(os.urandom, count)

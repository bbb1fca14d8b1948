"""The evaluated parameters as the public matrix of a task: float32 little-endian [models, size], named by its hash."""

from __future__ import annotations

import hashlib

import numpy as np

from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array

#: Bytes that a server accepts.
LARGEST = 16 * 2**20


def sha256_of(parameters: Float32Array) -> bytes:
    """As a definition has it."""
    return hashlib.sha256(parameters.astype("<f4").tobytes()).digest()


def parameters_from(data: bytes, *, models: int, size: int, sha256: bytes) -> Float32Array:
    """The parameters of these bytes, read-only float32 [models, size].

    Raises:
      ConfigurationError: they are not those of the hash, or a number is not finite.
    """
    expected = 4 * models * size
    if len(data) != expected:
        raise ConfigurationError(f"Expected parameters of {expected} bytes to evaluate (got {len(data)})")
    if hashlib.sha256(data).digest() != sha256:
        raise ConfigurationError("Expected parameters of the SHA-256 that the task definition names")
    parameters = np.frombuffer(data, dtype="<f4").reshape(models, size)
    if not np.isfinite(parameters).all():
        raise ConfigurationError("Expected parameters that are finite")
    return parameters

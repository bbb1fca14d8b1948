"""The public random start of item rows."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from odp.numerics.arrays import Float64Array


def public_normals(seed: int, shape: tuple[int, ...]) -> Float64Array:
    """Reproducible standard normals for the public random start: SHAKE-256 of the seed, then Box and Muller."""
    count = math.prod(shape)
    half = (count + 1) // 2
    stream = hashlib.shake_256(b"odp/dpam/start" + seed.to_bytes(8, "little")).digest(16 * half)
    uniform = (np.frombuffer(stream, dtype="<u8") >> np.uint64(11)).astype(np.float64).reshape(2, half)
    radius = np.sqrt(-2.0 * np.log((uniform[0] + 1.0) * 2.0**-53))
    angle = 2.0 * np.pi * uniform[1] * 2.0**-53
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count].reshape(shape)

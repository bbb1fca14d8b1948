"""Rows of the known model in machine code. Import needs numba; nothing imports this module at the top."""

from __future__ import annotations

from typing import Any

from odp._system.extras import require

require("numba", to="train a model of known weights")

import numba  # noqa: E402
import numpy as np  # noqa: E402

from odp.numerics.hash_kernels import splitmix64  # noqa: E402

INPUTS = 33
_UNIT = np.float32(2.0**-24)
_S16, _S24, _S32, _S40 = np.uint64(16), np.uint64(24), np.uint64(32), np.uint64(40)
_PAIR, _TRIPLE, _HALF = np.uint64(0xFFFF), np.uint64(0xFFFFFF), np.uint64(1)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, error_model="numpy")
def fill_rows(seed: Any, truth: Any, features: Any, targets: Any) -> None:
    """Fills ``features`` float32 [n, 33] and ``targets`` float32 [n] from ``seed`` uint64; ``truth`` float32 [33].

    The order of ``odp.research.reproductions.known_weights.FEATURES``: 1, B, E1 (2), E2 (3), D, I, then its crosses.
    """
    for row in range(len(targets)):
        first = splitmix64(seed + np.uint64(2 * row))
        second = splitmix64(seed + np.uint64(2 * row + 1))
        x = features[row]
        b = np.float32(first & _HALF)
        e1 = np.int64((((first >> _HALF) & _PAIR) * np.uint64(3)) >> _S16)
        e2 = np.int64((first >> np.uint64(17)) & np.uint64(3))
        d = np.float32(np.int64((first >> _S40) & _TRIPLE)) * _UNIT
        i = np.float32(np.int64(second & _TRIPLE)) * _UNIT
        u = np.float32(np.int64((second >> _S40) & _TRIPLE)) * _UNIT
        x[:] = np.float32(0.0)
        x[0], x[1], x[7], x[8] = np.float32(1.0), b, d, i
        x[14], x[15] = b * d, b * i
        x[32] = d * i
        if e1 < 2:
            x[2 + e1], x[9 + e1], x[22 + e1], x[24 + e1] = np.float32(1.0), b, d, i
        if e2 < 3:
            x[4 + e2], x[11 + e2], x[26 + e2], x[29 + e2] = np.float32(1.0), b, d, i
            if e1 < 2:
                x[16 + 3 * e1 + e2] = np.float32(1.0)
        z = np.float32(0.0)
        for j in range(INPUTS):
            z += x[j] * truth[j]
        targets[row] = np.float32(u * (np.float32(1.0) + np.exp(-z)) < np.float32(1.0))

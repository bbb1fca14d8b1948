"""``odp.crypto.keyed_hash`` in machine code. Import needs numba; nothing imports this module at the top."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = _S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@numba.njit(nogil=True, cache=True, inline="always")
def splitmix64(number: Any) -> Any:
    """``odp.crypto.keyed_hash.splitmix64`` of one uint64."""
    mixed = number + GOLDEN
    mixed = (mixed ^ (mixed >> _S30)) * FIRST
    mixed = (mixed ^ (mixed >> _S27)) * SECOND
    return mixed ^ (mixed >> _S31)

"""Shamir's secret sharing of 32-byte secrets, over the field of 2^31 - 1.

A secret is cut into 9 limbs of 29 bits; each limb is the constant term of its own random polynomial of degree
threshold - 1, and the share of point x (1 .. 2^31 - 2) is the 9 values at x, 36 bytes. Any ``threshold`` shares give
the secret back; fewer say nothing about it, whatever computing power there is.

    >>> shares = share([bytes(32)], points=[1, 2, 3], threshold=2)
    >>> rebuild([1, 3], shares[0, [0, 2]])
    b'\\x00...\\x00'

Numba does the field arithmetic where it is installed; without it numpy gives the same numbers more slowly. No table is
indexed by a secret, and no branch depends on one.

Source: Shamir 1979, "How to share a secret".
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError

PRIME = 2**31 - 1
SECRET_BYTES = 32
LIMBS = 9
LIMB_BITS = 29
#: A share on the wire: 9 numbers, uint32 little-endian.
SHARE_BYTES = 4 * LIMBS
#: What a client seals for a neighbour: a share of each of its two secrets, and a tag.
SEALED_BYTES = 2 * SHARE_BYTES + 16

UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

_P = np.uint64(PRIME)
_SHIFT = np.uint64(31)
_WIDE = 64 * 5  # bits that nine limbs of 29 fit into, as whole 64-bit words


def share(
    secrets: Sequence[bytes],
    *,
    points: Sequence[int],
    threshold: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> UInt32Array:
    """Shares uint32 [secrets, points, 9] of each secret: every point's part is secret from all others.

    Args:
        secrets: 32 bytes each.
        points: distinct numbers, 1 .. 2^31 - 2; at least ``threshold`` of them.
        threshold: how many shares rebuild a secret, at least 2.
        random_bytes: where the polynomials come from.

    Raises:
        ConfigurationError: a secret, a point or the threshold is out of its range.
    """
    at = _points(points)
    _validate.integer(low=2, high=max(2, len(at)), threshold=threshold)
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise ConfigurationError(f"Expected every secret to be {SECRET_BYTES} bytes")
    coefficients = np.empty((threshold, len(secrets) * LIMBS), dtype=np.uint64)
    coefficients[0] = _limbs(b"".join(secrets)).reshape(-1)
    coefficients[1:] = _field_elements((threshold - 1) * len(secrets) * LIMBS, random_bytes).reshape(threshold - 1, -1)
    values = np.empty((len(at), coefficients.shape[1]), dtype=np.uint64)
    _evaluate()(coefficients, at, values)
    shaped = values.reshape(len(at), len(secrets), LIMBS).astype(np.uint32)
    return np.ascontiguousarray(shaped.transpose(1, 0, 2))


def rebuild(points: Sequence[int], shares: UInt32Array) -> bytes:
    """The secret, from exactly the threshold of shares.

    Args:
        points: the points of the shares, distinct.
        shares: uint32 [points, 9], of one secret.

    Raises:
        ConfigurationError: points or shares are out of their range.
        PrivacyError: what comes out is no 32-byte secret: a share is wrong, or there are too few.
    """
    at = _points(points)
    if shares.shape != (len(at), LIMBS) or shares.dtype != np.uint32 or int(shares.max(initial=0)) >= PRIME:
        raise ConfigurationError(f"Expected shares as uint32 [{len(at)}, {LIMBS}] of numbers below 2^31 - 1")
    weights = np.empty(len(at), dtype=np.uint64)
    _weights()(at, weights)
    # A sum of products below 2^62 would wrap after four: each is reduced first.
    total = _reduce(_reduce(weights[:, None] * shares.astype(np.uint64)).sum(axis=0))
    words = sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(total))
    if int(total.max()) >> LIMB_BITS or words >> (8 * SECRET_BYTES):
        raise PrivacyError("the shares do not belong together: no 32-byte secret comes out of them")
    return words.to_bytes(SECRET_BYTES, "little")


def to_bytes(shares: UInt32Array) -> bytes:
    """One share (uint32 [9]) as 36 bytes."""
    return shares.astype("<u4").tobytes()


def from_bytes(data: bytes) -> UInt32Array:
    """The share that ``to_bytes`` wrote. Raises ConfigurationError where it is none."""
    if len(data) != SHARE_BYTES:
        raise ConfigurationError(f"Expected a share of {SHARE_BYTES} bytes, got {len(data)}")
    numbers = np.frombuffer(data, dtype="<u4").astype(np.uint32)
    if int(numbers.max()) >= PRIME:
        raise ConfigurationError("Expected the numbers of a share to be below 2^31 - 1")
    return numbers


def _points(points: Sequence[int]) -> UInt64Array:
    at = np.asarray(points, dtype=np.int64)
    if at.ndim != 1 or not len(at) or len(np.unique(at)) != len(at) or int(at.min()) < 1 or int(at.max()) >= PRIME:
        raise ConfigurationError("Expected the points of shares to be distinct numbers from 1 to 2^31 - 2")
    return at.astype(np.uint64)


def _limbs(secrets: bytes) -> UInt64Array:
    """uint64 [n, 9] of n concatenated secrets: bits 29 i .. 29 i + 28 of each, little-endian."""
    words = np.zeros((len(secrets) // SECRET_BYTES, _WIDE // 64), dtype=np.uint64)
    words[:, : SECRET_BYTES // 8] = np.frombuffer(secrets, dtype="<u8").reshape(-1, SECRET_BYTES // 8)
    limbs = np.empty((len(words), LIMBS), dtype=np.uint64)
    for place in range(LIMBS):
        word, bit = divmod(LIMB_BITS * place, 64)
        low = words[:, word] >> np.uint64(bit)
        high = words[:, word + 1] << np.uint64(64 - bit) if bit > 64 - LIMB_BITS else np.uint64(0)
        limbs[:, place] = (low | high) & np.uint64(2**LIMB_BITS - 1)
    return limbs


def _field_elements(count: int, random_bytes: Callable[[int], bytes]) -> UInt64Array:
    """Uniform elements of the field: 31 random bits each, the one value that is too large drawn again."""
    elements = np.frombuffer(random_bytes(4 * count), dtype="<u4") & np.uint32(PRIME)
    while (again := np.flatnonzero(elements == PRIME)).size:
        elements = elements.copy()
        elements[again] = np.frombuffer(random_bytes(4 * again.size), dtype="<u4") & np.uint32(PRIME)
    return elements.astype(np.uint64)


def _reduce(values: UInt64Array) -> UInt64Array:
    """Modulo 2^31 - 1, of numbers below 2^63: 2^31 = 1 in this field, so the high bits are added to the low ones."""
    values = (values & _P) + (values >> _SHIFT)
    values = (values & _P) + (values >> _SHIFT)
    values = (values & _P) + (values >> _SHIFT)
    # All ones is zero: adding 1 carries into bit 31 exactly then.
    return values + ((values + np.uint64(1)) >> _SHIFT) & _P


@functools.cache
def _kernels() -> Any:
    if importlib.util.find_spec("numba") is None:
        return None
    from odp.crypto.secure_aggregation import _shamir_kernels

    return _shamir_kernels


def _evaluate() -> Callable[[UInt64Array, UInt64Array, UInt64Array], None]:
    kernels = _kernels()
    return evaluate if kernels is None else kernels.evaluate


def _weights() -> Callable[[UInt64Array, UInt64Array], None]:
    kernels = _kernels()
    return weights_at_zero if kernels is None else kernels.weights_at_zero


def evaluate(coefficients: UInt64Array, points: UInt64Array, values: UInt64Array) -> None:
    """Fills ``values`` [points, polynomials] with the polynomials ``coefficients`` [threshold, polynomials] there."""
    total = np.broadcast_to(coefficients[-1], values.shape)
    for row in coefficients[-2::-1]:
        total = _reduce(total * points[:, None] + row)
    values[:] = total


def weights_at_zero(points: UInt64Array, weights: UInt64Array) -> None:
    """Fills ``weights`` [points] with the Lagrange weights that give a polynomial's value at 0."""
    above, below = np.ones_like(points), np.ones_like(points)
    for place, point in enumerate(points):
        others = np.arange(len(points)) != place
        above = np.where(others, _reduce(above * point), above)
        difference = np.where(points > point, _P - (points - point), point - points)
        below = np.where(others, _reduce(below * np.where(others, difference, np.uint64(1))), below)
    weights[:] = _reduce(above * _inverse(below))


def _inverse(values: UInt64Array) -> UInt64Array:
    """1 / values, by Fermat: values^(p - 2)."""
    result, power, exponent = np.ones_like(values), values, PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduce(result * power)
        power, exponent = _reduce(power * power), exponent >> 1
    return result

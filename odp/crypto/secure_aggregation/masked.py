"""One-shot secure aggregation between a host and an enclave; neither of them has a device's vector.

A device adds the mask of a fresh seed to its integers. The host gets the masked vector, which is uniformly random to
whoever lacks the seed; the enclave gets the seed, which says nothing of the vector. The host adds up masked vectors,
the enclave masks, over one set that both name by its hash; their difference, noised by the enclave, is all that leaves.

    >>> halves = mask(np.array([3, 4], dtype="<i4").tobytes(), info=b"round 1")
    >>> masks = MaskSum("sums", 2, info=b"round 1")
    >>> masks.add([halves.secret])
    >>> unmasked(halves.vector, masks.totals()["sums"], noise=np.zeros(2, dtype=np.int64))
    array([3, 4])

The masked sum comes from whom nobody trusts. Noise is therefore added *before* residues become signed numbers: whatever
the host adds, the result is a function of (sum + noise) modulo 2^32. Were it added after, a host could move the sum to
where numbers wrap around, and read from the jump whether the true sum was above or below, without any noise.

Source: Huba et al. 2022, "Papaya: practical, private, and scalable federated learning", section 5.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from odp.crypto import domains
from odp.crypto.secure_aggregation import keystream
from odp.errors import ConfigurationError

SEED_BYTES = keystream.SEED_BYTES
DIGEST_BYTES = 32
#: What the enclave gets of a contribution: the seed, and SHA-256 of the masked vector.
SECRET_BYTES = SEED_BYTES + DIGEST_BYTES

_NUMBER = np.dtype("<u4")

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Halves:
    """A contribution in two parts: ``vector`` for the host, ``secret`` for the enclave, sealed."""

    vector: bytes = field(repr=False)
    secret: bytes = field(repr=False)


def mask(payload: bytes, *, info: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> Halves:
    """Both halves of ``payload`` (32-bit integers, little-endian) under the mask of a new seed.

    Args:
        payload: a multiple of 4 bytes.
        info: ``domains.masked_vector_info`` of the round.
        random_bytes: where the seed comes from.

    Raises:
        ConfigurationError: the payload is no vector of 32-bit integers.
    """
    if not payload or len(payload) % _NUMBER.itemsize:
        raise ConfigurationError(f"Expected a payload of 32-bit numbers, got {len(payload)} bytes")
    seed = random_bytes(SEED_BYTES)
    vector = np.frombuffer(payload, dtype=_NUMBER).astype(np.uint32)
    keystream.add_masks(vector, plus=[seed], info=info)
    masked = vector.astype(_NUMBER, copy=False).tobytes()
    return Halves(vector=masked, secret=seed + hashlib.sha256(masked).digest())


def set_sha256(task_sha256: bytes, round: int, digests: Iterable[bytes]) -> bytes:
    """The name of a set of masked vectors, by their digests in ascending order."""
    total = hashlib.sha256(domains.masked_set(task_sha256, round))
    for digest in digests:
        total.update(digest)
    return total.digest()


class MaskSum:
    """``odp.algorithms.seam.Sum`` of the enclave's halves: minus the sum of their masks, modulo 2^32.

    Memory is one vector, whatever the number of contributions. Accesses follow no secret.
    """

    def __init__(self, name: str, size: int, *, info: bytes) -> None:
        self.count = 0
        self._name, self._info = name, info
        self._total = np.zeros(size, dtype=np.uint32)

    def add(self, payloads: Sequence[bytes]) -> None:
        """Subtracts the masks of checked payloads."""
        keystream.add_masks(self._total, minus=[payload[:SEED_BYTES] for payload in payloads], info=self._info)
        self.count += len(payloads)

    def totals(self) -> dict[str, Int64Array]:
        """The residues so far, int64 [size] within 0 .. 2^32 - 1."""
        return {self._name: self._total.astype(np.int64)}


def unmasked(masked_sum: bytes, masks: Int64Array, *, noise: Int64Array) -> Int64Array:
    """The noisy sum, int64 of the shape of ``noise``, within [-2^31, 2^31).

    Args:
        masked_sum: the host's half, uint32 little-endian.
        masks: the totals of ``MaskSum``.
        noise: int64.

    Raises:
        ConfigurationError: the host's half has another length.
    """
    if len(masked_sum) != _NUMBER.itemsize * masks.size:
        raise ConfigurationError(
            f"Expected a masked sum of {_NUMBER.itemsize * masks.size} bytes, got {len(masked_sum)}"
        )
    total = np.frombuffer(masked_sum, dtype=_NUMBER).astype(np.uint32)
    # The low half of a number in two's complement is its residue.
    total += masks.reshape(-1).astype(np.uint32)
    total += noise.reshape(-1).astype(np.uint32)
    return total.view(np.int32).astype(np.int64).reshape(noise.shape)


def wrapped(values: Int64Array) -> Int64Array:
    """``values`` modulo 2^32, within [-2^31, 2^31)."""
    return values.astype(np.uint32).view(np.int32).astype(np.int64)

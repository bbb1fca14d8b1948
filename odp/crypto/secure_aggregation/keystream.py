"""Masks: long pseudo-random integer vectors from 32-byte seeds, added into a vector where it lies.

A mask is the AES-256-GCM encryption of zeros under the key HKDF-SHA-256(seed, info), in chunks of 128 KiB whose nonce
is the chunk's number; tags are thrown away. All 256 bits of the seed count, and a seed under another ``info`` (another
session) gives an unrelated mask. One chunk of the vector is finished, with all its masks, before the next is touched:
it stays in the fast memory, and neither masks nor products are ever as large as the vector.

GCM and not CTR, because the library's GCM is two to three times as fast; its keystream is CTR's (NIST SP 800-38D).

Source: Bonawitz et al. 2017, section 4 (masks); RFC 5869 (HKDF).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.errors import ConfigurationError

SEED_BYTES = 32
CHUNK_BYTES = 128 * 1024

_TAG_BYTES = 16
_ZEROS = bytes(CHUNK_BYTES)

RingArray = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


def add_masks(
    vector: RingArray,
    *,
    plus: Sequence[bytes] = (),
    minus: Sequence[bytes] = (),
    info: bytes,
    pool: futures.ThreadPoolExecutor | None = None,
    workers: int = 1,
) -> None:
    """Adds the masks of the seeds ``plus`` to ``vector`` and subtracts those of ``minus``, modulo its ring, in place.

    Args:
        vector: uint32 or uint64, contiguous, one axis; its dtype is the ring.
        plus, minus: seeds of 32 bytes.
        info: what the masks are for: the session's id. The same seed gives another mask elsewhere.
        pool, workers: threads that share the chunks; without a pool, the caller's alone.

    Raises:
        ConfigurationError: a seed is not 32 bytes, or the vector is not of a ring.
    """
    if vector.dtype not in (np.uint32, np.uint64) or vector.ndim != 1 or not vector.flags.c_contiguous:
        raise ConfigurationError(f"Expected a contiguous vector of uint32 or uint64, got {vector.dtype} {vector.shape}")
    ciphers = [(_cipher(seed, info), np.add) for seed in plus] + [(_cipher(seed, info), np.subtract) for seed in minus]
    step = CHUNK_BYTES // vector.itemsize
    chunks = range(-(-len(vector) // step))
    if not ciphers or not chunks:
        return
    if pool is None or workers < 2:
        _add(vector, ciphers, chunks)
        return
    for done in [pool.submit(_add, vector, ciphers, chunks[place::workers]) for place in range(workers)]:
        done.result()


def _cipher(seed: bytes, info: bytes) -> AESGCM:
    if len(seed) != SEED_BYTES:
        raise ConfigurationError(f"Expected a mask's seed of {SEED_BYTES} bytes, got {len(seed)}")
    return AESGCM(HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(seed))


def _add(vector: RingArray, ciphers: Sequence[tuple[AESGCM, Any]], chunks: range) -> None:
    step = CHUNK_BYTES // vector.itemsize
    buffer = bytearray(CHUNK_BYTES + _TAG_BYTES)
    stream = np.frombuffer(buffer, dtype=vector.dtype.newbyteorder("<"), count=step)
    zeros, whole = memoryview(_ZEROS), memoryview(buffer)
    for chunk in chunks:
        part = vector[chunk * step : (chunk + 1) * step]
        size = part.nbytes
        nonce = chunk.to_bytes(12, "big")
        for cipher, apply in ciphers:
            cipher.encrypt_into(nonce, zeros[:size], None, whole[: size + _TAG_BYTES])
            apply(part, stream[: len(part)], out=part)

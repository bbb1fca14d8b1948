"""Masks: the standard's keystream, added and taken away exactly, every bit of the seed in use."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings, strategies as st

from odp.crypto.secure_aggregation.keystream import CHUNK_BYTES, add_masks
from odp.errors import ConfigurationError

SEEDS = st.lists(st.binary(min_size=32, max_size=32), max_size=3)


def by_counter_mode(seed: bytes, info: bytes, length: int) -> bytes:
    """The same mask by AES-CTR: in GCM, a 96-bit nonce starts the data's counter at 2 (NIST SP 800-38D, 7.1)."""
    key = HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(seed)
    parts = []
    for chunk in range(-(-length // CHUNK_BYTES)):
        start = chunk.to_bytes(12, "big") + (2).to_bytes(4, "big")
        parts.append(Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(CHUNK_BYTES)))
    return b"".join(parts)[:length]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 5, CHUNK_BYTES // 8, CHUNK_BYTES // 4 + 3, 100_003])
def test_a_mask_is_the_standards_keystream(dtype: Any, size: int) -> None:
    vector = np.zeros(size, dtype=dtype)
    add_masks(vector, plus=[bytes(range(32))], info=b"session")
    expected = np.frombuffer(
        by_counter_mode(bytes(range(32)), b"session", vector.nbytes), vector.dtype.newbyteorder("<")
    )
    assert np.array_equal(vector, expected)


@settings(deadline=None)
@given(SEEDS, SEEDS, st.integers(0, 70_000), st.sampled_from([np.uint32, np.uint64]), st.integers(0, 2**32 - 1))
def test_what_is_added_is_taken_away_by_the_same_seeds(
    plus: list[bytes], minus: list[bytes], size: int, dtype: Any, start: int
) -> None:
    original = np.random.default_rng(start).integers(0, np.iinfo(dtype).max, size, dtype=dtype, endpoint=True)
    vector = original.copy()
    add_masks(vector, plus=plus, minus=minus, info=b"a")
    add_masks(vector, plus=minus, minus=plus, info=b"a")
    assert np.array_equal(vector, original)


def test_threads_give_the_same_masks() -> None:
    seeds = [bytes([number]) * 32 for number in range(4)]
    alone, shared = np.arange(300_001, dtype=np.uint32), np.arange(300_001, dtype=np.uint32)
    add_masks(alone, plus=seeds[:2], minus=seeds[2:], info=b"a")
    with futures.ThreadPoolExecutor(3) as pool:
        add_masks(shared, plus=seeds[:2], minus=seeds[2:], info=b"a", pool=pool, workers=3)
    assert np.array_equal(alone, shared)


def test_seeds_that_collide_when_they_are_folded_give_different_masks() -> None:
    """The same 32-bit words in another order, and words of one XOR: an XOR of words cannot tell them apart."""
    first = bytes(range(32))
    swapped = first[16:] + first[:16]  # equal XOR and sum of all words of 1 to 16 bytes
    flipped = bytes(a ^ b for a, b in zip(first, b"\x80" + bytes(27) + b"\x80" + bytes(3), strict=True))
    masks = []
    for seed in (first, swapped, flipped):
        masks.append(np.zeros(64, dtype=np.uint32))
        add_masks(masks[-1], plus=[seed], info=b"a")
    folded = [np.bitwise_xor.reduce(np.frombuffer(seed, "<u4")) for seed in (first, swapped, flipped)]
    assert len(set(map(int, folded))) == 1
    assert len({mask.tobytes() for mask in masks}) == 3


def test_each_of_the_256_bits_of_a_seed_changes_the_mask() -> None:
    seen = set()
    for bit in range(256):
        vector = np.zeros(4, dtype=np.uint64)
        add_masks(vector, plus=[(1 << bit).to_bytes(32, "little")], info=b"a")
        seen.add(vector.tobytes())
    assert len(seen) == 256


def test_another_session_has_other_masks() -> None:
    vector = np.zeros(16, dtype=np.uint32)
    add_masks(vector, plus=[bytes(32)], info=b"a")
    add_masks(vector, minus=[bytes(32)], info=b"b")
    assert np.count_nonzero(vector) == 16


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(ConfigurationError, match="seed of 32 bytes"):
        add_masks(np.zeros(1, dtype=np.uint32), plus=[seed], info=b"a")


def test_a_vector_of_no_ring_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="uint32 or uint64"):
        add_masks(np.zeros(4, dtype=np.int64), plus=[bytes(32)], info=b"a")  # type: ignore[arg-type]

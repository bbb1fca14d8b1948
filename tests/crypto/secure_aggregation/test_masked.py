"""Both halves of a masked contribution: neither alone says anything, both together give the noisy sum and no more."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.secure_aggregation.masked import MaskSum, mask, set_sha256, unmasked
from odp.errors import ConfigurationError

INFO = b"round"


def payload(values: np.ndarray) -> bytes:
    return values.astype("<i4").tobytes()


def host_sum(vectors: list[bytes]) -> bytes:
    total = np.zeros(len(vectors[0]) // 4, dtype=np.uint32)
    for vector in vectors:
        total += np.frombuffer(vector, dtype="<u4")
    return total.astype("<u4").tobytes()


@settings(max_examples=25, deadline=None)
@given(devices=st.integers(1, 12), size=st.sampled_from([1, 5, 32768, 40_000]), seed=st.integers(0, 2**32))
def test_both_halves_together_give_the_exact_noisy_sum(devices: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-(2**26), 2**26, (devices, size))
    noise = random.integers(-(2**20), 2**20, size)
    halves = [mask(payload(vector), info=INFO) for vector in vectors]
    masks = MaskSum("sums", size, info=INFO)
    masks.add([each.secret for each in halves[:3]])
    masks.add([each.secret for each in halves[3:]])
    assert masks.count == devices
    found = unmasked(host_sum([each.vector for each in halves]), masks.totals()["sums"], noise=noise)
    np.testing.assert_array_equal(found, vectors.sum(axis=0) + noise)


def test_a_masked_vector_of_zeros_looks_uniform() -> None:
    """Chi-square over 256 byte values of 400,000 bytes: above 400 with probability below 1e-7."""
    drawn = np.frombuffer(mask(bytes(400_000), info=INFO).vector, dtype=np.uint8)
    counts = np.bincount(drawn, minlength=256)
    assert float(np.square(counts - len(drawn) / 256).sum() / (len(drawn) / 256)) < 400


def test_two_masks_of_one_vector_and_one_seed_in_two_rounds_are_unrelated() -> None:
    zeros = bytes(4096)
    assert mask(zeros, info=INFO).vector != mask(zeros, info=INFO).vector
    first, second = (mask(zeros, info=info, random_bytes=bytes) for info in (b"round 1", b"round 2"))
    assert first.secret[:32] == second.secret[:32]
    equal = np.frombuffer(first.vector, np.uint8) == np.frombuffer(second.vector, np.uint8)
    assert 0 < equal.sum() < 60, "1 byte of 256 by chance: 16 expected"


def test_the_secret_half_is_a_seed_and_the_hash_of_the_vector() -> None:
    halves = mask(bytes(12), info=INFO, random_bytes=lambda count: b"s" * count)
    assert halves.secret == b"s" * 32 + hashlib.sha256(halves.vector).digest()
    assert "vector" not in repr(halves)
    assert "secret" not in repr(halves)


@pytest.mark.parametrize("offset", [0, 1, 2**31 - 1000, 2**31, 2**32 - 1])
def test_a_host_that_moves_the_sum_to_where_numbers_wrap_learns_nothing_but_the_noisy_sum(offset: int) -> None:
    """The result depends on (sum + noise) alone: no jump tells on which side of the wrap the sum without noise is."""
    noise = np.array([700, -700, 3])
    for true in (-500, -1, 0, 1, 500):
        halves = [mask(payload(np.full(3, true)), info=INFO)]
        moved = (np.frombuffer(host_sum([halves[0].vector]), "<u4") + np.uint32(offset)).astype("<u4").tobytes()
        masks = MaskSum("sums", 3, info=INFO)
        masks.add([halves[0].secret])
        found = unmasked(moved, masks.totals()["sums"], noise=noise)
        expected = (np.int64(true) + noise + offset + 2**31) % 2**32 - 2**31
        np.testing.assert_array_equal(found, expected)
        noise_last = unmasked(moved, masks.totals()["sums"], noise=np.zeros(3, dtype=np.int64)) + noise
        if offset == 2**31 and true in (-1, 0):
            # What adding noise after the wrap would have shown: a jump of 2^32 between sums that differ by one.
            assert abs(int(noise_last[0])) > 2**31 - 2000
            assert (noise_last[0] < 0) == (true == 0)


def test_leaving_out_one_vector_leaves_its_mask() -> None:
    halves = [mask(bytes(4 * 20_000), info=INFO) for _ in range(3)]
    masks = MaskSum("sums", 20_000, info=INFO)
    masks.add([each.secret for each in halves])
    noise = np.zeros(20_000, dtype=np.int64)
    found = unmasked(host_sum([each.vector for each in halves[:2]]), masks.totals()["sums"], noise=noise)
    # Uniform over 2^32: the mean of |x| is 2^30, to 5 deviations of its estimate.
    assert abs(float(np.abs(found).mean()) - 2**30) < 5 * 2**31 / np.sqrt(12 * 20_000)
    assert len(np.unique(found)) > 19_000


def test_sets_have_one_name_and_other_sets_others() -> None:
    digests = [hashlib.sha256(bytes([each])).digest() for each in range(4)]
    names = {
        set_sha256(task, number, chosen)
        for task, number in ((bytes(32), 0), (bytes(32), 1), (b"t" * 32, 0))
        for size in range(5)
        for chosen in itertools.combinations(digests, size)
    }
    assert len(names) == 3 * 16


@pytest.mark.parametrize("data", [b"", b"123"])
def test_a_payload_of_no_whole_numbers_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="32-bit numbers"):
        mask(data, info=INFO)


def test_a_sum_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="masked sum of 8 bytes"):
        unmasked(bytes(4), np.zeros(2, dtype=np.int64), noise=np.zeros(2, dtype=np.int64))

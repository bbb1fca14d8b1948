"""Point functions: two shares XOR to a single one, one share tells nothing that depends on the place."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.pir import dpf
from odp.errors import ConfigurationError


class Stream:
    """Bytes that follow from a seed: SHA-256 of a counter."""

    def __init__(self, seed: int) -> None:
        self._seed, self._counter = seed, 0

    def __call__(self, length: int) -> bytes:
        self._counter += 1
        return hashlib.shake_256(f"{self._seed} {self._counter}".encode()).digest(length)


def bits(packed: np.ndarray) -> np.ndarray:
    return np.unpackbits(packed, axis=1, bitorder="little")


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    size=st.integers(1, 600) | st.sampled_from([127, 128, 129, 255, 256, 257, 1000, 4096, 4097, 30_000]),
    seed=st.integers(0, 2**32),
)
def test_the_shares_xor_to_the_point_function(data: st.DataObject, size: int, seed: int) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    shares = dpf.generate(places, size, random_bytes=Stream(seed))
    read = [dpf.Keys.from_bytes(share.to_bytes(), party=share.party, count=len(places), size=size) for share in shares]
    found = bits(dpf.evaluate(read[0], size) ^ dpf.evaluate(read[1], size))
    expected = np.zeros((len(places), -(-size // 128) * 128), dtype=np.uint8)
    expected[np.arange(len(places)), places] = 1
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [1, 128, 5000])
def test_a_share_is_about_half_ones_at_every_place_whatever_the_place(size: int) -> None:
    # 400 functions: a place's count of ones is binomial(400, 1/2); beyond +-6.5 deviations for one of 5,120 places and
    # two parties with a probability below 10^-6.
    for place in (0, size - 1):
        shares = dpf.generate([place] * 400, size, random_bytes=Stream(place))
        for share in shares:
            ones = bits(dpf.evaluate(share, size)).sum(axis=0, dtype=np.int64)
            assert np.abs(ones - 200).max() < 65


def test_keys_of_all_places_have_one_length() -> None:
    for size in (1, 128, 129, 5000, 100_000):
        for place in (0, size // 2, size - 1):
            for share in dpf.generate([place, 0], size, random_bytes=Stream(1)):
                assert len(share.to_bytes()) == 2 * dpf.key_bytes(size)


def test_a_key_of_another_function_gives_no_point() -> None:
    first, _ = dpf.generate([7], 1000, random_bytes=Stream(1))
    _, second = dpf.generate([7], 1000, random_bytes=Stream(2))
    assert 350 < bits(dpf.evaluate(first, 1000) ^ dpf.evaluate(second, 1000)).sum() < 650


#: SHA-256 of keys and shares of the seed below, as version 1 of the wire form has them.
GOLDEN = "1c747ca4c34932c75d2548d057c50f11964b14c623a8b1b1bc1ea694480e29fc"


def test_the_keys_of_a_seed_do_not_change() -> None:
    digest = hashlib.sha256()
    for share in dpf.generate([3, 999], 1000, random_bytes=Stream(0)):
        digest.update(share.to_bytes() + dpf.evaluate(share, 1000).tobytes())
    assert digest.hexdigest() == GOLDEN


@pytest.mark.parametrize("change", [b"", b"\0", b"\0" * 16])
def test_keys_of_a_wrong_length_are_refused(change: bytes) -> None:
    share, _ = dpf.generate([1], 1000, random_bytes=Stream(0))
    data = share.to_bytes()[:-1] if change == b"" else share.to_bytes() + change
    with pytest.raises(ConfigurationError, match="Expected 1 point function keys of"):
        dpf.Keys.from_bytes(data, party=0, count=1, size=1000)


def test_unused_bits_of_a_key_have_to_be_zero() -> None:
    share, _ = dpf.generate([1], 1000, random_bytes=Stream(0))
    data = bytearray(share.to_bytes())
    data[16 + 3 * 16] |= 0x80
    with pytest.raises(ConfigurationError, match="unused control bits"):
        dpf.Keys.from_bytes(bytes(data), party=0, count=1, size=1000)


@pytest.mark.parametrize("places", [[-1], [10], [0.5], [[1]]])
def test_a_place_that_is_not_one_is_refused(places: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 9"):
        dpf.generate(places, 10, random_bytes=Stream(0))


@pytest.mark.parametrize("size", [0, -1, dpf.LARGEST + 1])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ConfigurationError, match="size"):
        dpf.generate([0], size, random_bytes=Stream(0))

"""Shamir's secret sharing: any threshold of shares rebuilds, fewer do not, and both arithmetics agree bit for bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.secure_aggregation import shamir
from odp.errors import ConfigurationError, PrivacyError

SECRETS = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4)


@settings(deadline=None)
@given(SECRETS, st.integers(2, 12), st.integers(0, 10), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_rebuilds_every_secret(
    secrets: list[bytes], threshold: int, more: int, random: Any
) -> None:
    points = random.sample(range(1, shamir.PRIME), threshold + more)
    shares = shamir.share(secrets, points=points, threshold=threshold)
    assert shares.shape == (len(secrets), len(points), shamir.LIMBS)
    chosen = random.sample(range(len(points)), threshold)
    for place, secret in enumerate(secrets):
        assert shamir.rebuild([points[i] for i in chosen], shares[place, chosen]) == secret


def test_the_largest_secret_and_the_field_limits_survive() -> None:
    points = [1, 2, shamir.PRIME - 1]
    shares = shamir.share(
        [b"\xff" * 32], points=points, threshold=3, random_bytes=lambda count: b"\xfe\xff\xff\x7f" * (count // 4)
    )
    assert shamir.rebuild(points, shares[0]) == b"\xff" * 32


def test_shares_are_those_of_an_independent_arithmetic_with_whole_numbers() -> None:
    secret = bytes(range(32))
    stream = np.random.default_rng(1).integers(0, 2**32, 1000, dtype=np.uint32).tobytes()
    shares = shamir.share([secret], points=[5, 2**30, 9], threshold=3, random_bytes=lambda count: stream[:count])
    number = int.from_bytes(secret, "little")
    drawn = [int(value) & shamir.PRIME for value in np.frombuffer(stream[: 4 * 18], "<u4")]
    for place, point in enumerate((5, 2**30, 9)):
        for limb in range(9):
            constant = (number >> (29 * limb)) % 2**29
            expected = (constant + drawn[limb] * point + drawn[9 + limb] * point**2) % shamir.PRIME
            assert shares[0, place, limb] == expected


def test_one_share_less_than_the_threshold_fits_every_secret() -> None:
    """Whatever the other secret, there is a third share with which two shares of one secret are shares of the other."""
    first = shamir.share([b"a" * 32], points=[1, 2, 3], threshold=3)[0]
    other = b"b" * 32
    # At the points 1, 2, 3 the weights at zero are 3, -3, 1.
    number = int.from_bytes(other, "little")
    wanted = [(number >> (29 * limb)) % 2**29 for limb in range(9)]
    third = [
        (want - 3 * int(x) + 3 * int(y)) % shamir.PRIME for want, x, y in zip(wanted, first[0], first[1], strict=True)
    ]
    shares = np.array([first[0], first[1], third], dtype=np.uint32)
    assert shamir.rebuild([1, 2, 3], shares) == other


def test_the_one_random_value_outside_the_field_is_drawn_again() -> None:
    calls: list[int] = []

    def random_bytes(count: int) -> bytes:
        calls.append(count)
        return b"\xff\xff\xff\x7f" * (count // 4) if len(calls) == 1 else b"\x01\x00\x00\x00" * (count // 4)

    shares = shamir.share([bytes(32)], points=[3, 4], threshold=2, random_bytes=random_bytes)
    assert calls == [36, 36]
    assert shares[0].tolist() == [[3] * 9, [4] * 9]


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_compiled_and_numpy_arithmetic_agree_bit_for_bit(seed: int) -> None:
    from odp.crypto.secure_aggregation import _shamir_kernels as kernels

    rng = np.random.default_rng(seed)
    coefficients = rng.integers(0, shamir.PRIME, (int(rng.integers(2, 9)), 18)).astype(np.uint64)
    coefficients[:, 0] = shamir.PRIME - 1
    points = np.unique(rng.integers(1, shamir.PRIME, 7)).astype(np.uint64)
    points[-1] = shamir.PRIME - 1
    found = [np.empty((len(points), 18), np.uint64) for _ in range(2)]
    weights = [np.empty(len(points), np.uint64) for _ in range(2)]
    for module, values, each in zip((shamir, kernels), found, weights, strict=True):
        module.evaluate(coefficients, points, values)
        module.weights_at_zero(points, each)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(weights[0], weights[1])
    assert int(found[0].max()) < shamir.PRIME


@pytest.mark.parametrize(
    ("points", "threshold"), [([1, 1], 2), ([0, 1], 2), ([1, shamir.PRIME], 2), ([], 2), ([1, 2], 1), ([1, 2], 3)]
)
def test_points_and_thresholds_that_share_nothing_are_refused(points: list[int], threshold: int) -> None:
    with pytest.raises(ConfigurationError):
        shamir.share([bytes(32)], points=points, threshold=threshold)


def test_shares_that_do_not_belong_together_give_no_secret_or_another_one() -> None:
    """Of 2^261 values that limbs can take, 2^256 are secrets: strangers' shares are told with chance 31/32 at least."""
    told = 0
    for _ in range(40):
        ours = shamir.share([b"a" * 32], points=[1, 2], threshold=2)[0]
        ours[1] = (ours[1] + np.arange(1, 10, dtype=np.uint32) * np.uint32(77_777_777)) % np.uint32(shamir.PRIME)
        try:
            assert shamir.rebuild([1, 2], ours) != b"a" * 32
        except PrivacyError:
            told += 1
    assert told >= 20  # false alarm below 1e-20


@pytest.mark.parametrize("data", [b"", bytes(35), bytes(37), b"\xff" * 36, b"\xff\xff\xff\x7f" + bytes(32)])
def test_bytes_that_are_no_share_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        shamir.from_bytes(data)


def test_a_share_survives_the_wire() -> None:
    shares = shamir.share([b"b" * 32], points=[7, 8], threshold=2)[0]
    assert np.array_equal(shamir.from_bytes(shamir.to_bytes(shares[1])), shares[1])

"""What the enclave accepts of a dense contribution, to the unit, and that its sum is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from algorithms.tracing import tracing
from hypothesis import given, settings, strategies as st

from odp.algorithms.dense import query as dense_query
from odp.algorithms.dense.grid import NUMBER, Grid
from odp.algorithms.dense.query import DenseQuery
from odp.errors import ContributionRefused, Refusal


def query(size: int = 4, *, bits: int = 10, maximum: int = 1000) -> DenseQuery:
    return DenseQuery("sum", Grid(size=size, clip=2.0, bits=bits, noise_std=8.0, maximum=maximum))


def payload(*numbers: int) -> bytes:
    """Two's complement modulo 2^32, whatever the numbers are."""
    return np.array([number % 2**32 for number in numbers], dtype="<u4").tobytes()


def refusal(given: bytes, to: DenseQuery) -> Refusal | None:
    try:
        to.check(given)
    except ContributionRefused as refused:
        return refused.refusal
    return None


@pytest.mark.parametrize(
    "numbers",
    [(0, 0, 0, 0), (1024, 0, 0, 0), (0, -1024, 0, 0), (512, 512, 512, 512), (512, -512, -512, 512), (614, -819, 1, 0)],
)
def test_a_vector_within_the_bound_is_accepted(numbers: tuple[int, ...]) -> None:
    assert refusal(payload(*numbers), query()) is None


def test_many_payloads_are_checked_as_one_by_one() -> None:
    given = [payload(0, 0, 0, 0), payload(1025, 0, 0, 0), b"", payload(1024, 0, 0, 0), payload(1, 2, 3)]
    expected = [None, Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED, None, Refusal.MALFORMED]
    assert query().refusals(given) == expected
    assert query().refusals([]) == []


@pytest.mark.parametrize(
    "numbers",
    [
        (1025, 0, 0, 0),  # over by one unit
        (0, 0, 0, -1025),
        (1024, 1, 0, 0),  # the norm, over by one in the sum of squares
        (512, 512, 512, 513),
        (2**31 - 1, 0, 0, 0),
        (-(2**31), 0, 0, 0),  # its absolute value does not exist in 32 bits
        (-(2**31), -(2**31), -(2**31), -(2**31)),  # squares that sum to 2^64, to 0 in 64 bits
        (2**16, 2**16, 2**16, 2**16),  # squares that are 0 in 32 bits
        (2**31 - 1, -(2**31 - 1), 1, 1),
        (2**32 - 1024 - 1, 0, 0, 0),
    ],
)
def test_a_vector_beyond_the_bound_is_refused(numbers: tuple[int, ...]) -> None:
    assert refusal(payload(*numbers), query()) is Refusal.OUT_OF_BOUNDS


@pytest.mark.parametrize("length", [0, 1, 12, 15, 17, 20, 32])
def test_another_length_is_malformed(length: int) -> None:
    assert refusal(bytes(length), query()) is Refusal.MALFORMED


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_have_no_encoding(value: float) -> None:
    """Their bytes as floats are whole numbers like any others, far beyond the bound."""
    given = np.array([value, 0.0, 0.0, 0.0], dtype="<f4").tobytes()
    assert refusal(given, query()) is Refusal.OUT_OF_BOUNDS


@settings(max_examples=300, deadline=None)
@given(numbers=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1200, 1200), min_size=4, max_size=4))
def test_the_check_is_that_of_unbounded_integers(numbers: list[int]) -> None:
    within = sum(number * number for number in numbers) <= 2**20
    assert (refusal(payload(*numbers), query()) is None) == within


@pytest.mark.parametrize("bits", [14, 17, 20])
def test_the_check_of_long_vectors_is_exact_at_the_bound(bits: int) -> None:
    """A norm of exactly the bound, spread over 2^18 numbers, and one unit of one number more."""
    made = query(2**18, bits=bits, maximum=10)
    numbers = np.full(2**18, 2 ** (bits - 9), dtype=NUMBER)
    assert refusal(numbers.tobytes(), made) is None
    numbers[12_345] += 1
    assert refusal(numbers.tobytes(), made) is Refusal.OUT_OF_BOUNDS


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("cut", [1, 7, 4000])
def test_sums_are_exact_far_beyond_32_bits_however_they_are_cut(size: int, cut: int) -> None:
    made = query(size, bits=20, maximum=1900)
    one = np.zeros(size, dtype=NUMBER)
    one[0], one[-1] = 2**20, -(2**20)
    count = 4001 if size == 3 else 2500
    total = made.new_sum()
    payloads = [one.tobytes()] * count
    for start in range(0, count, cut):
        total.add(payloads[start : start + cut])
    (sums,) = total.totals().values()
    assert total.count == count
    assert (sums.dtype, sums[0], sums[-1]) == (np.int64, count * 2**20, -count * 2**20)
    assert not sums[1:-1].any()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40), size=st.sampled_from([2, 4096]))
def test_a_sum_is_the_one_of_python_integers(seed: int, count: int, size: int) -> None:
    made = query(size, bits=12)
    numbers = np.random.default_rng(seed).integers(-(2**12), 2**12, size=(count, size), endpoint=True)
    total = made.new_sum()
    total.add([row.astype(NUMBER).tobytes() for row in numbers])
    np.testing.assert_array_equal(total.totals()["sum"], numbers.sum(axis=0, dtype=np.int64))


@pytest.mark.parametrize("way", [True, False])
@pytest.mark.parametrize("size", [40, 5000])
def test_checking_and_summing_leave_one_trace_whatever_the_numbers_are(size: int, way: bool) -> None:
    """Both ways to sum are this one; bounds are compared, and not told."""
    made = query(size, bits=10 + 3 * (size > 40))

    def trace(*rows: np.ndarray) -> list[object]:
        with tracing(dense_query) as notes:
            total = made.new_sum(oblivious=way)
            payloads = [row.astype(NUMBER).tobytes() for row in rows]
            for payload in payloads:
                made.check(payload)
            total.add(payloads)
            total.totals()
        return [note for note in notes if note[0] != "leaves"]  # type: ignore[index]

    nothing, one, many = np.zeros(size), np.zeros(size), np.ones(size)
    one[7] = -1000
    notes = trace(nothing, nothing, nothing)
    assert len(notes) > 10
    assert trace(one, many, nothing) == notes == trace(many, one, one)
    assert trace(one, many) != notes


def test_the_release_declares_what_the_check_enforces() -> None:
    made = query(4, bits=10)
    (release,) = made.releases
    assert (release.shape, release.sensitivity, release.noise_std) == ((4,), 2.0, 8.0)
    assert release.step * 1024 == 2.0
    assert (release.column_std == 8.0).all()
    assert made.payload_bytes == 16

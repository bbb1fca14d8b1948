"""What the enclave accepts of a rotated contribution, to the unit and to the bit, and that its sum is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from algorithms.tracing import tracing
from hypothesis import given, settings, strategies as st

from odp.algorithms.dense import query as dense_query, uploads
from odp.algorithms.dense.rotated import RotatedGrid, encode
from odp.algorithms.dense.uploads import RotatedQuery
from odp.algorithms.seam import SampledQuery
from odp.errors import ContributionRefused, Refusal


def query(size: int = 300, *, width: int = 8, noise: float = 100.0, maximum: int = 1000) -> RotatedQuery:
    return RotatedQuery("sum", RotatedGrid(size=size, clip=1.0, width=width, noise_multiplier=noise, maximum=maximum))


def test_payloads_beyond_the_bound_are_refused_and_many_are_checked_as_one_by_one() -> None:
    made = query()
    good = encode(made.grid, np.zeros(300))
    least = bytes(300)  # every number is -128, one below the range
    longest = encode(made.grid, np.full(300, 127))
    given = [good, good[:-1], least, good + b"x", longest, b"", good]
    expected = [
        None, Refusal.MALFORMED, Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED, Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED,
        None,
    ]  # fmt: skip
    assert made.refusals(given) == expected
    for payload, refusal in zip(given, expected, strict=True):
        if refusal is None:
            made.check(payload)
        else:
            with pytest.raises(ContributionRefused) as refused:
                made.check(payload)
            assert refused.value.refusal is refusal
    assert made.refusals([]) == []


def test_a_bit_after_the_last_number_is_refused() -> None:
    made = query(3, width=9)
    payload = encode(made.grid, np.array([1, -2, 3]))
    made.check(payload)
    for bit in range(5):
        spoiled = payload[:-1] + bytes([payload[-1] | 1 << bit])
        assert made.refusals([spoiled]) == [Refusal.MALFORMED]


def test_the_squared_norm_is_checked_to_the_unit() -> None:
    made = query(4, width=16, noise=4.0)
    rest, inside = made.grid.limit, []
    for _ in range(4):
        inside.append(min(made.grid.largest, math.isqrt(rest)))
        rest -= inside[-1] ** 2
    made.check(encode(made.grid, np.array(inside)))
    inside[-1] += 1
    assert sum(number * number for number in inside) > made.grid.limit
    assert made.refusals([encode(made.grid, np.array(inside))]) == [Refusal.OUT_OF_BOUNDS]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_check_and_the_sum_are_those_of_unbounded_integers(data: st.DataObject) -> None:
    size, width = data.draw(st.sampled_from([1, 7, 8, 40, 4100])), data.draw(st.integers(8, 16))
    made = query(size, width=width)
    largest = made.grid.largest
    root = max(1, math.isqrt(made.grid.limit // size))
    scale = data.draw(st.sampled_from([1, root - 1, root, root + 1, largest]))
    scale = min(max(scale, 1), largest)
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = generator.choice([-scale, scale, scale], size=(data.draw(st.integers(0, 5)), size))
    payloads = [encode(made.grid, row) for row in rows]
    within = [sum(int(number) ** 2 for number in row) <= made.grid.limit for row in rows]
    assert [refusal is None for refusal in made.refusals(payloads)] == within
    total = made.new_sum()
    total.add(payloads)
    np.testing.assert_array_equal(total.totals()["sum"], rows.sum(axis=0, dtype=np.int64))
    assert total.count == len(rows)


def test_the_empty_payload_adds_zero_and_the_release_declares_what_the_check_enforces() -> None:
    made = query(301, width=11)
    assert isinstance(made, SampledQuery)
    made.check(made.empty_payload)
    assert len(made.empty_payload) == made.payload_bytes == -(-301 * 11 // 8)
    total = made.new_sum(oblivious=True)
    total.add([made.empty_payload] * 3)
    assert not total.totals()["sum"].any()
    (release,) = made.releases
    assert release.shape == (301,)
    assert (release.column_std == release.noise_std).all()
    assert release.sensitivity >= release.step * math.sqrt(made.grid.limit)
    assert release.noise_std == pytest.approx(100.0 * release.sensitivity)


def test_checking_and_summing_leave_one_trace_whatever_the_numbers_are() -> None:
    made = query(40, width=8)

    def trace(*rows: np.ndarray) -> list[object]:
        payloads = [encode(made.grid, row) for row in rows]
        with tracing(dense_query, uploads) as notes:
            total = made.new_sum(oblivious=True)
            assert made.refusals(payloads) == [None] * len(payloads)
            total.add(payloads)
            total.totals()
        return [note for note in notes if note[0] != "leaves"]  # type: ignore[index]

    nothing, one, many = np.zeros(40), np.zeros(40), np.ones(40)
    one[7] = -100
    notes = trace(nothing, nothing, nothing)
    assert len(notes) > 5
    assert trace(one, many, nothing) == notes == trace(many, one, one)
    assert trace(one, many) != notes

"""The parameters of retrieval by lattices: what attacks on them cost, and how rarely rounding fails."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from crypto.pir.estimator import Lwe, dual_bits, hybrid_dual_bits, primal, primal_bits

from odp.crypto.pir import lwe

OURS = Lwe(lwe.DIMENSION, 32, lwe.SIGMA)
# Instances of Kyber (round 3): rank, and the deviation of its binomial noise.
KYBER = {
    512: Lwe(512, math.log2(3329), math.sqrt(1.5), 512),
    768: Lwe(768, math.log2(3329), 1.0, 768),
}


@pytest.mark.parametrize(
    ("dimension", "block", "lattice", "bits"),
    # Of the lattice estimator (`LWE.estimate.rough`): its manual; Albrecht's slides "Estimating the difficulty of
    # breaking lattice-based cryptography".
    [(512, 406, 998, 118.6), (768, 624, 1427, 182.2)],
)
def test_the_estimate_of_the_primal_attack_is_the_published_one(
    dimension: int, block: int, lattice: int, bits: float
) -> None:
    assert primal(KYBER[dimension]) == (block, lattice)
    assert primal_bits(KYBER[dimension]) == pytest.approx(bits, abs=0.06)


@pytest.mark.parametrize(("dimension", "bits"), [(512, 115.4), (768, 173.7)])
def test_the_estimate_of_the_hybrid_dual_attack_is_the_published_one_within_a_bit(dimension: int, bits: float) -> None:
    # The published one searches all guesses, this one a grid of them.
    assert bits - 0.1 <= hybrid_dual_bits(KYBER[dimension]) <= bits + 1.0


def test_the_dual_attack_costs_what_the_primal_one_does_within_two_bits() -> None:
    """As in the tables of Kyber and of "A new hope"."""
    for instance in (*KYBER.values(), OURS):
        assert abs(dual_bits(instance) - primal_bits(instance)) < 2.0


def test_the_parameters_of_simplepir_have_less_than_128_bits_by_this_model() -> None:
    simple = Lwe(1024, 32, 6.4)
    assert 94.0 < min(primal_bits(simple), dual_bits(simple)) < 96.0
    # The model behind the 128 bits of its paper counts what core-SVP leaves out: 8 d calls, of 2^16.4 operations more.
    block, lattice = primal(simple)
    assert 0.292 * block + 16.4 + math.log2(8 * lattice) == pytest.approx(128, abs=3)


def test_every_attack_on_our_parameters_costs_at_least_128_bits() -> None:
    costs = {
        "primal": primal_bits(OURS), "dual": dual_bits(OURS), "hybrid dual": hybrid_dual_bits(OURS)
    }  # fmt: skip
    assert all(bits >= 128.0 for bits in costs.values()), costs
    # What the documentation says.
    assert math.floor(min(costs.values())) == 132


def law() -> dict[int, Fraction]:
    """The probability of every value of the noise, as it is drawn."""
    bounds = [0, *map(int, lwe._thresholds()), 2**64]
    return {
        value: Fraction(above - below, 2**64)
        for value, (below, above) in zip(range(-lwe._TAIL, lwe._TAIL + 1), pairwise(bounds), strict=True)
    }


def test_what_is_drawn_is_the_discrete_gaussian_within_2_to_the_54() -> None:
    drawn = law()
    weights = {value: math.exp(-(value**2) / (2 * lwe.SIGMA**2)) for value in drawn}
    total = math.fsum(weights.values())
    # In float64, which is exact to 2^-53 of each of 801 numbers.
    distance = sum(abs(float(chance) - weights[value] / total) for value, chance in drawn.items()) / 2
    assert distance < 2**-50
    assert sum(drawn.values()) == 1
    for value in range(1, lwe._TAIL + 1):
        assert abs(drawn[value] - drawn[-value]) <= Fraction(2, 2**64)
    # The tail that is cut off.
    assert math.erfc(lwe._TAIL / lwe.SIGMA / math.sqrt(2)) < 2**-70


@pytest.mark.parametrize("columns", [1, 4000, 25_317, 55_000])
def test_the_failure_bound_is_above_the_chernoff_bound_of_what_is_drawn(columns: int) -> None:
    drawn = {value: float(chance) for value, chance in law().items() if chance}
    values = np.array(list(drawn), dtype=np.float64)
    chances = np.log(np.array(list(drawn.values())))
    threshold = 2**23 / 128
    best = math.inf
    for tilt in np.linspace(0.9, 1.1, 201) * threshold / (columns * lwe.SIGMA**2):
        exponents = chances + tilt * values
        top = exponents.max()
        moment = top + math.log(float(np.exp(exponents - top).sum()))
        best = min(best, columns * moment - tilt * threshold)
    # Compared as logarithms: the bound itself is 0 in float64 where columns are few. Its factor 2 is for both sides.
    deviations = threshold / (lwe.SIGMA * math.sqrt(columns))
    assert best <= -(deviations**2) / 2 * (1 - 1e-9)
    if deviations < 36:
        assert lwe.failure_bound(columns=columns, values=1) == pytest.approx(2 * math.exp(-(deviations**2) / 2))


def test_the_largest_table_of_the_service_fails_less_than_once_in_2_to_the_40() -> None:
    # 64 MiB as a square, 16 keys.
    side = 2**13
    assert lwe.failure_bound(columns=2 * side, values=16 * 2 * side) < 2**-80


def test_a_query_has_the_bytes_that_it_always_had() -> None:
    """Known answer: the matrix, the law of the noise, the order in which bytes are drawn, and the format."""
    rows = np.random.default_rng(5).integers(0, 256, (200, 20), dtype=np.uint8)
    database = lwe.LweDatabase.of(rows, keys=2, seed=bytes(range(32)), table_sha256=hashlib.sha256(b"table").digest())
    request, secret = lwe.query([3, 77], database.shape, np.random.default_rng(6).bytes)
    reply, hint = lwe.answer(database, request), lwe.hint(database)
    digests = [hashlib.sha256(data).hexdigest()[:16] for data in (request, reply, hint, lwe._thresholds().tobytes())]
    assert digests == ["4d24ad03c9a6f86f", "2b3db2a134662ae0", "c395be8297594977", "7cd9ebb9f5e7b94d"]
    assert np.array_equal(lwe.recover(secret, reply, hint), rows[[3, 77]])

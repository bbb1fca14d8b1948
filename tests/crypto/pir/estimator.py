"""What the best known attacks on learning with errors cost, in bits, by the core-SVP model.

The model counts one call of an oracle for shortest vectors in blocks of size b, as 2^(0.292 b): the exponent of the
cheapest known sieve, without its subexponential factors, and of the many calls that BKZ makes. So it errs towards too
low numbers. The secrets may be uniform: with as many samples more they are as small as the noise (the normal form).

Sources: Alkim, Ducas, Poeppelmann, Schwabe 2016, "Post-quantum key exchange - a new hope", sections 6.3 and 6.4 (primal
and dual attack); MATZOV 2022, "Report on the security of LWE: improved dual lattice attack", theorem 7.6 (hybrid dual
attack), as the lattice estimator of Albrecht et al. reads it; Chen 2013 (root-Hermite factor).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product

_SIEVE, _SIEVE_VECTORS = 0.292, 0.2075
_SMALLEST_BLOCK = 60
# Prices of MATZOV 2022, p. 37: a product and a sum of numbers of 32 bits.
_PRODUCT_BITS, _TABLE_BITS = 10.0, math.log2(4 * 5 * 32)


@dataclass(frozen=True)
class Lwe:
    """An instance: ``modulus_bits`` is the logarithm of q, ``sigma`` the deviation of noise and of secrets.

    ``samples`` beyond those that make the secrets small; None: as many as an attack wants.
    """

    dimension: int
    modulus_bits: float
    sigma: float
    samples: int | None = None

    @property
    def most_samples(self) -> int:
        """An attack wants no more than that."""
        return self.samples or 4 * self.dimension


@cache
def root_hermite_bits(block: int) -> float:
    """log2 of the root-Hermite factor that BKZ with blocks of this size reaches."""
    return math.log2((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) / (2 * (block - 1))


def primal(lwe: Lwe) -> tuple[int, int]:
    """The smallest block size that finds the secret as the unique shortest vector, and the dimension of the lattice."""

    def lattice(block: int) -> int | None:
        """The smallest dimension in which this block size is enough."""
        wanted = math.log2(lwe.sigma * math.sqrt(block))
        for samples in range(max(1, block - lwe.dimension - 1), lwe.most_samples + 1):
            dimension = lwe.dimension + samples + 1
            volume = (samples * lwe.modulus_bits + math.log2(lwe.sigma)) / dimension
            if wanted <= root_hermite_bits(block) * (2 * block - dimension - 1) + volume:
                return dimension
        return None

    low, high = _SMALLEST_BLOCK, lwe.dimension + lwe.most_samples
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if lattice(middle) is not None else (middle + 1, high)
    dimension = lattice(low)
    if dimension is None:
        raise ValueError(f"no block size is enough for {lwe}")
    return low, dimension


def primal_bits(lwe: Lwe) -> float:
    """Cost of the primal attack."""
    return _SIEVE * primal(lwe)[0]


def dual_bits(lwe: Lwe) -> float:
    """Cost of the dual attack that distinguishes by short dual vectors, each sieve giving 2^(0.2075 b) of them."""
    best = math.inf
    for block in range(_SMALLEST_BLOCK, lwe.dimension + lwe.most_samples):
        if _SIEVE * block >= best:
            break
        for samples in range(max(5, block - lwe.dimension), lwe.most_samples, 5):
            dimension = lwe.dimension + samples
            length = root_hermite_bits(block) * dimension + lwe.dimension * lwe.modulus_bits / dimension
            advantage = -2 * math.pi**2 * 4 ** (length + math.log2(lwe.sigma) - lwe.modulus_bits) / math.log(2)
            repeats = max(0.0, -2 * advantage - _SIEVE_VECTORS * block)
            best = min(best, _SIEVE * block + repeats)
    return best


def hybrid_dual_bits(lwe: Lwe) -> float:
    """Cost of the dual attack that guesses some of the secret, and tests guesses by a Fourier transform."""
    best = math.inf
    for modulus, guessed, transformed in product(range(2, 8), range(0, 40, 5), range(0, 80, 5)):
        for block in range(_SMALLEST_BLOCK, lwe.dimension + lwe.most_samples, 2):
            if _SIEVE * block >= best:
                break
            best = min(best, _hybrid_bits(lwe, block, modulus, guessed, transformed))
    return best


def _hybrid_bits(lwe: Lwe, block: int, modulus: int, guessed: int, transformed: int) -> float:
    sigma, samples = lwe.sigma, min(lwe.dimension, lwe.most_samples)
    reduced = lwe.dimension - guessed - transformed
    dimension = samples + reduced
    length = (
        math.log2(sigma)
        + reduced / dimension * lwe.modulus_bits
        + math.log2(4 / 3) / 2
        + math.log2(block / (2 * math.pi * math.e)) / 2
        + root_hermite_bits(block) * (dimension - block)
    )
    entropy = (0.5 + math.log(math.sqrt(2 * math.pi) * sigma) - math.log(math.tanh(math.pi**2 * sigma**2))) / math.log(
        2
    )
    exponent = 4 * (math.pi * 2 ** min(length - lwe.modulus_bits, 20.0)) ** 2
    exponent += transformed / 3 * (sigma * math.pi / modulus) ** 2
    tests = guessed * entropy + transformed * math.log(modulus) + math.log(2)
    vectors = exponent / math.log(2) + math.log2(tests)
    sieves = max(0.0, vectors - _SIEVE_VECTORS * block)
    sieving = _SIEVE * block + (math.log2(math.ceil(2**sieves)) if sieves < 50 else sieves)
    transform = _PRODUCT_BITS + math.log2(transformed) + (transformed + 1) * math.log2(modulus) if transformed else 0.0
    alpha = math.pi**2 * sigma**2
    wasted = 8 * alpha * math.exp(-2 * alpha) * math.tanh(alpha) + math.log(2) - 0.5
    guessing = -math.log2(1 - math.exp(-1 / (2 * sigma**2))) + guessed * (wasted / math.log(2) + entropy)
    return _sum_bits(sieving, guessing + _sum_bits(transform, _TABLE_BITS + vectors))


def _sum_bits(left: float, right: float) -> float:
    """log2(2^left + 2^right)."""
    return max(left, right) + math.log2(1 + 2 ** -abs(left - right))

"""Prints what accounting, sums and single functions give: by the thin SciPy, or by the whole library.

Run as a program: ``python tests/numerics/scipy_values.py thin`` (or ``whole``) prints JSON, name -> hexadecimal floats.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from odp.numerics import thin_scipy

Value = tuple[str, object]


def main(kind: str) -> None:
    if kind == "thin":
        thin_scipy.install()
    values = {name: _hexadecimal(value) for part in PARTS for name, value in part()}
    modules = sum(name.partition(".")[0] == "scipy" for name in sys.modules)
    sys.stdout.write(json.dumps({"modules": modules, "values": values}))


def _hexadecimal(value: object) -> list[str]:
    numbers = np.atleast_1d(np.asarray(value))
    if numbers.dtype.kind == "c":
        numbers = numbers.view(np.float64)
    return [str(numbers.shape), *(float(number).hex() for number in numbers.ravel())]


def gaussian_epsilons() -> Iterator[Value]:
    from odp.privacy.accounting import epsilon, epsilon_pld, epsilon_rdp, epsilon_replace_one
    from odp.privacy.events import GaussianRelease

    for sigmas in ((1.0,), (10.0,) * 100, (10.0,) * 10, (5.0,) * 5 + (10.0,) * 5, (30.0,) * 4, (0.7, 2.5)):
        events = [GaussianRelease("x", 1.0, sigma, 1) for sigma in sigmas]
        for delta in (1e-5, 1e-8):
            for method in (epsilon, epsilon_pld, epsilon_rdp, epsilon_replace_one):
                interval = {"interval": 1e-3} if method in (epsilon_pld, epsilon_replace_one) else {}
                yield f"{method.__name__} {sigmas[0]} {len(sigmas)} {delta}", method(events, delta=delta, **interval)


def sampled_epsilons() -> Iterator[Value]:
    from odp.privacy import accounting, composition
    from odp.privacy.events import GaussianRelease, SampledRound, Sampling

    for bound, q, sigma, rounds, delta in (
        (100, 0.5, 0.9835, 11, 1e-3),
        (10_000, 0.05085, 0.9901, 412, 1e-6),
        (1_000, 0.22, 1.0, 54, 1e-5),
        (100, 0.5, 3**-0.5, 11, 1e-3),
        (10_000, 0.01, 4.0, 10_000, 1e-5),
        (10_000, 0.1, 2.0, 100, 1e-6),
        (10_000, 0.1, 1.0, 10, 1e-6),
        (200, 0.9, 3.0, 6, 1e-4),
    ):
        event = SampledRound((GaussianRelease("x", 1.0, sigma, 1),), Sampling(q, bound, bound))
        name = f"{bound} {q} {sigma:.4f} {rounds}"
        yield f"sampled {name}", accounting.epsilon({event: rounds}, delta=2 * delta, interval=1e-2)
        yield f"sampled rdp {name}", accounting.epsilon_rdp([event] * rounds, delta=2 * delta)
        cap = composition.truncation_cap(probability=q, population_bound=bound, rounds=rounds, delta=delta)
        capped = SampledRound(event.releases, Sampling(q, bound, cap))
        yield f"cap {name}", cap
        yield f"capped {name}", composition.epsilon({capped: rounds}, delta_left=delta, interval=1e-2)
        yield f"overflow {name}", composition.overflow_delta({capped: rounds})
    # On the grid of a search, whose arrays are ten times as long.
    mixed: dict[Any, int] = {
        SampledRound((GaussianRelease("x", 1.0, sigma, 1),), Sampling(q, 10_000, cap)): rounds
        for q, sigma, cap, rounds in ((0.03, 1.0, 10_000, 20), (0.1, 1.2, 1_200, 30))
    }
    yield "mixed", composition.epsilon({**mixed, GaussianRelease("y", 1.0, 7.0, 1): 3}, delta_left=1e-5, interval=1e-3)


def other_epsilons() -> Iterator[Value]:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    from odp.privacy import shuffling
    from odp.privacy.mechanisms.spherical_heights import heights

    for epsilon0 in (0.5, 2.0, 6.0):
        for n in (100, 20_000):
            yield f"clones {epsilon0} {n}", shuffling.amplified_epsilon(epsilon0, n, 1e-6)
            yield f"binary {epsilon0} {n}", shuffling.amplified_epsilon_binary(epsilon0, n, 1e-6)
            yield f"choices {epsilon0} {n}", shuffling.amplified_epsilon_k_rr(epsilon0, n, 1e-6, 16)
    for dimension in (5, 784):
        yield f"heights {dimension}", np.concatenate(heights(dimension, -np.geomspace(0.7, 900.0, 60)))
    for trees in (1, 5, 12):
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
        accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(1.3 * trees, 1000))
        yield f"tree {trees}", accountant.get_epsilon(1e-6)
    for noise, buckets in ((0.3, 2), (0.8, 10)):
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp_accounting.RandomizedResponseDpEvent(noise, buckets), 3)
        yield f"randomized response {noise}", accountant.get_epsilon(1e-6)


def sums_over_factors() -> Iterator[Value]:
    from scipy import sparse

    random = np.random.default_rng(1)
    for rows, columns, width in ((1, 1, 1), (5, 9, 3), (300, 64, 10), (4, 7, 0)):
        count = rows * columns // 3
        cells = random.permutation(rows * columns)[:count]
        weights = random.normal(size=count)
        product = sparse.csr_array((weights, (cells // columns, cells % columns)), shape=(rows, columns))
        yield f"sums {rows}", product @ random.normal(size=(columns, width))
        strided = random.normal(size=(columns, 2 * width))[:, ::2]
        yield f"sums of a view {rows}", product @ strided


def single_functions() -> Iterator[Value]:
    random = np.random.default_rng(2)
    fft, signal, special, stats = (
        importlib.import_module(f"scipy.{name}") for name in ("fft", "signal", "special", "stats")
    )
    for length in (1, 2, 7, 100, 1009, 4096):
        exponents, weights = random.normal(scale=30.0, size=length), random.random(length)
        yield f"logsumexp {length}", special.logsumexp(exponents)
        yield f"logsumexp of weights {length}", special.logsumexp(exponents, b=weights)
        yield f"logsumexp of signs {length}", special.logsumexp(exponents, b=weights - 0.5)
        yield f"logsumexp of ties {length}", special.logsumexp(np.round(exponents / 20), b=np.round(weights))
        yield f"logsumexp of rows {length}", special.logsumexp(random.normal(size=(length, 3)), axis=1, b=weights[:1])
        yield f"logsumexp of lists {length}", special.logsumexp(list(exponents), b=list(weights))
        for other in (1, 3, 500):
            yield f"convolution {length} {other}", signal.fftconvolve(exponents, random.random(other))
        size = fft.next_fast_len(3 * length)
        yield f"fast length {length}", size
        yield f"transform {length}", fft.ifft(fft.fft(list(weights), size) ** 5)
        yield f"shorter transform {length}", fft.fft(weights, max(1, length // 2))
    for case in ([-np.inf, -np.inf], [np.inf, 1.0], [np.inf, -np.inf], [np.nan, 1.0], [800.0, 800.0], [-800.0, -801.0]):
        yield f"logsumexp {case}", special.logsumexp(case)
        yield f"logsumexp {case} weighted", special.logsumexp(case, b=[0.0, 2.0])
        yield f"logsumexp {case} negative", special.logsumexp(case, b=[-1.0, 0.5])
    points = np.concatenate([np.linspace(-40.0, 40.0, 401), [-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-310]])
    shares = np.concatenate([np.geomspace(1e-300, 1.0, 301), [0.0, 0.5, -0.1, 1.1, np.nan]])
    for scale in (1.0, 0.37, 250.0):
        law = stats.norm(scale=scale)
        yield f"normal {scale}", np.concatenate([law.cdf(points), law.logcdf(points), law.ppf(shares)])
        yield f"normal of a number {scale}", [law.cdf(0.3), law.logcdf(-3), law.ppf(math.exp(-50.0))]
    for trials, probability in ((0, 0.5), (1, 0.3), (99, 0.5), (9_999, 0.05), (100, 0.0), (100, 1.0)):
        tails = [stats.binom.sf(k, trials, probability) for k in (-1, 0, 0.5, 1, 50, 98, 99, 620, 9_998, 9_999, 1e9)]
        yield f"binomial {trials} {probability}", tails
    yield "no binomial", [stats.binom.sf(1, *law) for law in ((-1, 0.5), (2.5, 0.5), (3, 1.5), (3, math.nan))]


PARTS = (gaussian_epsilons, sampled_epsilons, other_epsilons, sums_over_factors, single_functions)

if __name__ == "__main__":
    main(sys.argv[1])

"""Exact integer Gaussian samples per second, beside numpy's floating-point normals.

The exact noise is drawn as a release draws it: from the operating system's generator, table built once. numpy's are
neither on a grid nor cryptographic; they are the speed that a release would have without these guarantees.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Figure, Limit
from odp.privacy.mechanisms import OperatingSystemNoise, RoundedGaussian

_RATIOS = (1.0, 1e3, 1e6, 1e10)
_GOAL = ">= 5e6"


def run(quick: bool) -> list[Figure]:
    """Samples per second for small to huge ratios of noise to grid step, and the time that a table takes."""
    count, times = (1 << 19, 3) if quick else (1 << 22, 5)
    generator = np.random.Generator(np.random.PCG64(1))  # the yardstick; nothing is released
    normal = Limit("numpy float normal", _best_rate(lambda: generator.standard_normal(count), count, times))
    source = OperatingSystemNoise()
    figures, builds = [], []
    for ratio in _RATIOS:
        started = time.perf_counter()
        law = RoundedGaussian(ratio)
        builds.append(time.perf_counter() - started)
        rate = _best_rate(lambda law=law: law.sample(count, source), count, times)  # type: ignore[misc]
        figures.append(Figure(f"exact, ratio {ratio:g}", rate, "samples/s", _GOAL, normal))
    return [*figures, Figure("slowest table, built once per ratio", max(builds), "s")]


def _best_rate(draw: Callable[[], object], count: int, times: int) -> float:
    draw()
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        draw()
        best = min(best, time.perf_counter() - started)
    return count / best

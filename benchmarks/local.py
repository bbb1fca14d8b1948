"""Mechanisms that are private by themselves, each beside the least that its work could cost in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import local_service, local_shuffle, local_updates
from benchmarks.harness import Figure, Limit
from odp.privacy.mechanisms.privunit import PrivUnit
from odp.privacy.mechanisms.random_source import RandomSource

_DIMENSIONS = (10_000, 100_000, 1_000_000)


def run(quick: bool) -> list[Figure]:
    """Directions, bounds on what shuffled reports reveal, updates of Draw and Discard, and the service of reports."""
    return [*_directions(quick), *local_shuffle.run(quick), *local_updates.run(quick), *local_service.run(quick)]


def _directions(quick: bool) -> list[Figure]:
    """One answer of PrivUnit2, beside numpy's normals of as many numbers, which are not secret."""
    times = 7 if quick else 25
    source, generator = RandomSource(), np.random.Generator(np.random.PCG64(1))  # the yardstick; nothing is released
    figures = []
    for dimension in _DIMENSIONS:
        mechanism = PrivUnit.calibrated(dimension, 8.0)
        unit = np.full((1, dimension), 1.0 / np.sqrt(dimension))
        ours = _best(lambda mechanism=mechanism, unit=unit: mechanism.randomize(unit, source=source), times)  # type: ignore[misc]
        least = _best(lambda dimension=dimension: generator.standard_normal(dimension), times)  # type: ignore[misc]
        limit = Limit("numpy normals", 1000.0 * least)
        figures.append(Figure(f"PrivUnit2, {dimension:,} dimensions", 1000.0 * ours, "ms", limit=limit))
    # Of the largest dimension.
    figures.append(Figure("PrivUnit2, multiple of numpy normals", ours / least, "", "<= 4"))
    started = time.perf_counter()
    PrivUnit.calibrated(123_457, 7.0)
    figures.append(Figure("PrivUnit2, calibration", 1000.0 * (time.perf_counter() - started), "ms"))
    return figures


def _best(work: Callable[[], object], times: int) -> float:
    work()
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best

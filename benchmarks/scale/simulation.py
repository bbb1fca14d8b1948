"""Simulations on Ray beside the local engine: one machine, and two workers beside one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import odp
from benchmarks.harness import Figure, Limit, progress
from odp._system.extras import is_installed
from odp.research.simulation.engines.ray_cluster import RayEngine
from odp.research.simulation.engines.seam import Engine

_ML_20M = {"n_users": 138_493, "n_items": 26_744, "ratings_per_user": 144}
_TIMES = 2
_QUICK = {"n_users": 3_000, "n_items": 1_000, "ratings_per_user": 40}


def run(quick: bool) -> list[Figure]:
    """Sweeps of DPAM over invented ratings; the quick ones are too short for a goal."""
    if not is_installed("ray"):
        progress("ray is not installed: pip install 'odp-platform[ray]'")
        return []
    warming = _workload(_QUICK, rank=8)
    measured = warming if quick else _workload(_ML_20M, rank=16)
    warming()  # compiles the kernels
    progress("simulating here")
    here = _seconds(measured)
    processors = len(os.sched_getaffinity(0))
    with RayEngine(parts=2 * processors) as engine:
        warming(engine)
        progress("and on Ray")
        there = _seconds(lambda: measured(engine))
    figures = [
        Figure("simulation on Ray, all processors", there, "s", None, Limit("this process", here)),
        Figure("simulation on Ray over this process", there / here, "", None if quick else "<= 1.2"),
    ]
    if not quick:
        progress("and with one worker, and with two")
        one, two = _on(1, measured, warming), _on(2, measured, warming)
        goal = ">= 1.7" if processors >= 2 else None
        name = "sums by two workers of one thread over those by one"
        figures.append(Figure(name, one / two, "", goal, Limit("one worker, s", one)))
    return figures


def _workload(shape: dict[str, int], *, rank: int) -> Callable[..., None]:
    """A simulation without noise on data of ``shape``; takes an engine, and without one runs here."""
    data = odp.data.random_split(_invented(seed=1, **shape), seed=1)
    task = odp.Task(
        name="benchmark",
        model=odp.MatrixFactorization(items=shape["n_items"], rank=rank),
        data=odp.RatingsData(low=0.5, high=5),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-7, max_items_per_user=50),
        training=odp.DPAM(),
        cohort=odp.Cohort(minimum=1000),
    )

    def simulate(engine: Engine | None = None) -> None:
        odp.simulate(task, data, noise=False, engine=engine)

    return simulate


def _invented(*, n_users: int, n_items: int, ratings_per_user: int, seed: int) -> odp.data.Ratings:
    return odp.data.synthetic_movielens(n_users=n_users, n_items=n_items, ratings_per_user=ratings_per_user, seed=seed)


def _on(workers: int, measured: Callable[..., None], warming: Callable[..., None]) -> float:
    """Seconds until the sums of all rounds are there, on a cluster with so many workers; the rest is this process's."""
    with RayEngine(parts=2 * workers, processors=workers) as engine:
        warming(engine)
        taken = []
        for _ in range(_TIMES):
            timed = TimedEngine(engine)
            measured(timed)
            taken.append(timed.seconds)
        return min(taken)


class TimedEngine:
    """Implements ``odp.research.simulation.engines.seam.Engine``: ``engine``, and the seconds that its sums took."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.seconds = 0.0

    def sums(self, *given: Any) -> TimedEngine:
        self._sums = self._engine.sums(*given)
        return self

    def of(self, *given: Any, **named: Any) -> Mapping[str, Any]:
        started = time.perf_counter()
        found = self._sums.of(*given, **named)
        self.seconds += time.perf_counter() - started
        return found

    def each(self, *given: Any) -> Any:
        return self._engine.each(*given)


def _seconds(do: Callable[[], object]) -> float:
    """The shortest of some times: the first one also makes memory the system's."""
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        do()
        taken.append(time.perf_counter() - started)
    return min(taken)

"""One full sweep of DPAM on one machine, beside the matrix product of the same machine for the same arithmetic.

A sweep is what a factor round of a simulation does: every user's solve and contribution, exact sums per item, noise,
projection, item solves. Flops are those of the algorithm (``sweep_flops``), not those that were executed: the search
for the common covariance of the items, the grid and the noise count as time and not as work. The product is of float64
matrices on as many threads, before and after the sweep; the sweep is compared with their mean, so that other work on
the machine slows both. Small sweeps are repeated, and the fastest counts. Beside ``implicit``, the two take turns and
every one of five runs is shown, as the machine may be busy in one of them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.dpam_data import ML_1M, ML_20M, MOST, SMALL, Shape, made, made_in_folder, plain_items, plain_sums
from benchmarks.harness import Figure, Limit, progress
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.dpam.population import DpamPopulation, machine_code
from odp.algorithms.dpam.terms import FIRST_FACTOR_ROUND
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.evaluation.users import user_seeds
from odp.models.matrix_factorization import MatrixFactorization
from odp.numerics import parallel
from odp.protocol.terms import UserLevelDP
from odp.research.simulation.engine import noisy_release
from odp.tasks.task import Task
from odp.v1 import common_pb2

_GIB = 2.0**30
_SECOND_SWEEP = FIRST_FACTOR_ROUND + 1  # the first one loads the machine code
_STREAMED_USERS, _STREAMED_EACH = 10_000_000, 10
# Shares of the product's speed: matrices of 33 rows are small, and the exact noise is as much work as they are.
_GOAL_AT_1M, _GOAL_AT_20M = 0.3, 0.6
_RUNS = 5  # beside another library
_REST_SECONDS, _MOST_RESTS = 0.02, 100


@dataclass(frozen=True)
class Sweep:
    """Seconds of the second factor round by part; flops of section 12 of the design; the product's flops per second."""

    users: float
    noise: float
    items: float
    flops: float
    product: float
    ratios: tuple[float, ...] = ()
    """Of each run, the sweep's seconds over those of ``implicit``, which ran right after it."""

    @property
    def seconds(self) -> float:
        """Of the whole sweep."""
        return self.users + self.noise + self.items


def run(quick: bool) -> list[Figure]:
    """Sweeps at the shapes of ML-1M and ML-20M, a plain loop, ``implicit``; without the large ones in quick mode."""
    if machine_code() is None:
        raise ConfigurationError(
            "Expected numba: pip install 'odp-platform[bench]'; without it the simulator is several times slower"
        )
    small = [SMALL, ML_1M] if quick else [ML_1M]
    figures = []
    for shape in small:
        ratings = made(shape)
        found = sweep(ratings, shape.rank, times=_RUNS)
        figures += _figures(shape.name, shape.rank, found, goal=None if quick else _GOAL_AT_1M)
        if shape is ML_1M:
            figures += _beside_others(ratings, shape, found)
    if not quick:
        figures += _in_process("large")
        figures += _in_process("beside")
        figures += _in_process("streamed")
    return figures


def sweep(ratings: Ratings, rank: int, times: int = 1, *, beside: Callable[[], float] | None = None) -> Sweep:
    """Runs counts, biases and two factor rounds, the last one ``times`` times; measures its fastest run.

    ``beside`` gives the seconds of what each run is compared with, and runs after it.
    """
    definition = definition_for(ratings, rank)
    algorithm = algorithm_for(definition)
    server, population = algorithm.server(), DpamPopulation(definition)
    seeds = user_seeds(ratings, 1)
    state = server.start()
    products, runs, ratios = [], [], []
    for number in (*range(_SECOND_SWEEP), *[_SECOND_SWEEP] * times):
        if number == _SECOND_SWEEP:
            products.append(product_speed())
        query = algorithm.query(number)
        broadcast = server.broadcast(state)
        clock = [time.perf_counter()]
        totals = population.contribute(broadcast, ratings, round=number, seeds=seeds)
        clock.append(time.perf_counter())
        tensors = noisy_release(query, totals, seed=1, round=number)
        del totals
        clock.append(time.perf_counter())
        following = server.step(state, NoisyTensors(number, tensors, ratings.n_users))
        clock.append(time.perf_counter())
        if number < _SECOND_SWEEP:
            state = following
        else:
            runs.append(np.diff(clock).tolist())
            del tensors, following
            if beside is not None:
                ratios.append(sum(runs[-1]) / beside())
    products.append(product_speed())
    users, noise, items = min(runs, key=sum)
    return Sweep(users, noise, items, sweep_flops(ratings, rank), float(np.mean(products)), tuple(ratios))


def definition_for(ratings: Ratings, rank: int) -> common_pb2.TaskDefinition:
    """A task at epsilon 8 that uses every rating."""
    most = min(MOST, ratings.n_items)
    return Task(
        name="benchmark",
        model=MatrixFactorization(items=ratings.n_items, rank=rank),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=most),
        training=DPAM(steps=2),
    ).definition()


def sweep_flops(ratings: Ratings, rank: int) -> float:
    """4 nnz (d (d + 1) / 2 + d) + n d^3 / 3 + 10 m d^3: users' and items' sums, users' solves, items' PSD and solve."""
    cube = float(rank) ** 3
    sums = 4.0 * ratings.n_ratings * (rank * (rank + 1) / 2 + rank)
    return sums + ratings.n_users * cube / 3 + 10.0 * ratings.n_items * cube


def product_speed(size: int = 2048, times: int = 3) -> float:
    """Flops per second of a float64 matrix product by numpy's BLAS, on all processors; the best of ``times``.

    Returns when BLAS's threads are at rest: for a tenth of a second they wait busily for more work, at the cost of what
    is measured next.
    """
    generator = np.random.Generator(np.random.PCG64(1))
    one, two = generator.random((size, size)), generator.random((size, size))
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        one @ two
        best = min(best, time.perf_counter() - started)
    for _ in range(_MOST_RESTS):
        used = time.process_time()
        time.sleep(_REST_SECONDS)
        if time.process_time() - used < _REST_SECONDS / 10:
            break
    return 2.0 * size**3 / best


def _figures(name: str, rank: int, found: Sweep, *, goal: float | None) -> list[Figure]:
    label = f"{name} rank {rank}"
    needed = found.flops / found.product
    return [
        Figure(f"{label}: sweep", found.seconds, "s", None, Limit("matrix product of the same flops", needed)),
        Figure(f"{label}: users' solves and exact item sums", found.users, "s"),
        Figure(f"{label}: noise", found.noise, "s"),
        Figure(f"{label}: projection and item solves", found.items, "s"),
        Figure(
            f"{label}: speed",
            found.flops / found.seconds / 1e9,
            "GFLOP/s",
            None,
            Limit("matrix product", found.product / 1e9),
        ),
        Figure(f"{label}: share of the product's speed", needed / found.seconds, "", f">= {goal}" if goal else None),
    ]


def _beside_others(ratings: Ratings, shape: Shape, found: Sweep) -> list[Figure]:
    """Plain loops over users and items, and ``implicit``'s ALS at the same rank, which adds no noise nor projects."""
    factors = 0.1 * np.random.Generator(np.random.PCG64(2)).normal(size=(ratings.n_items, shape.rank))
    started = time.perf_counter()
    with parallel.one_blas_thread():  # the faster way for small matrices
        sums = plain_sums(ratings, factors, ridge=1.0)
        halfway = time.perf_counter()
        plain_items(*sums, noise=10.0, ridge=1.0)
    ended = time.perf_counter()
    plain = ended - started
    name = f"{shape.name} rank {shape.rank}"
    figures = [
        Figure(f"{name}: plain sweep over ours", plain / found.seconds, "", ">= 10"),
        Figure(f"{name}: plain solves and sums over ours", (halfway - started) / found.users, ""),
        Figure(f"{name}: plain items over ours", (ended - halfway) / (found.noise + found.items), ""),
        Figure(f"{name}: plain sweep", plain, "s", None, Limit("sweep", found.seconds)),
    ]
    return [*figures, *beside_implicit(ratings, shape)]


def beside_implicit(ratings: Ratings, shape: Shape) -> list[Figure]:
    """The ratio of each of five sweeps to one of ``implicit``, which adds no noise and estimates no prior."""
    seconds: list[float] = []

    def measure() -> float:
        taken = implicit_sweep(ratings, shape.rank, times=1)
        seconds.append(np.nan if taken is None else taken)
        return seconds[-1]

    name = f"{shape.name} rank {shape.rank}"
    if importlib.util.find_spec("implicit") is None:
        progress("implicit is not installed, so it is not compared: pip install 'odp-platform[bench]'")
        return []
    found = sweep(ratings, shape.rank, times=_RUNS, beside=measure)
    limit = Limit("implicit's sweep, without privacy", min(seconds))
    return [
        *(
            Figure(f"{name}: sweep beside implicit, run {number} of {_RUNS}", ratio, "", "<= 1")
            for number, ratio in enumerate(found.ratios, 1)
        ),
        Figure(f"{name}: users' solves and sums beside implicit", found.users, "s", None, limit),
    ]


def implicit_sweep(ratings: Ratings, rank: int, times: int = 3) -> float | None:
    """Seconds of one iteration of ``implicit``'s ALS (exact, float64), the best of ``times``; None without it."""
    try:
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError:
        return None
    from scipy.sparse import csr_matrix

    # Copies: a folder's arrays are read-only, which its compiled code does not take.
    parts = tuple(np.array(part) for part in (ratings.values, ratings.items, ratings.offsets))
    matrix = csr_matrix(parts, shape=(ratings.n_users, ratings.n_items))
    best = float("inf")
    with parallel.one_blas_thread():
        for _ in range(times):
            seconds: list[float] = []
            model = AlternatingLeastSquares(
                factors=rank,
                use_cg=False,
                dtype=np.float64,
                iterations=2,
                num_threads=parallel.processors(),
                random_state=1,
            )
            model.fit(matrix, show_progress=False, callback=lambda _, taken, *rest: seconds.append(taken))  # noqa: B023
            best = min(best, seconds[-1])
    return best


def _in_process(part: str) -> list[Figure]:
    """The figures of a part that is run in a process of its own, so that its peak memory is its own."""
    progress(f"{part}: several minutes, most of them to make the data")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dpam", part], capture_output=True, text=True, check=False, timeout=7200
    )
    if done.returncode:
        raise ConfigurationError(f"the part {part!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    return [
        Figure(
            one["name"], one["value"], one["unit"], one["goal"], None if one["limit"] is None else Limit(**one["limit"])
        )
        for one in json.loads(done.stdout.splitlines()[-1])
    ]


def _large() -> list[Figure]:
    """The shape of ML-20M, from 1 to 20 million ratings; data on disk, as a large set is used."""
    figures: list[Figure] = []
    costs: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for millions in (1, 5, 10, 20):
            target = Path(folder) / str(millions)
            made_in_folder(ML_20M, target, ratings=millions * 10**6)
            ratings = Ratings.open_folder(target)
            found = sweep(ratings, ML_20M.rank)
            costs[millions] = found.users
            if millions < 20:
                name = f"ML-20M shape with {millions} M ratings: users' solves and item sums"
                figures.append(Figure(name, found.users, "s"))
            else:
                figures += _figures(ML_20M.name, ML_20M.rank, found, goal=_GOAL_AT_20M)
    sizes = sorted(costs)
    growth = max(costs[two] / costs[one] * one / two for one, two in itertools.pairwise(sizes))
    name = "users' solves and item sums: growth of time over growth of ratings, worst of 1, 5, 10, 20 M"
    figures.append(Figure(name, growth, "", "<= 1.15"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB
    return [*figures, Figure("ML-20M rank 64: peak memory", peak, "GiB", "<= 2")]


def _beside() -> list[Figure]:
    """The shape of ML-20M beside ``implicit``, which holds everything in memory, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ratings"
        made_in_folder(ML_20M, target)
        return beside_implicit(Ratings.open_folder(target), ML_20M)


def _streamed() -> list[Figure]:
    """Ten million users from a folder that is never in memory as a whole."""
    shape = Shape("ten million users", _STREAMED_USERS, 2_000, _STREAMED_USERS * _STREAMED_EACH, 16)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ratings"
        made_in_folder(shape, target)
        ratings = Ratings.open_folder(target)
        watch = _Watch()
        found = sweep(ratings, shape.rank)
        peak = watch.stop()
    size = 8.0 * shape.ratings / _GIB
    return [
        Figure("ten million users rank 16: sweep", found.seconds, "s"),
        Figure(
            "ten million users rank 16: share of the product's speed", found.flops / found.product / found.seconds, ""
        ),
        Figure(
            "ten million users: own memory, mapped ratings aside", peak / _GIB, "GiB", "<= 1.5", Limit("ratings", size)
        ),
    ]


class _Watch:
    """The largest private memory of this process, looked at ten times a second."""

    def __init__(self) -> None:
        self._most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Bytes."""
        self._stop.set()
        self._thread.join()
        return self._most

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
            self._most = max(self._most, int(line.split()[1]) * 1024)


if __name__ == "__main__":
    figures = {"large": _large, "beside": _beside, "streamed": _streamed}[sys.argv[1]]()
    print(json.dumps([figure.to_json() for figure in figures]))

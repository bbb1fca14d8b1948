"""Federated training: simulated clients beside a kernel in C and beside TensorFlow, and devices over TLS.

Networks have modules of their own: ``benchmarks.federated_network`` and ``benchmarks.federated_devices``. This one
measures updates of simulated clients per second and core, beside a kernel in C for that one model.

Multinomial regression 784 -> 10 of 10,000 clients with 60 examples each, cohort 1,000, one local epoch in batches of
10, clipped in L2. Both sides train the same clients on the same examples in the same order, and their sums agree. The
kernel in C is written in vectors by hand; ours is plain numba, and half of its speed is the goal.
Clients draw their examples from one table, so that its float32 form, which C needs, fits a small machine.

A round is what ``odp.simulate`` runs: clients drawn out of all, trained in drawn order, clipped, rounded to the grid,
and summed, then noise. The kernel in C trains and clips alone.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import federated_devices, federated_network
from benchmarks.harness import Figure, Limit, progress
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.registry import algorithm_for
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.models.glm.population import differences
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array, Float64Array, UInt64Array
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.research.simulation.engine import noisy_release
from odp.tasks.task import Task

_CLIENTS, _HELD, _TABLE, _BATCH = 10_000, 60, 10_000, 10
_SHAPE = Glm("multinomial", 784, 10)
_CLIP = 0.5
_BLOCK = 16  # clients whose differences stay in the processor's cache
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-mprefer-vector-width=512", "-shared", "-fPIC")


def run(quick: bool) -> list[Figure]:
    """Generalised linear models, networks in the simulator, and networks on devices."""
    # The models come first: their peak of memory is that of the process.
    return [*_linear(quick), *federated_network.figures(quick), *federated_devices.figures(quick)]


def _linear(quick: bool) -> list[Figure]:
    """Client updates per second of one core."""
    cohort, times = (300, 15) if quick else (1000, 25)
    generator = np.random.Generator(np.random.PCG64(1))
    examples = UsersExamples(
        generator.random((_TABLE, _SHAPE.features), dtype=np.float32),
        generator.integers(0, _SHAPE.classes, _TABLE).astype(np.float32),
        generator.integers(0, _TABLE, _CLIENTS * _HELD),
        np.arange(_CLIENTS + 1) * _HELD,
    )
    start = (generator.normal(size=_SHAPE.size) * 0.01).astype(np.float32)
    seeds = np.arange(cohort, dtype=np.uint64)
    training = LocalTraining(rate=0.1, batch=_BATCH, shuffle=False)
    rounds: dict[str, Callable[[], Float32Array | Float64Array]] = {
        "ours": lambda: _clipped_sum(start, examples, training, seeds),
        "drawn": lambda: _clipped_sum(start, examples, LocalTraining(rate=0.1, batch=_BATCH), seeds),
        "round": _round(cohort, start, examples),
    }
    with tempfile.TemporaryDirectory(prefix="odp-benchmark-") as folder:
        kernel = _compiled(Path(folder))
        if kernel is None:
            progress("benchmarks: federated: no C compiler, so nothing to compare with")
        else:
            rounds["C"] = lambda: _in_c(kernel, start, examples, training, cohort)
            if not np.allclose(rounds["C"](), rounds["ours"](), rtol=0, atol=1e-4):
                raise ConfigurationError("Expected the kernel in C to find the same sum")
        rounds["drawn"]()
        rounds["round"]()
        seconds = dict.fromkeys(rounds, float("inf"))
        for _ in range(times):
            for name, work in rounds.items():
                begin = time.process_time()
                work()
                seconds[name] = min(seconds[name], time.process_time() - begin)
    rates = {name: cohort / best for name, best in seconds.items()}
    figures = [
        Figure("GLM clients in their order", rates["ours"], "/s", limit=_beside(rates)),
        Figure("GLM clients in drawn order", rates["drawn"], "/s", limit=_beside(rates)),
    ]
    figures.append(Figure("GLM clients in rounds", rates["round"], "/s", limit=_beside(rates)))
    if "C" in rates:
        figures.append(Figure("GLM clients, share of C", rates["ours"] / rates["C"], "", None if quick else ">= 0.5"))
        figures.append(Figure("GLM rounds, share of C", rates["round"] / rates["C"], ""))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)
    return [*figures, Figure("peak memory", peak, "MiB", "<= 300")]


def _round(cohort: int, start: Float32Array, examples: UsersExamples) -> Callable[[], Float64Array]:
    """A simulated round of clients drawn out of all: its noisy release."""
    task = Task(
        name="benchmark",
        model=_SHAPE,
        data=Examples({"x": Tensor((_SHAPE.features,), 0.0, 1.0)}, label="class"),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-5),
        training=DPFedAvg(rounds=10, rate=0.1, batch=_BATCH, clip=_CLIP),
        cohort=Cohort(minimum=cohort, goal=cohort),
    )
    algorithm = algorithm_for(task.definition())
    population, query = algorithm.population(), algorithm.query(0)
    broadcast = ModelVersion(0, (TableValues("parameters", start[:, None], keyed=False),))
    seeds = np.arange(_CLIENTS, dtype=np.uint64)
    drawn = np.sort(np.random.Generator(np.random.PCG64(2)).permutation(_CLIENTS)[:cohort])

    def run() -> Float64Array:
        users = examples.select_users(drawn)
        sums = population.contribute(broadcast, users, round=0, seeds=seeds[drawn])
        return noisy_release(query, sums, seed=1, round=0)["update"]

    return run


def _beside(rates: dict[str, float]) -> Limit | None:
    return Limit("C kernel", rates["C"]) if "C" in rates else None


def _clipped_sum(
    start: Float32Array, examples: UsersExamples, training: LocalTraining, seeds: UInt64Array
) -> Float64Array:
    total = np.zeros(_SHAPE.size)
    moved = np.empty((_BLOCK, _SHAPE.size), dtype=np.float32)
    for first in range(0, len(seeds), _BLOCK):
        users = slice(first, min(first + _BLOCK, len(seeds)))
        block = moved[: users.stop - first]
        differences(_SHAPE, start, examples, training, seeds=seeds[users], round=0, users=users, out=block)
        lengths = np.sqrt(np.einsum("up,up->u", block, block, dtype=np.float64))
        total += (_CLIP / np.maximum(lengths, _CLIP)) @ block
    return total


def _compiled(folder: Path) -> Any:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "federated_kernel.so"
    source = Path(__file__).with_name("federated_kernel.c")
    # A compiler that does not know a flag compiles without it.
    for flags in (_FLAGS, tuple(flag for flag in _FLAGS if "vector" not in flag)):
        made = subprocess.run(
            [compiler, *flags, str(source), "-o", str(library), "-lm"], capture_output=True, check=False
        )
        if made.returncode == 0:
            return ctypes.CDLL(str(library))
    raise ConfigurationError(f"Expected {compiler} to compile {source.name}: {made.stderr.decode()[:200]}")


def _in_c(
    kernel: Any, start: Float32Array, examples: UsersExamples, training: LocalTraining, cohort: int
) -> Float32Array:
    work, total = np.empty_like(start), np.zeros_like(start)
    kernel.train(
        *(values.ctypes.data_as(ctypes.c_void_p) for values in (examples.features, examples.targets, examples.rows)),
        *(_HELD, cohort, _SHAPE.features, _SHAPE.outputs, training.batch),
        *(ctypes.c_float(number) for number in (training.rate, _CLIP)),
        *(values.ctypes.data_as(ctypes.c_void_p) for values in (start, work, total)),
    )
    return total

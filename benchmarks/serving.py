"""The best 20 of a million items on a device, beside numpy on float32 rows, compiled code, and an approximate index.

A catalogue of rank 32 is written as an index of int8 rows. A process of its own opens it and recommends to people who
rated 100 items each: their row is solved, all items are scanned, the best few hundred are predicted with every part of
the model. Beside it, in turns and by processor time, the same machine multiplies the float32 rows (128 MB), which is
what a device would do without an index; and FAISS, where it is installed, searches inverted lists (Jegou, Douze and
Schmid 2011).

Recall is of the 20 best items by the float model's own predictions, all parts of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Figure, Limit, progress
from benchmarks.serving_data import RANK, Catalogue, catalogue
from benchmarks.serving_device import BEST, times
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import recommender_for
from odp.errors import ConfigurationError
from odp.numerics import parallel
from odp.numerics.arrays import Float32Array, Int64Array
from odp.serving.difference import apply, difference
from odp.serving.index_file import save_index
from odp.serving.item_index import ItemIndex, bias_values, scale_values
from odp.serving.ranking import best, person_row

ITEMS = 1_000_000
_SMALLER = (10_000, 100_000)
_PREDICTED = 25_000  # items that the float model predicts at a time
_MEGA, _MILLI = 1e6, 1e3
_LISTS, _PROBES = 1024, (64, 128, 256)
_MOVED = 0.05  # standard deviations that rows move by in a retraining


def run(quick: bool) -> list[Figure]:
    """A million items, and smaller catalogues; 100,000 alone in quick mode."""
    if not quick:
        found = [figure for items in _SMALLER for figure in _served(catalogue(items), people=2, repeats=15)[0]]
        return found + _all(catalogue(ITEMS), people=4, repeats=25, full=True)
    return _all(catalogue(100_000), people=2, repeats=15, full=False)


def _all(made: Catalogue, *, people: int, repeats: int, full: bool) -> list[Figure]:
    index = made.index()
    served, recommended = _served(made, people=people, repeats=repeats, index=index, goals=full)
    progress("the float model, which predicts all items")
    hits = [len(set(_float_best(made, person)) & set(found)) / BEST for person, found in enumerate(recommended)]
    name = f"{len(index):,} items"
    recall = Figure(f"{name}: recall of the {BEST} best by the float model", float(np.mean(hits)), "", ">= 0.95")
    return [*served, recall, *_beside_others(made, index, repeats), *_differences(made, index)]


def _served(
    made: Catalogue, *, people: int, repeats: int, index: ItemIndex | None = None, goals: bool = False
) -> tuple[list[Figure], list[list[int]]]:
    """Figures of a process that serves the index, and what it recommended to each person."""
    index = made.index() if index is None else index
    name = f"{len(index):,} items"
    progress(f"{name}: served in a process of its own")
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "items.index", Path(folder) / "small.index"
        save_index(index, path)
        save_index(catalogue(1_000).index(), small)
        size = path.stat().st_size
        persons = [made.person(number)[ROWS] for number in range(people)]
        np.savez(
            f"{path}.people.npz",
            items=np.stack([one.items for one in persons]),
            values=np.stack([one.values for one in persons]),
        )
        command = [sys.executable, "-m", "benchmarks.serving_device", str(small), str(path), str(repeats)]
        # One thread of BLAS, as the scan has it where threadpoolctl is installed.
        alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600, env=alone)
    if done.returncode:
        raise ConfigurationError(f"serving failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    measured = found["times"]
    one, two, scan = (measured[kind] for kind in ("recommend", "recommend, 2 threads", "scan"))
    limit = Limit("of it processor time", one["cpu"])
    memory = Limit("rows as float32", 4 * RANK * len(index) / _MEGA)
    return [
        Figure(f"{name}: best {BEST}, p50", one["p50"], "ms", "<= 30" if goals else None, limit),
        Figure(f"{name}: best {BEST} on 2 threads, p50", two["p50"], "ms"),
        Figure(f"{name}: scan alone, p50", scan["p50"], "ms", None, Limit("of it processor time", scan["cpu"])),
        Figure(f"{name}: opening and checking the file", found["opened"], "ms"),
        Figure(f"{name}: memory, at its peak", found["peak"], "MB", "<= 40" if goals else None, memory),
        Figure(f"{name}: file, keys included", size / _MEGA, "MB"),
    ], found["items"]


def _float_best(made: Catalogue, person: int) -> list[int]:
    """The best items by the float model's predictions of all items."""
    data, client = made.person(person), recommender_for(made.definition).client()
    own, parts = client.items(data), []
    for first in range(0, len(made.rows), _PREDICTED):
        end = min(first + _PREDICTED, len(made.rows))
        items = np.arange(first, end, dtype=np.int64)
        scores = client.predict(made.slices(first, end, data), data, items)
        scores[np.isin(items, own)] = -np.inf
        parts.append(scores)
    return [int(item) for item in np.argsort(-np.concatenate(parts), kind="stable")[:BEST]]


def _beside_others(made: Catalogue, index: ItemIndex, repeats: int) -> list[Figure]:
    """The scan beside other ways to the same items, in turns in this process."""
    name = f"{len(index):,} items"
    factors = np.ascontiguousarray(made.rows[:, 3:])
    biases = np.ascontiguousarray(made.rows[:, 1])
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((30, RANK)) * np.std(factors, axis=0)
    vector = vectors[0]

    def plain(row: Float32Array) -> Int64Array:
        scores = factors @ row
        scores += biases
        return np.argpartition(scores, len(scores) - BEST)[-BEST:]

    single = vector.astype(np.float32)
    works: list[Callable[[], object]] = [lambda: best(index, vector, BEST), lambda: plain(single)]
    code = _compiled(index, vector)
    with parallel.one_blas_thread():
        found = times(works if code is None else [*works, code], repeats)
    scan, gemv = found[0], found[1]
    limit = Limit("scan", scan["cpu"])
    figures = [
        Figure(f"{name}: processor time of the scan beside numpy on float32 rows", scan["cpu"] / gemv["cpu"], ""),
        Figure(f"{name}: processor time of numpy on float32 rows", gemv["cpu"], "ms", None, limit),
    ]
    if code is not None:
        loop = found[2]
        figures.append(Figure(f"{name}: processor time of a loop compiled by numba", loop["cpu"], "ms", None, limit))
    truth = [set(plain(row.astype(np.float32)).tolist()) for row in vectors]
    hits = [len(truth[place] & set(best(index, row, BEST).items.tolist())) for place, row in enumerate(vectors)]
    figures.append(Figure(f"{name}: recall of {BEST} by the scan alone", float(np.mean(hits)) / BEST, ""))
    return figures + _faiss(name, factors, biases, vectors, truth, limit)


def _compiled(index: ItemIndex, vector: np.ndarray) -> Callable[[], object] | None:
    """A loop over int8 rows in machine code, without a choice of the best; None without numba."""
    try:
        import numba
    except ImportError:
        progress("numba is not installed, so it is not compared: pip install 'odp-platform[bench]'")
        return None
    row = person_row(vector)
    steps, scales = row.steps.astype(np.int16), scale_values(index.scales)
    out, biases = np.empty(len(index), dtype=np.float32), bias_values(index.biases)

    def scores(rows: Any, user: Any, scales: Any, unit: Any, biases: Any, out: Any) -> None:
        for place in range(len(rows)):
            total = np.int32(0)
            for column in range(len(user)):
                total += np.int32(rows[place, column]) * np.int32(user[column])
            out[place] = np.float32(total) * scales[place] * unit + biases[place]

    code = numba.njit(nogil=True)(scores)
    return lambda: code(index.steps, steps, scales, row.unit, biases, out)


def _faiss(
    name: str, factors: Float32Array, biases: Float32Array, vectors: np.ndarray, truth: list[set[int]], scan: Limit
) -> list[Figure]:
    """Inverted lists over float32 and 8-bit rows with the bias as a further column."""
    try:
        import faiss
    except ImportError:
        progress("faiss is not installed, so it is not compared: pip install 'odp-platform[bench]'")
        return []
    faiss.omp_set_num_threads(1)
    rows = np.concatenate((factors, biases[:, None]), axis=1)
    wanted = np.concatenate((vectors, np.ones((len(vectors), 1))), axis=1).astype(np.float32)
    figures = []
    for kind in ("float32", "8 bits"):
        progress(f"faiss: inverted lists of {kind}")
        coarse, width = faiss.IndexFlatIP(rows.shape[1]), rows.shape[1]
        lists = min(_LISTS, len(rows) // 64)
        made = (
            faiss.IndexIVFFlat(coarse, width, lists, faiss.METRIC_INNER_PRODUCT)
            if kind == "float32"
            else faiss.IndexIVFScalarQuantizer(
                coarse, width, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
            )
        )
        started = time.perf_counter()
        made.train(rows[: 64 * lists])
        made.add(rows)
        built = time.perf_counter() - started
        size = len(faiss.serialize_index(made)) / _MEGA
        label = f"{name}: faiss {faiss.__version__}, {lists} lists of {kind}"
        figures += [Figure(f"{label}: file without keys", size, "MB"), Figure(f"{label}: build", built, "s")]
        for probes in (count for count in _PROBES if count <= lists):
            made.nprobe = probes
            clocks, hits = [], 0
            for place, row in enumerate(wanted):
                started = time.process_time()
                _, items = made.search(row[None], BEST)
                clocks.append(time.process_time() - started)
                hits += len(truth[place] & set(items[0].tolist()))
            recall = hits / BEST / len(wanted)
            used = _MILLI * float(np.median(clocks))
            figures.append(
                Figure(f"{label}: {probes} of them, processor time at recall {recall:.3f}", used, "ms", None, scan)
            )
    return figures


def _differences(made: Catalogue, index: ItemIndex) -> list[Figure]:
    """Sizes of differences after 1 % of the rows changed, and after all of them moved as in a retraining."""
    generator = np.random.default_rng(4)
    name = f"{len(index):,} items"
    rows, few = made.rows, made.rows.copy()
    chosen = generator.choice(len(rows), len(rows) // 100, replace=False)
    few[chosen, 3:] = few[chosen, 3:][:, ::-1]
    moved = rows.copy()
    moved[:, 3:] += _MOVED * np.std(rows[:, 3:], axis=0) * generator.standard_normal((len(rows), RANK), np.float32)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        save_index(index, Path(folder) / "items.index")
        whole = Limit("whole file", (Path(folder) / "items.index").stat().st_size / _MEGA)
    for what, changed, goal in (("1 % of the rows changed", few, "<= 0.012"), ("every row moved by 5 %", moved, None)):
        new = made.index(changed)
        data = difference(index, new)
        started = time.perf_counter()
        if apply(index, data).sha256 != new.sha256:
            raise ConfigurationError("the difference gave another index")
        applied = time.perf_counter() - started
        size = len(data) / _MEGA
        figures += [
            Figure(f"{name}: difference, {what}", size, "MB", None, whole),
            Figure(f"{name}: share of the whole file, {what}", size / whole.value, "", goal),
            Figure(f"{name}: applying it, {what}", applied, "s"),
        ]
    return figures

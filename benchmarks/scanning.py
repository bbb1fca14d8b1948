"""How fast the distributor's enclave scans a table, beside how fast this machine reads memory.

A scan answers keys; for every key it goes over the whole table. Its speed is the table's bytes times the keys that one
pass answers, per second of processor time. The yardstick for goals is how fast numpy's maximum or BLAS's dot product,
whichever is faster, reads an array that fits no cache, in the same run and on one thread as in the enclave. A small
table lies in the cache, from which it is read faster than memory: that time is beside each request's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Figure, Limit
from distributor.enclave import BATCH
from distributor.scan import ScannedTable
from odp.numerics import parallel

_GIGA, _MILLI = 1e9, 1e3
#: Beyond the caches of a processor.
MEMORY_BYTES = 2**28


@dataclass(frozen=True)
class Shape:
    """A table of float32: ``rows``, and ``row_bytes`` of each."""

    rows: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Of the whole table."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        return f"{self.rows:,} x {self.row_bytes:,} B"


def table(shape: Shape) -> npt.NDArray[np.float32]:
    """Random normal numbers of that shape."""
    return np.random.default_rng(shape.rows).standard_normal((shape.rows, shape.row_bytes // 4), dtype=np.float32)


def scans(rows: npt.NDArray[np.float32], shape: Shape, *, keys: int, repeats: int, full: bool) -> list[Figure]:
    """Figures of one key, of a request of ``keys`` and of a full batch of requests, per pass; goals where ``full``."""
    scanned = ScannedTable(rows)
    generator = np.random.default_rng(1)

    def scan(asked: npt.NDArray[np.uint32]) -> Callable[[], object]:
        return lambda: scanned.take(asked)

    drawn = [generator.integers(0, shape.rows, count).astype(np.uint32) for count in (1, BATCH, keys, keys * BATCH)]
    same_key = np.zeros(keys, dtype=np.uint32)
    flat, memory = rows.ravel(), np.ones(MEMORY_BYTES // 4, dtype=np.float32)
    readers: list[Callable[[], object]] = [
        memory.max,
        lambda: np.dot(memory, memory),
        rows.max,
        lambda: np.dot(flat, flat),
    ]
    with parallel.one_blas_thread():
        found = best([*readers, *map(scan, drawn), scan(same_key)], repeats)
    one, few, request, batch, same = found[len(readers) :]
    bandwidth = MEMORY_BYTES / min(found[:2])
    reading = shape.bytes / bandwidth
    single, batched = (">= 0.6", ">= 1.5") if full else (None, None)
    once = Limit("reading the table once", _MILLI * min(found[2:4]))
    return [
        Figure(
            f"{shape}: scan for one key", shape.bytes / one / _GIGA, "GB/s", None,
            Limit("memory", bandwidth / _GIGA),
        ),
        Figure(f"{shape}: scan for one key over memory", reading / one, "", single),
        Figure(f"{shape}: scan for {BATCH} keys over memory", BATCH * reading / few, "", batched),
        Figure(f"{shape}: scan for a request of {keys} keys over memory", keys * reading / request, "", single),
        Figure(f"{shape}: scan for {BATCH} requests over memory", BATCH * keys * reading / batch, "", batched),
        # The other way to count: a request is answered in so many times the time of reading the table once.
        Figure(f"{shape}: time of one request", _MILLI * request, "ms", None, once),
        Figure(f"{shape}: time per request of {BATCH}", _MILLI * batch / BATCH, "ms", None, once),
        # Were accesses to follow the keys, one row for all of them would be faster: it stays in the cache.
        Figure(
            f"{shape}: time of one request, one key for all", _MILLI * same, "ms", None,
            Limit("keys spread", _MILLI * request),
        ),
    ]  # fmt: skip


def best(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Processor seconds of each: the best of a few, after one that warms up; in turns, so that all meet one machine."""
    best = [float("inf")] * len(works)
    for number in range(repeats + 1):
        for place, work in enumerate(works):
            started = time.process_time()
            work()
            if number:
                best[place] = min(best[place], time.process_time() - started)
    return best

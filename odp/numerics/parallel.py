"""Blocks of work on several threads, results in order: the work must release the interpreter lock."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def processors(threads: int | None = None) -> int:
    """``threads``, or by default ODP_THREADS of the environment, or else the number of processors of this process.

    Raises:
      ConfigurationError: ``threads`` or ODP_THREADS is not positive.
    """
    if threads is not None:
        _validate.integer(threads=threads, low=1, high=1024)
        return threads
    if setting := os.environ.get("ODP_THREADS", ""):
        if not setting.isdecimal() or not int(setting):
            raise ConfigurationError(f"Expected ODP_THREADS={setting!r} to be a number of threads")
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[_In], _Out], blocks: Sequence[_In], *, threads: int, pool: ThreadPoolExecutor | None = None
) -> list[_Out]:
    """``work`` of every block, in the order of ``blocks``, while BLAS keeps to one thread per block.

    With a ``pool``, whose owner sees to BLAS, its threads do the work instead of fresh ones.
    """
    if threads == 1 or len(blocks) < 2:
        return [work(block) for block in blocks]
    if pool is not None:
        return list(pool.map(work, blocks))
    with one_blas_thread(), ThreadPoolExecutor(threads) as fresh:
        return list(fresh.map(work, blocks))


def one_blas_thread() -> contextlib.AbstractContextManager[object]:
    """BLAS on one thread, if threadpoolctl is installed: BLAS's own threads make small matrices at least 5 times
    slower.
    """
    if (controller := _blas()) is None:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager[object] = controller.limit(limits=1, user_api="blas")
    return limits


@functools.cache
def _blas() -> ThreadpoolController | None:
    """The libraries found by threadpoolctl; the search takes milliseconds, so it runs once."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()


def ranges(bounds: Int64Array, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of parts whose sizes add up to ``most`` or less, or of one part; bounds int64 [parts + 1]."""
    start, parts = 0, len(bounds) - 1
    while start < parts:
        end = int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1
        end = min(max(end, start + 1), parts)
        yield start, end
        start = end

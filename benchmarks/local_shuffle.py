"""How long the bounds on shuffled reports and the certificates take; the caches of answers are emptied before each."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Figure, Limit
from odp.privacy import reconstruction, shuffling

_DELTA = 1e-6


def run(quick: bool) -> list[Figure]:
    """Seconds of one bound of each kind, beside one pass over the binomial tails of the general one."""
    times = 3 if quick else 10
    clones = shuffling._Clones.of(1.0, 10**6, _DELTA * 2.0**-24, float(np.exp(-1.0)))
    once = Limit("one delta of the same sum", _best(lambda: clones.delta(0.004), times))
    general = _best(lambda: shuffling.amplified_epsilon(1.0, 10**6, _DELTA), times)
    blanket = _best(lambda: shuffling.amplified_epsilon_k_rr(2.0, 10**6, _DELTA, 10), times)
    items = [min(0.9, 5.0 / rank) for rank in range(1, 2001)]
    dictionary = _best(lambda: reconstruction.dictionary_breach(1.0, items, precision=0.5, recall=0.5), times)
    return [
        Figure("shuffle bound, 10^6 reports, epsilon 1", general, "s", "<= 0.5", once),
        Figure("shuffle bound of 10-ary responses, 10^6 reports, epsilon 2", blanket, "s"),
        Figure("reconstruction certificate, dictionary of 2,000", dictionary, "s"),
    ]


def _best(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        shuffling._epsilon_of_clones.cache_clear()
        shuffling._epsilon_of_blanket.cache_clear()
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best

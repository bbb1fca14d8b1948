"""What a device does with an index, in a process of its own: ``python -m benchmarks.serving_device SMALL LARGE N``.

SMALL is any index: a recommendation out of it loads every library, before memory is looked at. LARGE is measured. Each
person's ratings are in ``LARGE.people.npz``. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.serving.index_file import open_index
from odp.serving.ranking import RERANKED, IndexedModel, best

BEST = 20
_MEGA, _MILLI = 1e6, 1e3


def main(small: str, large: str, repeats: int) -> dict[str, object]:
    """Times in milliseconds, memory in MB, and what was recommended."""
    with np.load(f"{large}.people.npz") as found:
        items, values = found["items"], found["values"]
    warm = IndexedModel.of(open_index(small))
    warm.recommend(_data(warm, items[0] % len(warm.index), values[0]), k=BEST)
    before = _reset_peak()
    started = time.perf_counter()
    model = IndexedModel.of(open_index(large))
    opened = time.perf_counter() - started
    people = [_data(model, *one) for one in zip(items, values, strict=True)]
    recommended = [model.recommend(person, k=BEST).items.tolist() for person in people]
    peak = _status("VmHWM") - before
    person = people[0]
    vector = model.client.linear(model.slices(model.client.items(person)), person)
    works: dict[str, Callable[[], object]] = {
        "recommend": lambda: model.recommend(person, k=BEST),
        "recommend, 2 threads": lambda: model.recommend(person, k=BEST, threads=2),
        "scan": lambda: best(model.index, vector, RERANKED),
    }
    found_times = times(list(works.values()), repeats)
    return {
        "times": dict(zip(works, found_times, strict=True)),
        "opened": _MILLI * opened,
        "peak": peak / _MEGA,
        "items": recommended,
    }


def times(works: list[Callable[[], object]], repeats: int) -> list[dict[str, float]]:
    """Medians in milliseconds of each, on the clock and of processor time; in turns, so that all meet one machine."""
    clocks: list[list[tuple[float, float]]] = [[] for _ in works]
    for number in range(repeats + 1):
        for work, found in zip(works, clocks, strict=True):
            started, used = time.perf_counter(), time.process_time()
            work()
            if number:  # the first one warms up
                found.append((time.perf_counter() - started, time.process_time() - used))
    medians = [np.median(np.array(found), axis=0) for found in clocks]
    return [{"p50": _MILLI * float(wall), "cpu": _MILLI * float(cpu)} for wall, cpu in medians]


def _data(model: IndexedModel, items: np.ndarray, values: np.ndarray) -> LocalData:
    distinct, first = np.unique(items.astype(np.int64), return_index=True)
    return recommender_for(model.definition).data_of(LocalRows(distinct, values[first].astype(np.float64)))


def _reset_peak() -> int:
    """Bytes of memory now; from now on the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

"""Reading a table of one's own: seconds beside pandas, and memory beside the columns themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, Limit
from odp.errors import ServiceError

_SECONDS = 300.0

_OURS = r"""
import json, re, sys, time
import odp, numpy, scipy.sparse, pyarrow.csv, pyarrow.compute
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
before = peak()
started = time.perf_counter()
ratings = odp.load(sys.argv[1], low=0.5, high=5)
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "bytes": (peak() - before) * 1024, "users": ratings.n_users}))
"""

#: What a user of pandas writes to get the same arrays: distinct ids, the last row of a pair, positions in time.
_PANDAS = r"""
import json, re, sys, time
import numpy, pandas, pyarrow.csv
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
before = peak()
started = time.perf_counter()
frame = pandas.read_csv(sys.argv[1], engine="pyarrow")
for name in ("user_id", "item_id"):
    frame[name] = pandas.factorize(frame[name], sort=True)[0]
frame = frame.drop_duplicates(["user_id", "item_id"], keep="last").sort_values(["user_id", "timestamp"], kind="stable")
frame["order"] = frame.groupby("user_id").cumcount()
frame = frame.sort_values(["user_id", "item_id"])
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "bytes": (peak() - before) * 1024, "users": int(frame["user_id"].max()) + 1}))
"""


def run(quick: bool) -> list[Figure]:
    """A CSV of the shape of MovieLens-20M, items named by text: one million rows quickly, else twenty."""
    rows = 1_000_000 if quick else 20_000_000
    with tempfile.TemporaryDirectory(prefix="odp-own-data-") as folder:
        file = Path(folder) / "ratings.csv"
        _write(file, rows)
        ours, pandas = (_measured(code, file) for code in (_OURS, _PANDAS))
    columns = rows * 4 * 8
    return [
        Figure("odp.load of a CSV", ours["seconds"], "s", "<= 20", Limit("pandas", pandas["seconds"])),
        Figure("memory for it", ours["bytes"] / 2**20, "MiB", None, Limit("columns of 64 bits", columns / 2**20)),
        Figure("memory over its columns", ours["bytes"] / columns, "x", None if quick else "<= 2.5", None),
        Figure("memory of pandas over them", pandas["bytes"] / columns, "x", None, None),
    ]


def _write(file: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv

    chance = np.random.Generator(np.random.PCG64(1))
    items = (chance.pareto(1.2, rows) * 200).astype(np.int64) % 27_000
    table = pa.table(
        {
            "user_id": chance.integers(0, 138_000, rows),
            "item_id": pc.binary_join_element_wise(pa.scalar("tt"), pa.array(items).cast(pa.string()), ""),
            "rating": chance.integers(1, 11, rows) / 2,
            "timestamp": chance.integers(789_652_009, 1_427_784_002, rows),
        }
    )
    pa_csv.write_csv(table, str(file))


def _measured(code: str, file: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise ServiceError(f"reading {file.name} ended with {done.returncode}: {last}")
    found: dict[str, float] = json.loads(done.stdout)
    return found

"""Whether the outside can tell devices apart by their data: hostile tasks of every kind, tried on real services.

Run it as a program; it prints a line for each kind of task and variant of data, and exits with 1 where one is told
apart::

    python tests/security/transcript_trials.py --seed 1 --kinds DPFedAvg statistics --busy 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[level]) for level in (2, 1)]

from security.hostile_tasks import KINDS
from security.outside import UNDECIDED, NoneContributed, Outside, busy, tried
from transcript_times import RESOLUTION


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the runs")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="of task; default: all")
    parser.add_argument("--data", nargs="*", help="variants of data; default: all")
    parser.add_argument(
        "--most-fixed", type=float, default=1.0, help="seconds of fixed time; costlier tasks are left out"
    )
    parser.add_argument("--cheaper", type=int, default=0, help="leaves out the costliest definitions of a kind")
    parser.add_argument("--most-seconds", type=float, default=120.0, help="per comparison")
    parser.add_argument("--resolution", type=float, default=1e3 * RESOLUTION, help="in ms")
    parser.add_argument("--batches", type=int, default=1, help="of runs of each device, at least")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the trial")
    asked = parser.parse_args()
    apart = 0
    with tempfile.TemporaryDirectory() as folder, busy(asked.busy):
        outside = Outside(Path(folder))
        try:
            for kind in asked.kinds:
                apart += _kind(outside, kind, asked)
        finally:
            outside.close()
    sys.stdout.write(f"{apart} told apart\n")
    return 1 if apart else 0


def _kind(outside: Outside, kind: str, asked: argparse.Namespace) -> int:
    sys.stdout.write(f"{kind}\n")
    apart = 0
    for data in KINDS[kind].data:
        if data == "empty" or (asked.data is not None and data not in asked.data):
            continue
        began = time.monotonic()
        try:
            difference = tried(
                outside, kind, data, most_fixed=asked.most_fixed, first=asked.cheaper, seed=asked.seed,
                resolution=asked.resolution / 1e3, most_seconds=asked.most_seconds, least_batches=asked.batches,
            )  # fmt: skip
        except LookupError as error:
            sys.stdout.write(f"  no task of at most {asked.most_fixed:g} s: {str(error)[:300]}\n")
            return apart
        except NoneContributed as error:
            reason = outside.world.logs.getvalue().splitlines()[-8:]
            sys.stdout.write(f"  {data:22} NO DEVICE CONTRIBUTED {error} {' | '.join(line[25:] for line in reason)}\n")
            sys.stdout.flush()
            return apart + 1
        apart += difference is not None and not difference.startswith(UNDECIDED)
        text = " ".join((difference or "alike").split())
        sys.stdout.write(f"  {data:22} {time.monotonic() - began:5.1f} s  {text}\n")
        sys.stdout.flush()
    return apart


if __name__ == "__main__":
    sys.exit(main())

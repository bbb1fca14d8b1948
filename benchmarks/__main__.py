"""``python -m benchmarks NAME [--quick] [--json FILE]``; NAME is a benchmark, ``all`` or ``list``.

Exit codes: 0 every goal met, 1 a goal missed or a benchmark failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from odp.errors import OdpError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line says and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the platform against its goals.")
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(harness.BENCHMARKS)}; all; list")
    parser.add_argument(
        "--quick", action="store_true", help="a small size; figures that need the full one have no goal"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    given = parser.parse_args(arguments)
    from rich.console import Console

    console = Console()
    if given.name == "list":
        for name, (_, what) in harness.BENCHMARKS.items():
            console.print(f"{name:<10} {what}", highlight=False)
        return harness.MET
    try:
        names = harness.chosen(given.name)
    except OdpError as error:
        harness.progress(f"benchmarks: {error}")
        return harness.UNKNOWN
    results = []
    try:
        for name in names:
            result = harness.measure(name, harness.find(name), quick=given.quick)
            results.append(result)
            console.print(harness.table(result))
            if result.error is not None:
                harness.progress(f"benchmarks: {name}: {result.error}")
        if given.json is not None:
            harness.write_json(given.json, harness.report(given.name, results, quick=given.quick))
    except KeyboardInterrupt:
        harness.progress("benchmarks: interrupted")
        return 130
    except OdpError as error:
        harness.progress(f"benchmarks: {error}")
        return harness.MISSED
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(main())

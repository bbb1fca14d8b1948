"""`odp demo` as a new user runs it: processor time of all of its processes, the first table, the end, and the error.

Wall times are those of this machine with whatever else it does; the processor time is the figure that compares.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Limit, progress
from odp.errors import ServiceError
from odp.operations.local.processes import ODP

_SECONDS = 900.0
_MINUTE = 60.0
#: The corner of a table: rich's in a terminal with Unicode, and in one without.
_TABLE = ("┏", "+--")


@dataclass(frozen=True)
class DemoRun:
    """One finished demo: seconds from the start to the first table and the end, processor seconds, and its report."""

    first_table: float
    seconds: float
    processor: float
    report: dict[str, Any]


def run(quick: bool) -> list[Figure]:
    """One demo of the default size; 100 devices and 3 rounds, without goals, where ``quick``."""
    done = run_demo(["--devices", "100", "--rounds", "3"] if quick else [])
    report = done.report
    baselines, minute = report["baselines"], Limit("a minute", _MINUTE)
    error, spent = report["test_rmse"], report["epsilon"]
    participations = report["devices"] * report["rounds"]
    return [
        Figure("processor time of all processes", done.processor, "s", None if quick else "<= 60", minute),
        Figure("first table after", done.first_table, "s", None if quick else "<= 10", Limit("the end", done.seconds)),
        Figure("end after", done.seconds, "s", None if quick else "<= 60", minute),
        Figure("processor time per device and round", 1000 * done.processor / participations, "ms"),
        _error("DP item mean", error, baselines["dp_item_mean"], quick),
        _error("DP item mean + local user bias", error, baselines["dp_item_user_bias"], quick),
        _error("model before the first round", error, report["rmse_by_round"][0], quick),
        Figure("epsilon spent", spent, "", "<= 8", Limit("the budget", spent + report["epsilon_left"])),
    ]


def _error(name: str, error: float, other: float, quick: bool) -> Figure:
    """The error of the private model as a part of another's: below 1 is better."""
    return Figure(f"error, of {name}", error / other, "", None if quick else "< 1", Limit("the same error", 1.0))


def run_demo(options: list[str]) -> DemoRun:
    """Runs `odp demo` with ``options`` and waits for all of its processes. Raises ServiceError where it fails."""
    with tempfile.TemporaryDirectory(prefix="odp-minute-") as folder:
        output = Path(folder) / "out"
        before, started = _processor_of_children(), time.monotonic()
        child = subprocess.Popen(
            [*ODP, "demo", "--output", str(output), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUTF8": "1"},
        )
        first_table = 0.0
        last = "no output"
        ending = threading.Timer(_SECONDS, child.terminate)  # like Ctrl-C: it stops all of its programs
        ending.start()
        try:
            for line in child.stdout or ():
                if not first_table and line.startswith(_TABLE):
                    first_table = time.monotonic() - started
                last = line.strip() or last
                if "round " in line and "devices, test error" in line:
                    progress(f"  {line.strip()}")
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        finally:
            ending.cancel()
        seconds = time.monotonic() - started
        if code or not first_table:
            raise ServiceError(f"odp demo ended with {code}: {last}")
        report = json.loads((output / "report.json").read_text())
    # The demo waits for all that it starts, so the kernel adds their time to its own.
    return DemoRun(first_table, seconds, _processor_of_children() - before, report)


def _processor_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

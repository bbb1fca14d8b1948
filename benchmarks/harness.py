"""What a benchmark gives back, and what becomes of it: a table, a JSON file, an exit code.

A benchmark is a module with ``run(quick) -> list[Figure]``, named in ``BENCHMARKS``. A figure carries the number that
it was measured against in the same run: a time without one says more about the machine than about the program.

In quick mode a figure whose goal depends on the full size has no goal.
"""

from __future__ import annotations

import importlib
import json
import math
import operator
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odp._validate import nearest
from odp.errors import ConfigurationError, OdpError

if TYPE_CHECKING:
    from rich.table import Table

#: Name on the command line -> (module, what it measures).
BENCHMARKS: Mapping[str, tuple[str, str]] = {
    "imports": ("benchmarks.imports", "how long `import odp` and `odp --help` take, and what they load"),
    "own-data": ("benchmarks.own_data", "reading a CSV of one's own beside pandas, and its memory"),
    "noise": ("benchmarks.noise", "exact integer Gaussian samples per second"),
    "aggregator": ("benchmarks.aggregator", "contributions per second into a real aggregator, beside bare gRPC"),
    "dpam": ("benchmarks.dpam", "a full sweep of DPAM beside the machine's own matrix product, memory, other programs"),
    "dense": ("benchmarks.dense", "contributions of a million numbers: sum, and ingest beside a bare gRPC stream"),
    "federated": (
        "benchmarks.federated",
        "federated training: simulated clients beside C and TensorFlow, and devices with a network",
    ),
    "uploads": ("benchmarks.uploads", "federated training with 8 to 32 bits per number: accuracy, bytes, time"),
    "secagg": (
        "benchmarks.secagg",
        "secure aggregation beside its keystream, and whole rounds beside a plain protocol",
    ),
    "distributor": (
        "benchmarks.distributor",
        "rows by scan, privately and by whole download: bytes and processor time, beside memory and bare gRPC",
    ),
    "computing-time": ("benchmarks.computing_time", "what a device computes for one contribution, beside its model"),
    "device": ("benchmarks.device", "a participation, a store, a cold start, and thousands of devices in one host"),
    "candidates": (
        "benchmarks.candidates",
        "recommendations from a few privately fetched clusters: recall and bytes; accuracy of float16 rows",
    ),
    "serving": (
        "benchmarks.serving",
        "the best 20 of a million items on a device: time, memory, recall, and differences of versions",
    ),
    "years": (
        "benchmarks.years",
        "10,000 rounds of one population: growth of log, stored state, memory and starts",
    ),
    "continual": (
        "benchmarks.continual",
        "a lifetime budget by the matrix mechanism beside independent noise, on statistics that drift",
    ),
    "local": ("benchmarks.local", "mechanisms that are private by themselves, and services of local trust"),
    "isolated": ("benchmarks.isolated", "a developer's isolated code on a device: start of its processes, one call"),
    "silent": ("benchmarks.silent", "honest calls beside 1,024 calls of 64 connections that never send a request"),
    "minute": ("benchmarks.demo_minute", "`odp demo` by default: processor time, first table, end, and its error"),
    "scale": (
        "benchmarks.scale",
        "beyond one process: a cluster, ingest, trees, connections, databases, the control room",
    ),
    "demo": ("benchmarks.demo", "rounds of 6,040 real devices over TLS: time, memory, bytes"),
}
ALL = "all"

#: Exit codes.
MET, MISSED, UNKNOWN = 0, 1, 2

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
_GOAL = re.compile(r"(<=|>=|==|<|>)\s*(\S+)")

Run = Callable[[bool], "list[Figure]"]


@dataclass(frozen=True)
class Goal:
    """What a value is to be: a comparator of ``<= < >= > ==`` and a number."""

    comparator: str
    number: float

    def __post_init__(self) -> None:
        if self.comparator not in _COMPARE:
            raise ConfigurationError(f"Expected comparator={self.comparator!r} to be one of {' '.join(_COMPARE)}")
        if not math.isfinite(self.number):
            raise ConfigurationError(f"Expected number={self.number!r} of a goal to be finite")

    @classmethod
    def parse(cls, text: str) -> Goal:
        """The goal that ``str`` of one gives, for example ``<= 300``. Raises ConfigurationError for anything else."""
        found = _GOAL.fullmatch(text.strip())
        try:
            if found is not None:
                return cls(found[1], float(found[2]))
        except ValueError:
            pass
        raise ConfigurationError(f"Expected goal={text!r} to be a comparator and a finite number, for example '<= 300'")

    def met_by(self, value: float) -> bool:
        """Whether ``value`` is as wanted."""
        return _COMPARE[self.comparator](value, self.number)

    def __str__(self) -> str:
        return f"{self.comparator} {self.number:g}"


@dataclass(frozen=True)
class Limit:
    """What a figure was measured against in the same run, in the unit of the figure."""

    name: str
    value: float


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
      name: what was measured; distinct within a benchmark.
      value: finite.
      unit: of ``value``, of the goal and of the limit.
      goal: ``Goal`` or its text (``"<= 300"``), or None where nothing is asked.
      limit: what it was measured against.

    Raises:
      ConfigurationError: ``value`` is not finite, or the text is no goal: a figure that failed must not look met.
    """

    name: str
    value: float
    unit: str
    goal: Goal | str | None = None
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigurationError(f"Expected the figure {self.name!r} to be finite, got {self.value!r}")
        if isinstance(self.goal, str):
            object.__setattr__(self, "goal", Goal.parse(self.goal))

    @property
    def met(self) -> bool:
        """Whether the goal is met; a figure without one always is."""
        return not isinstance(self.goal, Goal) or self.goal.met_by(self.value)

    @property
    def ratio(self) -> float | None:
        """Value over limit, or None where there is no limit other than zero."""
        return self.value / self.limit.value if self.limit is not None and self.limit.value else None

    def to_json(self) -> dict[str, Any]:
        """Plain values for the JSON file."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": None if self.goal is None else str(self.goal),
            "limit": None if self.limit is None else {"name": self.limit.name, "value": self.limit.value},
            "ratio": self.ratio,
            "met": self.met,
        }


@dataclass(frozen=True)
class Result:
    """One benchmark that ran; ``error`` is the line that ended it early, or None."""

    benchmark: str
    figures: tuple[Figure, ...]
    seconds: float
    error: str | None = None

    @property
    def met(self) -> bool:
        """Whether it ran to its end and every figure meets its goal."""
        return self.error is None and all(figure.met for figure in self.figures)


def chosen(name: str) -> list[str]:
    """The benchmarks that ``name`` stands for. Raises ConfigurationError naming the nearest one."""
    if name == ALL:
        return list(BENCHMARKS)
    if name not in BENCHMARKS:
        names = [*BENCHMARKS, ALL, "list"]
        raise ConfigurationError(f"Unknown benchmark {name!r}{nearest(name, names)}; valid names: {', '.join(names)}")
    return [name]


def find(name: str) -> Run:
    """The ``run`` of a benchmark of the table."""
    run: Run = importlib.import_module(BENCHMARKS[name][0]).run
    return run


def measure(name: str, run: Run, *, quick: bool, clock: Callable[[], float] = time.monotonic) -> Result:
    """Runs one benchmark. An error of ODP ends it and is kept, so that the other benchmarks still run."""
    started = clock()
    try:
        figures, error = tuple(run(quick)), None
    except OdpError as failure:
        figures, error = (), " ".join(str(failure).split())
    return Result(name, figures, clock() - started, error)


def exit_code(results: Sequence[Result]) -> int:
    """0 where every goal is met, else 1."""
    return MET if all(result.met for result in results) else MISSED


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def report(name: str, results: Sequence[Result], *, quick: bool) -> dict[str, Any]:
    """The content of the JSON file; ``name`` is the one given on the command line."""
    return {
        "benchmark": name,
        "quick": quick,
        "figures": [
            {"benchmark": result.benchmark, **figure.to_json()} for result in results for figure in result.figures
        ],
        "errors": {result.benchmark: result.error for result in results if result.error is not None},
        "met": exit_code(results) == MET,
        "machine": machine(),
        "seconds": round(sum(result.seconds for result in results), 3),
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all. Raises ConfigurationError where it cannot be written."""
    from odp._system.files.state_folder import write_atomically

    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), mode=0o644)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; give another --json file") from error


def table(result: Result) -> Table:
    """One benchmark for people."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=f"{result.benchmark} ({result.seconds:.1f} s)", title_justify="left")
    for heading, justify in (("figure", "left"), ("value", "right"), ("unit", "left"), ("goal", "left"), ("", "left")):
        shown.add_column(heading, justify=justify)  # type: ignore[arg-type]
    shown.add_column("measured against", justify="left")
    for figure in result.figures:
        mark = Text("") if figure.goal is None else Text("met", "green") if figure.met else Text("MISSED", "bold red")
        against = ""
        if figure.limit is not None:
            ratio = "" if figure.ratio is None else f" (× {figure.ratio:.3g})"
            against = f"{figure.limit.name}: {number(figure.limit.value)}{ratio}"
        goal = "" if figure.goal is None else str(figure.goal)
        shown.add_row(Text(figure.name), number(figure.value), figure.unit, goal, mark, Text(against))
    return shown


def number(value: float) -> str:
    """A number for people: whole above 1,000, four significant digits below."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def progress(line: str) -> None:
    """One line on stderr while a benchmark works."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

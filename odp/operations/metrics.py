"""Metrics of a program for Prometheus: all names in one place, docs/operating.md has them as a table.

They say what the program's host knows anyway: numbers of calls and contributions, sizes, and figures of releases. No
label comes from a caller, so that nobody can make series without end.
"""

from __future__ import annotations

import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily

import odp

#: Tasks whose figures are shown: the newest that something happened to.
MOST_TASKS = 256
_LATENCIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

#: What programs may say of themselves (``odp.transport.observing.watch``): name -> (metric, what it is).
WATCHED: Mapping[str, tuple[str, str]] = {
    "waiting_contributions": (
        "odp_contributions_waiting",
        "Contributions that wait for the enclave or the disk.",
    ),
    "checkpoint_seconds": (
        "odp_log_checkpoint_age_seconds",
        "Seconds since the newest checkpoint of the transparency log.",
    ),
    "active_tasks": ("odp_tasks_active", "Tasks under way at this server."),
}


class Metrics:
    """Implements ``odp.transport.observing.Observer`` with a registry of its own.

    Args:
      program: its role, as in the log.
      state: its folder, whose disk is watched.
      clock: seconds since the epoch.
    """

    def __init__(self, program: str, state: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        Gauge("odp_info", "Always 1.", ["program", "version"], registry=self.registry).labels(
            program, odp.__version__
        ).set(1)
        Gauge("odp_start_time_seconds", "When the program started, Unix time.", registry=self.registry).set(clock())
        self._calls = Counter("odp_rpc", "Calls that ended.", ["method", "code"], registry=self.registry)
        self._seconds = Histogram(
            "odp_rpc_seconds", "How long calls took.", ["method"], buckets=_LATENCIES, registry=self.registry
        )
        self._accepted = Counter("odp_contributions_accepted", "Contributions accepted.", registry=self.registry)
        self._refused = Counter(
            "odp_contributions_refused", "Contributions refused.", ["reason"], registry=self.registry
        )
        self._events = Counter("odp_events", "Lines of the log.", ["level", "event"], registry=self.registry)
        self._last_release = Gauge(
            "odp_last_release_time_seconds", "When a round was released last, Unix time; 0: none since the start.",
            registry=self.registry,
        )  # fmt: skip
        self._watched: dict[str, Gauge] = {}
        self._tasks = _Tasks()
        self.registry.register(self._tasks)
        self.registry.register(_Disk(state))
        ProcessCollector(registry=self.registry)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    def contribution(self, refusal: str) -> None:
        if refusal:
            self._refused.labels(refusal).inc()
        else:
            self._accepted.inc()

    def logged(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        self._events.labels(level, event).inc()
        if event == "round_released":
            self._last_release.set(self._clock())
            self._tasks.released(fields)

    def figures(self, fields: Mapping[str, object]) -> None:
        self._tasks.released(fields)

    def watch(self, name: str, value: Callable[[], float]) -> None:
        if name not in self._watched:
            metric, what = WATCHED[name]
            self._watched[name] = Gauge(metric, what, registry=self.registry)
        self._watched[name].set_function(value)


class _Tasks:
    """Figures of the newest release of each task; public, as the release is."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, Mapping[str, object]] = OrderedDict()

    def released(self, fields: Mapping[str, object]) -> None:
        """A round of ``fields["task"]`` was released."""
        task = str(fields.get("task", ""))
        self._newest.pop(task, None)
        self._newest[task] = fields
        while len(self._newest) > MOST_TASKS:
            self._newest.popitem(last=False)

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        for metric, field, what in (
            ("odp_task_epsilon_spent", "epsilon_spent", "ε that a task has spent, by its newest release."),
            ("odp_task_epsilon_remaining", "epsilon_remaining", "ε that is left of a task's budget."),
            ("odp_task_contributions", "contributions", "Contributions to the newest released round of a task."),
            ("odp_task_round", "round", "The newest released round of a task."),
        ):
            family = GaugeMetricFamily(metric, what, labels=["task"])
            for task, fields in list(self._newest.items()):
                value = fields.get(field)
                if isinstance(value, (int, float)):
                    family.add_metric([task], float(value))
            yield family


class _Disk:
    """The disk under the state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        usage = shutil.disk_usage(self._state) if self._state.exists() else None
        for metric, value, what in (
            ("odp_disk_free_bytes", None if usage is None else usage.free, "Free on the disk of the state folder."),
            ("odp_disk_bytes", None if usage is None else usage.total, "Size of the disk of the state folder."),
        ):
            family = GaugeMetricFamily(metric, what)
            if value is not None:
                family.add_metric([], float(value))
            yield family

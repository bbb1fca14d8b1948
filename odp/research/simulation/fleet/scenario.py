"""What happens to a simulated fleet: shares of faults, networks, clocks; a TOML file that a person can read.

    [data]
    source = "synthetic:n_users=2000,n_items=200,ratings_per_user=30,seed=7"     # its users become the devices
    # or: examples = "mail.csv" with columns = {user = "reader"}, or: events = "events.jsonl"

    [task]                          # a DPAM task, or file = "task.toml" alone: any task that `odp task submit` takes
    rank = 2
    steps = 1                       # rounds of training factors, after one of counts and one of biases
    epsilon = 8.0
    delta = 1e-6
    max_items_per_user = 30
    minimum_cohort = 100

    [faults]                        # shares of all devices
    drop_outs = 0.2                 # in each round others: gone before they computed, or before they sent
    crashes = 0.05                  # in each round others: die at one step, and come back
    malicious = 0.02                # the same ones in all rounds
    behaviours = ["out_of_bounds", "malformed", "replayed", "wrong_round"]

    [network]
    latency_ms = [20, 400]          # of a device, drawn once
    kilobits_per_second = [500, 50000]
    lost_answers = 0.01             # share of contributions whose answer is lost

    [clocks]
    skew_seconds = 120              # standard deviation over the devices
    jumps = 0.01                    # share of devices whose clock jumps by up to a day, either way, before a round

    [conditions]                    # as of `odp device run --conditions`
    charging = true

What a file does not name has the default: no fault, no condition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from device_runtime import Conditions
from odp import _validate
from odp._system.files.settings_file import load_settings
from odp.errors import ConfigurationError

BEHAVIOURS = ("out_of_bounds", "malformed", "replayed", "wrong_round")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the devices' data come from: one of three.

    Attributes:
      source: ratings: a data set that `odp simulate --data` takes.
      examples: labelled examples: a table that `odp device run --data` takes, or an npz file that its --examples takes.
      events: events of apps: a file with a JSON object per line, of ``user``, ``service``, ``type`` and ``data``.
      columns: of a table, arguments of ``odp.load`` or ``odp.data.load_examples``, such as ``{"user": "reader"}``.
    """

    source: str | None = None
    examples: str | None = None
    events: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = [name for name in ("source", "examples", "events") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ConfigurationError(
                f"Expected one of source, examples and events (got {', '.join(sources) or 'none'}); it says whose data "
                "the devices have"
            )
        if not isinstance(self.columns, Mapping) or (self.columns and self.events is not None):
            raise ConfigurationError(f"Expected columns={self.columns!r} to be keys of a table of source or examples")
        for name in sources:
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigurationError(f"Expected {name}={getattr(self, name)!r} to name a data set or a file")


@dataclass(frozen=True, kw_only=True)
class Training:
    """The task: one that a ``file`` describes, as `odp task submit` takes it; else DPAM with the other settings."""

    file: str | None = None
    rank: int = 2
    steps: int = 1
    epsilon: float = 8.0
    delta: float = 1e-6
    max_items_per_user: int = 50
    minimum_cohort: int = 100

    def __post_init__(self) -> None:
        if self.file is not None and (not isinstance(self.file, str) or not self.file):
            raise ConfigurationError(f"Expected file={self.file!r} to be the path of a task file")
        changed = [key.name for key in dataclasses.fields(self) if getattr(self, key.name) != key.default]
        if self.file is not None and changed != ["file"]:
            raise ConfigurationError("Expected file without further keys: the task file says all the rest")
        _validate.integer(low=0, high=512, rank=self.rank)
        _validate.integer(low=0, high=64, steps=self.steps)
        _validate.integer(low=1, high=4096, max_items_per_user=self.max_items_per_user)
        _validate.integer(low=1, high=2**20, minimum_cohort=self.minimum_cohort)
        _validate.positive(epsilon=self.epsilon, delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Shares of all devices, from 0 to 1; together below 1."""

    drop_outs: float = 0.0
    crashes: float = 0.0
    malicious: float = 0.0
    behaviours: tuple[str, ...] = BEHAVIOURS

    def __post_init__(self) -> None:
        _validate.within(low=0.0, high=0.9, drop_outs=self.drop_outs, crashes=self.crashes, malicious=self.malicious)
        if self.drop_outs + self.crashes + self.malicious > 0.95:
            raise ConfigurationError("Expected drop_outs, crashes and malicious to be at most 0.95 together")
        if not isinstance(self.behaviours, tuple) or not self.behaviours:
            raise ConfigurationError(f"Expected behaviours={self.behaviours!r} to be a list of {', '.join(BEHAVIOURS)}")
        for behaviour in self.behaviours:
            _validate.one_of(BEHAVIOURS, behaviours=behaviour)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Ranges that each device draws its own values from; delays pass on a simulated clock."""

    latency_ms: tuple[float, float] = (20.0, 20.0)
    kilobits_per_second: tuple[float, float] = (10_000.0, 10_000.0)
    lost_answers: float = 0.0

    def __post_init__(self) -> None:
        _ordered("latency_ms", self.latency_ms, low=0.0, high=60_000.0)
        _ordered("kilobits_per_second", self.kilobits_per_second, low=1.0, high=1e8)
        _validate.within(low=0.0, high=0.9, lost_answers=self.lost_answers)


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Errors of the devices' clocks; evidence and proofs are checked by the host's clock, which is right."""

    skew_seconds: float = 0.0
    jumps: float = 0.0

    def __post_init__(self) -> None:
        _validate.within(low=0.0, high=1e6, skew_seconds=self.skew_seconds)
        _validate.within(low=0.0, high=1.0, jumps=self.jumps)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole scenario; ``conditions`` are those of every device.

    Raises:
      ConfigurationError: a value is out of range, or a condition is one that a simulated day cannot meet again.
    """

    data: Data
    task: Training = field(default_factory=Training)
    faults: Faults = field(default_factory=Faults)
    network: Network = field(default_factory=Network)
    clocks: Clocks = field(default_factory=Clocks)
    conditions: Conditions = field(default_factory=Conditions)

    def __post_init__(self) -> None:
        for name in ("hours_between", "free_megabytes_at_least"):
            if getattr(self.conditions, name) is not None:
                raise ConfigurationError(
                    f"Expected no {name} among the conditions of a scenario: whom it keeps out would not be known "
                    "before the run, and the number of contributions has to be"
                )


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file. Raises ConfigurationError, which names the file and what is wrong in it."""
    return load_settings(path, _scenario, what="scenario")


def _scenario(values: dict[str, Any]) -> Scenario:
    kinds: dict[str, type] = {
        "data": Data, "task": Training, "faults": Faults, "network": Network, "clocks": Clocks,
        "conditions": Conditions,
    }  # fmt: skip
    _validate.known_keys(values, kinds, where="the scenario")
    if "data" not in values:
        raise ConfigurationError("Missing section [data]; its source says whose data the devices have")
    return Scenario(**{name: _section(kinds[name], name, values[name]) for name in values})


_Kind = TypeVar("_Kind")


def _section(kind: type[_Kind], name: str, values: Any) -> _Kind:
    if not isinstance(values, dict):
        raise ConfigurationError(f"Expected {name} to be a section, [{name}]")
    names = [key.name for key in dataclasses.fields(kind)]  # type: ignore[arg-type]  # all of them are dataclasses
    _validate.known_keys(values, names, where=f"[{name}]")
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return kind(**lists)
    except TypeError:
        raise ConfigurationError(f"[{name}] lacks a key; it needs {', '.join(names)}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"[{name}]: {error}") from None


def _ordered(name: str, bounds: tuple[float, float], *, low: float, high: float) -> None:
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ConfigurationError(f"Expected {name}={bounds!r} to be two numbers, the smallest and the largest")
    first, second = bounds
    _validate.within(low=low, high=high, **{name: first})
    _validate.within(low=first, high=high, **{name: second})

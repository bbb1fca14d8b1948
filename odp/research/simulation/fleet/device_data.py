"""What simulated devices hold: ratings, labelled examples or events, of which user ``i``'s become device ``i``'s."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_runtime import Store
from device_runtime.store.keyed_ratings import fill_ratings
from odp.datasets import Ratings, load
from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.json_tables import DoubledKey, distinct_keys
from odp.datasets.table_files import is_table_file
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns
from odp.models.example_tables import load_examples
from odp.research.simulation.fleet.scenario import Scenario

_KEYS = frozenset({"user", "service", "type", "data"})
#: Of a file of events.
_LARGEST_BYTES = 2**30


@dataclass(frozen=True)
class Event:
    """One event of a device's app: ``data`` are its columns by name."""

    service: str
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The data of all users; one of the three is set.

    Raises:
      DataError, ConfigurationError: see ``load_data``.
    """

    ratings: Ratings | None = None
    examples: ExampleColumns | None = None
    events: tuple[tuple[Event, ...], ...] | None = None

    @property
    def n_users(self) -> int:
        """Users, each of which can become a device."""
        if self.events is not None:
            return len(self.events)
        users = self.ratings if self.ratings is not None else self.examples
        return 0 if users is None else users.n_users

    @functools.cached_property
    def _keys(self) -> tuple[str, ...] | None:
        return catalogue_keys(self.ratings) if self.ratings is not None and has_keys(self.ratings) else None

    @property
    def notes(self) -> tuple[str, ...]:
        """How a table was read."""
        users = self.ratings if self.ratings is not None else self.examples
        return () if users is None else users.notes

    def fill(self, store: Store, device: int, *, seed: int, time: float) -> None:
        """Gives a device its data, which are as old as ``time`` says; a device that has them is left as it is."""
        filled_from = str(seed).encode()
        if self.ratings is not None:
            fill_ratings(store, self.ratings, device, keys=self._keys, filled_from=filled_from)
        elif self.examples is not None:
            store.fill_examples(self.examples.user(device), filled_from=filled_from, time=time)
        elif self.events is not None:
            for service, kind in sorted({(event.service, event.type) for event in self.events[device]}):
                rows = [event.data for event in self.events[device] if (event.service, event.type) == (service, kind)]
                store.data(service).replace_events(kind, rows, time=time)


def load_data(scenario: Scenario, *, folder: Path) -> DeviceData:
    """Reads the data of a scenario; paths of files start at ``folder``, the scenario's.

    With a task file, values are kept as written: the task says what they mean.

    Raises:
      ConfigurationError, DataError: a data set or a file is missing or malformed.
    """
    data = scenario.data
    if data.examples is not None:
        path = folder / data.examples
        if is_table_file(path):
            return DeviceData(examples=load_examples(path, **data.columns))
        if data.columns:
            raise ConfigurationError(f"Expected a table for columns={dict(data.columns)!r} (got {path})")
        return DeviceData(examples=ExampleColumns.load(path))
    if data.events is not None:
        return DeviceData(events=tuple(_by_user(folder / data.events)))
    name = str(data.source)
    # A name, or a folder or file: as everywhere from the working folder, or from the scenario's.
    near = folder / name
    source = near if re.fullmatch(r"[^:]+", name) and near.exists() else name
    declared = {"implicit", "low", "high"} & set(data.columns)
    as_written = scenario.task.file is not None and not declared
    return DeviceData(ratings=load(source, as_written=as_written, **data.columns))


def _by_user(path: Path) -> Iterator[tuple[Event, ...]]:
    by_user: dict[int, list[Event]] = {}
    for user, event in _events(path):
        by_user.setdefault(user, []).append(event)
    if not by_user:
        raise DataError(f"{path} has no event; write one JSON object per line")
    return (tuple(by_user.get(user, ())) for user in range(max(by_user) + 1))


def _events(path: Path) -> Iterator[tuple[int, Event]]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise DataError(f"Expected {path} to have at most {_LARGEST_BYTES} bytes; take fewer users")
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _event(line, where=f"{path}:{number}")
    except OSError as error:
        raise DataError(f"cannot read the events {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; write one JSON object per line") from error


def _event(line: str, *, where: str) -> tuple[int, Event]:
    try:
        values = json.loads(line, object_pairs_hook=distinct_keys)
    except DoubledKey as error:
        raise DataError(f"{where}: {error}; keep one of them") from None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.keys() != _KEYS or not isinstance(values["data"], dict):
        raise DataError(f"{where}: Expected a JSON object with {', '.join(sorted(_KEYS))}, of which data is an object")
    user = values["user"]
    if not isinstance(user, int) or isinstance(user, bool) or not 0 <= user < 2**24:
        raise DataError(f"{where}: Expected user={user!r} to be a whole number from 0 to {2**24 - 1}")
    if not isinstance(values["service"], str) or not isinstance(values["type"], str):
        raise DataError(f"{where}: Expected service and type to be names")
    return user, Event(values["service"], values["type"], values["data"])

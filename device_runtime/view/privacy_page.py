"""The person's decisions behind the view, with the same store, gate and checks as `odp device privacy`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from device_runtime.person.decisions import Person
from device_runtime.person.limits import Limits
from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.view.overview import explain, overview
from device_runtime.view.shown_items import ShownItems
from odp.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPage:
    """The data of the front page: ``overview`` comes from ``overview``, ``reasons`` stop the device from training now.

    ``notes`` are lines on what went wrong, newest first; ``met`` the conditions that hold; ``recommended`` the items
    that the person was shown last.
    """

    name: str
    overview: Mapping[str, Any]
    reasons: tuple[str, ...]
    met: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    recommended: ShownItems | None = None


class DeviceControls:
    """The controls of one device. Each call opens the store, so that the device host may run at the same time.

    Args:
      path: of the store.
      gate: the host's limits and conditions.
      name: what the page calls the device.
      notes: lines for the person on what went wrong, newest first.
      recommended: what the app showed the person last.
      clock: seconds since the epoch.
    """

    def __init__(
        self, path: Path, gate: Gate, *, name: str, open_store: Callable[[Path], Store] = Store.open,
        notes: Callable[[], tuple[str, ...]] = tuple, clock: Callable[[], float] = time.time,
        recommended: Callable[[], ShownItems | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._notes, self._recommended = notes, recommended
        self._path, self._gate, self._name, self._open, self._clock = path, gate, name, open_store, clock

    def page(self) -> PrivacyPage:
        """The data of the front page, read again. Raises StateError if the store is damaged."""
        with self._open(self._path) as store:
            readings = explain(store, self._gate)
            return PrivacyPage(
                name=self._name,
                overview=overview(store, self._gate, now=self._clock()),
                reasons=tuple(
                    f"{reading.name}: {reading.read} (wanted: {reading.wanted})"
                    for reading in readings
                    if not reading.met
                ),
                met=tuple(f"{reading.name}: {reading.read}, as wanted" for reading in readings if reading.met),
                notes=self._notes(),
                recommended=self._recommended(),
            )

    def decide(self, what: str, form: Mapping[str, str]) -> bool:
        """Executes a decision; False if its name is unknown. Raises OdpError if it is not possible.

        The names are pause, resume, opt-out and opt-in (``task``, or none for everything), and limit.
        """
        now = self._clock()
        if (change := _CHANGES.get(what)) is None:
            return False
        with self._open(self._path) as store:
            store.change_person(lambda person: change(person, form, now, self._gate))
        return True


_Change = Callable[[Person, Mapping[str, str], float, Gate], Person]


def _limit(person: Person, form: Mapping[str, str], now: float, gate: Gate) -> Person:
    values = {name: _value(name, form[name].strip()) for name in LIMITS if name in form}
    return dataclasses.replace(person, limits=dataclasses.replace(person.limits or gate.limits, **values))


def _value(name: str, text: str) -> Any:
    if (kind := type(getattr(_DEFAULTS, name))) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return kind(text)
    except ValueError:
        raise ConfigurationError(f"Expected {name}={text!r} to be a {_KINDS[kind]}") from None


_DEFAULTS = Limits()
_KINDS = {int: "whole number", float: "number"}
#: What the page sets and says of each limit; the same as `odp device limit`.
LIMITS: Mapping[str, str] = {
    "max_total_epsilon": "ε of everything, for ever",
    "max_total_epsilon_30_days": "ε of everything, in 30 days",
    "max_developer_epsilon": "ε of one developer's tasks, for ever",
    "max_developer_epsilon_30_days": "ε of one developer's tasks, in 30 days",
    "max_answers_epsilon_30_days": "ε of one service's answers to apps, in 30 days",
    "max_local_epsilon": "ε of all reports that are private by themselves, for ever",
    "max_epsilon": "ε of one task, over its whole life",
    "max_delta": "δ of one task",
    "max_total_delta": "δ of everything",
    "max_computing_seconds": "seconds that a contribution may take, at most",
    "min_cohort": "people behind every release of a task, at least",
    "populations": "populations whose tasks are allowed, separated by commas; empty allows all",
    "tables": "tables that tasks may train on, separated by commas; empty allows all",
}
_CHANGES: Mapping[str, _Change] = {
    "pause": lambda person, form, now, gate: dataclasses.replace(
        person, paused=person.paused if person.paused is not None else now
    ),
    "resume": lambda person, form, now, gate: dataclasses.replace(person, paused=None),
    "opt-out": lambda person, form, now, gate: person.with_opt_out(form.get("task"), now),
    "opt-in": lambda person, form, now, gate: person.without_opt_out(form.get("task")),
    "limit": _limit,
}

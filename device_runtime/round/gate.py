"""Whether a device may continue: checked before it checks in, before it reads its data and before it sends.

What a device does after it read its data must not depend on them. Computing moves the load of a machine, its heat, its
battery and its disk, and it takes time, so conditions on these hold until the data are read. From then on the person's
decisions hold, mains power and an unmetered network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from device_runtime.person.conditions import UNMOVED, Conditions, Reading, readings, require
from device_runtime.person.ledger import TaskTerms
from device_runtime.person.limits import Limits, limits_from_json, require_due, require_report_allowed
from device_runtime.person.sensors import MachineSensors, Sensors
from device_runtime.store.store import Store
from odp._system.files.private_files import read_private
from odp.errors import OdpError, StateError

#: A host writes down what holds for its devices, so that others can explain what they do.
FILE = "gate.json"


def machine_sensors(store: Path) -> Sensors:
    """The readings of this machine, for the device whose store lies at ``store``."""
    return MachineSensors(store.parent)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The person's decisions and the training conditions, for one device after another; thread-safe.

    Args:
      limits: of devices whose person set none of their own.
      conditions: when a device may train; by default at any time.
      sensors: the readings of the device whose store is at a path.
      clock: seconds since the epoch.
    """

    limits: Limits = field(default_factory=Limits)
    conditions: Conditions = field(default_factory=Conditions)
    sensors: Callable[[Path], Sensors] = machine_sensors
    clock: Callable[[], float] = time.time

    def check_in(self, store: Store, population: str) -> None:
        """Returns if the device may ask for work.

        Raises:
          NotNow: paused, opted out of everything, a population that its limits leave out, or a condition not met.
        """
        store.person().check_in(population)
        self._require(store)

    def task(self, store: Store, terms: TaskTerms, round: int) -> None:
        """Returns if the device may take part in a round now: the person's decisions first, then the conditions.

        Raises:
          NotNow: as ``check_in``.
          PrivacyError: the person opted out of the task, it is beyond their limits, or the device is not due.
        """
        self.person_allows(store, terms, round)
        self._require(store)

    def person_allows(self, store: Store, terms: TaskTerms, round: int) -> None:
        """Returns if the person's decisions allow the round. Raises as ``task``, but for no condition."""
        person = store.person()
        person.check(terms)
        past = store.charged(but=(terms.task_sha256, round))
        require_due(terms, round=round, past=past)
        limits = person.limits or self.limits
        limits.check(terms, round=round, past=past, answered=store.answers(), now=self.clock())
        require_report_allowed(terms, store.charged(but=(terms.task_sha256, round), refused=True), limits)

    def before_data(self, store: Store, terms: TaskTerms) -> None:
        """Returns if nothing changed since ``task`` that keeps the device from going on.

        Raises:
          NotNow: as ``check_in``.
          PrivacyError: the person opted out of the task.
        """
        store.person().check(terms)
        self._require(store)

    def after_data(self, store: Store, terms: TaskTerms) -> None:
        """The same once the data were read, by the device or its own code: without the conditions that this can move.

        Raises as ``before_data``.
        """
        store.person().check(terms)
        self._require(store, only=UNMOVED)

    def readings(self, store: Store) -> tuple[Reading, ...]:
        """How the device stands to each condition."""
        now = self.clock()
        # A contribution that lies further ahead was made by a clock that was wrong: nobody waits for that time.
        standing = store.standing(latest=now + 3600.0 * (self.conditions.hours_between or 0.0))
        return readings(self.conditions, self.sensors(store.path), standing, now=now)

    def to_json(self) -> bytes:
        """Limits and conditions, for ``FILE``."""
        return (
            json.dumps({"limits": asdict(self.limits), "conditions": asdict(self.conditions)}, indent=1).encode()
            + b"\n"
        )

    @classmethod
    def load(cls, folder: Path) -> Gate:
        """The gate of the host whose state folder this is; the defaults where none ever ran. Raises StateError."""
        try:
            values = json.loads(read_private(folder / FILE))
            conditions = {**values["conditions"], "windows": tuple(values["conditions"]["windows"])}
            return cls(limits=limits_from_json(values["limits"]), conditions=Conditions(**conditions))
        except FileNotFoundError:
            return cls()
        except StateError:
            raise
        except (OSError, OdpError, ValueError, TypeError, KeyError) as error:
            raise StateError(f"{folder / FILE} is damaged; start the device host again to have it written") from error

    def _require(self, store: Store, *, only: frozenset[str] | None = None) -> None:
        if self.conditions != _NONE:
            require(tuple(reading for reading in self.readings(store) if only is None or reading.name in only))


_NONE = Conditions()

"""The readings of a device that training conditions are compared with.

A sensor returns its reading, or raises ``Unreadable`` with the reason: a condition without a reading is not met, and
the report says so. An app that knows more about its device passes its own ``Sensors``.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from odp._system.extras import advice


class Unreadable(Exception):
    """The device has no such reading; the message gives the reason in a few words."""


class Sensors(Protocol):
    """Readings of one device. Each call reads again, and raises ``Unreadable`` if there is no reading."""

    def idle(self) -> bool:
        """Whether the device is idle."""

    def charging(self) -> bool:
        """Whether the device is on mains power."""

    def battery(self) -> float:
        """Charge of the battery, from 0 to 1."""

    def unmetered(self) -> bool:
        """Whether the network is free of charges per byte."""

    def free_bytes(self) -> int:
        """Free bytes on the disk of the store."""

    def temperature(self) -> float:
        """Temperature of the hottest measured part, in degrees Celsius."""


class MachineSensors:
    """This machine's own readings: the battery by psutil if installed, the rest by the operating system.

    ``idle`` means a load of at most ``idle_load`` per core over the last minute: no portable call says when somebody
    last pressed a key. Whether a network is metered has no portable reading either, so that is unreadable here.
    """

    def __init__(self, folder: Path, *, idle_load: float = 0.3) -> None:
        self._folder, self._idle_load = folder, idle_load

    def idle(self) -> bool:
        try:
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
        except (OSError, AttributeError):
            raise Unreadable("this system has no load average") from None
        return load <= self._idle_load

    def charging(self) -> bool:
        if (plugged := _battery().power_plugged) is None:
            raise Unreadable("the system does not report whether it is plugged in")
        return bool(plugged)

    def battery(self) -> float:
        return float(_battery().percent) / 100.0

    def unmetered(self) -> bool:
        raise Unreadable("there is no portable reading of a metered network")

    def free_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            raise Unreadable((error.strerror or "the folder is missing").lower()) from None

    def temperature(self) -> float:
        temperatures = _of_psutil("sensors_temperatures") or {}
        # Absent sensors show 0, and some broken ones a number that nothing survives.
        read = [
            sensor.current
            for part in temperatures.values()
            for sensor in part
            if sensor.current and 0.0 < sensor.current < 150.0
        ]
        if not read:
            raise Unreadable("the system reports no temperature")
        return float(max(read))


def _battery() -> Any:
    """The battery by psutil: ``percent`` and ``power_plugged``."""
    if (battery := _of_psutil("sensors_battery")) is None:
        raise Unreadable("the system reports no battery")
    return battery


def _of_psutil(reading: str) -> Any:
    """A reading of psutil by name; None where the system has none."""
    try:
        import psutil
    except ImportError:
        raise Unreadable(advice("psutil")) from None
    try:
        return getattr(psutil, reading)()
    except (AttributeError, OSError, RuntimeError):
        return None


@dataclass(frozen=True, kw_only=True)
class SimulatedSensors:
    """Simulated readings, for fleets and tests; None cannot be read."""

    is_idle: bool | None = True
    is_charging: bool | None = True
    charge: float | None = 1.0
    is_unmetered: bool | None = True
    free: int | None = 2**40
    heat: float | None = 30.0

    def idle(self) -> bool:
        return bool(_readable(self.is_idle))

    def charging(self) -> bool:
        return bool(_readable(self.is_charging))

    def battery(self) -> float:
        return float(_readable(self.charge))

    def unmetered(self) -> bool:
        return bool(_readable(self.is_unmetered))

    def free_bytes(self) -> int:
        return int(_readable(self.free))

    def temperature(self) -> float:
        return float(_readable(self.heat))


def _readable(value: float | None) -> float:
    if value is None:
        raise Unreadable("simulated: this sensor is broken")
    return value

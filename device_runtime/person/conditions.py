"""When a device may train: a short policy that a person can read, and the readings that it is compared with.

    idle = true                     # nobody is using the device
    charging = true
    battery_at_least = 0.5          # of a full one
    unmetered = true                # the network costs nothing per byte
    free_megabytes_at_least = 500
    windows = ["22:00-07:00"]       # local time; one of them
    thermal_at_most = "warm"        # nominal, warm or hot; or degrees Celsius
    hours_between = 24              # since the last contribution

What a file does not name is no condition. Each one is met, or not met with its reading; one that cannot be read is not
met. A device looks before it checks in, before it reads its data and before it sends (``gate.py``). No condition is
about the data: whether a device takes part is seen by others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from device_runtime.person.sensors import Sensors, Unreadable
from odp import _validate
from odp._system.files.settings_file import load_settings
from odp.errors import ConfigurationError, NotNow

_MEGABYTE = 10**6
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_MINUTES = 24 * 60
#: Conditions, by the names of their readings, that nothing which a device computes can move.
UNMOVED = frozenset({"charging", "network"})
#: Degrees Celsius up to which a device counts as such. Phones throttle from about 45 on, laptops from about 95.
THERMAL_STATES = {"nominal": 60.0, "warm": 80.0, "hot": 95.0}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The policy. The fields are the keys of the file; None, False or () is no condition.

    Raises:
      ConfigurationError: a value is out of range, or a window is not ``HH:MM-HH:MM``.
    """

    idle: bool = False
    charging: bool = False
    battery_at_least: float | None = None
    unmetered: bool = False
    free_megabytes_at_least: float | None = None
    windows: tuple[str, ...] = ()
    thermal_at_most: str | float | None = None
    hours_between: float | None = None

    def __post_init__(self) -> None:
        for name in ("idle", "charging", "unmetered"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"Expected {name}={getattr(self, name)!r} to be true or false")
        for name, high in (("battery_at_least", 1.0), ("free_megabytes_at_least", 1e9), ("hours_between", 1e5)):
            if getattr(self, name) is not None:
                _validate.within(low=0.0, high=high, **{name: getattr(self, name)})
        if isinstance(self.thermal_at_most, str):
            _validate.one_of(THERMAL_STATES, thermal_at_most=self.thermal_at_most)
        elif self.thermal_at_most is not None:
            _validate.within(low=-50.0, high=150.0, thermal_at_most=self.thermal_at_most)
        if not isinstance(self.windows, tuple) or len(self.windows) > 48:
            raise ConfigurationError(f"Expected windows={self.windows!r} to be a list of at most 48 times of the day")
        for window in self.windows:
            _minutes(window)

    @classmethod
    def load(cls, path: Path) -> Conditions:
        """Reads a TOML file. Raises ConfigurationError naming the file and what is wrong in it."""
        return load_settings(path, cls._of, what="conditions")

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Conditions:
        _validate.known_keys(values, [setting.name for setting in fields(cls)], where="the conditions")
        if isinstance(values.get("windows"), list):
            values["windows"] = tuple(values["windows"])
        return cls(**values)


@dataclass(frozen=True)
class Reading:
    """One condition: whether it is met, what it asks for, and what was read."""

    name: str
    met: bool
    wanted: str
    read: str


@dataclass(frozen=True, kw_only=True)
class Standing:
    """From the store: the time of the last contribution to another round."""

    last: float | None


def readings(
    conditions: Conditions,
    sensors: Sensors,
    standing: Standing,
    *,
    now: float,
    local: Callable[[float], time.struct_time] = time.localtime,
) -> tuple[Reading, ...]:
    """Every condition of the policy with its reading; ``now`` in seconds since the epoch, ``local`` its time of day."""
    checks: list[tuple[str, str, Callable[[], tuple[bool, str]]]] = []
    if conditions.idle:
        checks.append(("idle", "the device is not in use", lambda: _flag(sensors.idle(), "idle", "in use")))
    if conditions.charging:
        checks.append(("charging", "on mains power", lambda: _flag(sensors.charging(), "charging", "on battery")))
    if (level := conditions.battery_at_least) is not None:
        checks.append(("battery", f"at least {level:.0%}", lambda: _number(sensors.battery(), level, "{:.0%}")))
    if conditions.unmetered:
        checks.append(("network", "unmetered", lambda: _flag(sensors.unmetered(), "unmetered", "metered")))
    if (megabytes := conditions.free_megabytes_at_least) is not None:
        checks.append(
            (
                "storage",
                f"at least {megabytes:g} MB free",
                lambda: _number(sensors.free_bytes() / _MEGABYTE, megabytes, "{:.0f} MB"),
            )
        )
    if (heat := conditions.thermal_at_most) is not None:
        most = THERMAL_STATES[heat] if isinstance(heat, str) else heat
        wanted = f"at most {heat} ({most:g} °C)" if isinstance(heat, str) else f"at most {most:g} °C"
        checks.append(("thermal", wanted, lambda: _cool(sensors.temperature(), most)))
    if conditions.windows:
        checks.append(("time", " or ".join(conditions.windows), lambda: _in_window(conditions.windows, local(now))))
    if (hours := conditions.hours_between) is not None:
        checks.append(
            ("separation", f"{hours:g} h since the last contribution", lambda: _apart(standing.last, now, hours))
        )
    return tuple(_read(name, wanted, read) for name, wanted, read in checks)


def require(measured: tuple[Reading, ...]) -> None:
    """Returns if all conditions are met. Raises NotNow, which lists each unmet one with its wanted value and its
    reading.
    """
    missing = [reading for reading in measured if not reading.met]
    if missing:
        unmet = "; ".join(f"{reading.name}: {reading.read} (wanted: {reading.wanted})" for reading in missing)
        raise NotNow(unmet, *(reading.name for reading in missing))


def _read(name: str, wanted: str, read: Callable[[], tuple[bool, str]]) -> Reading:
    try:
        met, text = read()
    except Unreadable as error:
        met, text = False, f"cannot be read: {error}"
    return Reading(name, met, wanted, text)


def _flag(value: bool, yes: str, no: str) -> tuple[bool, str]:
    return value, yes if value else no


def _number(value: float, least: float, form: str) -> tuple[bool, str]:
    return value >= least, form.format(value)


def _cool(degrees: float, most: float) -> tuple[bool, str]:
    state = next((name for name, limit in THERMAL_STATES.items() if degrees <= limit), "critical")
    return degrees <= most, f"{degrees:.0f} °C, {state}"


def _in_window(windows: tuple[str, ...], local: time.struct_time) -> tuple[bool, str]:
    minute = 60 * local.tm_hour + local.tm_min
    met = False
    for window in windows:
        start, end = _minutes(window)
        # Counted from the start, so that a window may pass midnight.
        met = met or (minute - start) % _MINUTES < ((end - start) % _MINUTES or _MINUTES)
    return met, f"{local.tm_hour:02d}:{local.tm_min:02d}"


def _apart(last: float | None, now: float, hours: float) -> tuple[bool, str]:
    if last is None:
        return True, "no contribution yet"
    if last > now:
        return False, "the last one has a time in the future: the clock went back"
    return now - last >= hours * 3600.0, f"{(now - last) / 3600.0:.1f} h"


def _minutes(window: str) -> tuple[int, int]:
    matched = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if matched is None:
        raise ConfigurationError(f"Expected a window={window!r} to be HH:MM-HH:MM")
    start_hour, start, end_hour, end = map(int, matched.groups())
    return 60 * start_hour + start, 60 * end_hour + end

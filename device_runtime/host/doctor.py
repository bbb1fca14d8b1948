"""What this machine supports: sandboxing of services, encryption of stores, and sensors."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_runtime.isolated import IsolatedHost, ServiceCode
from device_runtime.person.sensors import Sensors, Unreadable
from device_runtime.store.keys import CIPHER, at_rest
from odp._system.extras import advice, is_installed
from odp.errors import StateError
from odp.isolated.walls import PROMISES, RESTRICTIONS, broken_promises

_PROBE = "from odp.isolated import IsolatedService\n\n\nclass Probe(IsolatedService):\n    pass\n"


@dataclass(frozen=True)
class Examination:
    """The results of an examination.

    Attributes:
      python, system: their versions.
      enforced, not_enforced: names of ``odp.isolated.walls.PROMISES``.
      held, refused: names of ``odp.isolated.walls.RESTRICTIONS``; a promise may hold without all of them.
      problem: why services do not run here, or empty.
      store: how stores are encrypted.
      keyring: whether the operating system's keyring can be asked.
      sensors: by name, empty where it can be read, otherwise why not.
    """

    python: str
    system: str
    enforced: tuple[str, ...]
    not_enforced: tuple[str, ...]
    held: tuple[str, ...]
    refused: tuple[str, ...]
    problem: str
    store: str
    keyring: str
    sensors: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """The examination as plain values for one JSON object."""
        return {
            "python": self.python,
            "system": self.system,
            "services": {
                "enforced": list(self.enforced),
                "not_enforced": list(self.not_enforced),
                "problem": self.problem,
                "restrictions": {"held": list(self.held), "refused": list(self.refused)},
            },
            "store": self.store,
            "keyring": self.keyring,
            "sensors": {name: reason or "readable" for name, reason in self.sensors.items()},
        }


def examine(sensors: Sensors, *, folder: Path) -> Examination:
    """Starts an empty service, and queries the kernel, the keyring and every sensor.

    ``folder`` is the state folder of the device host; it may not be there yet.
    """
    held, problem = _walls()
    broken = list(PROMISES) if problem else broken_promises(held)
    return Examination(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        enforced=tuple(name for name in PROMISES if name not in broken),
        not_enforced=tuple(broken),
        held=held,
        refused=tuple(name for name in RESTRICTIONS if name not in held),
        problem=problem,
        store=_store(folder),
        keyring=_keyring(),
        sensors={name: _reading(getattr(sensors, name)) for name in vars(Sensors) if not name.startswith("_")},
    )


def _walls() -> tuple[tuple[str, ...], str]:
    code = ServiceCode("probe", None, {"probe": (_PROBE, False)})
    try:
        with IsolatedHost(code, accept=PROMISES) as host:
            return host.restrictions(), ""
    except StateError as error:
        return (), str(error)


def _store(folder: Path) -> str:
    try:
        protection = at_rest(folder)
    except StateError as error:
        return str(error)
    return protection.text if protection is not None else f"{CIPHER} for the first store; {folder} has none yet"


def _keyring() -> str:
    if not is_installed("keyring"):
        return advice("keyring")
    backend = importlib.import_module("keyring").get_keyring()
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def _reading(sensor: Callable[[], object]) -> str:
    try:
        sensor()
    except Unreadable as reason:
        return str(reason)
    return ""

"""What an app's device stands on: its store, the key of it, and the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_runtime.person.sensors import Sensors
from device_runtime.round.gate import machine_sensors


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Which store of the folder is the device's, how it is opened, and what the machine says of itself.

    Attributes:
      name: of the service, in its store and for the person; by default its file's.
      index: of the device, where the folder holds those of several people.
      create: make the store where there is none.
      key_file: holds the key that the store is encrypted under; by default see ``device_runtime.store.keys``.
      keyring: whether a new key may be kept in the operating system's keyring.
      sensors: readings of the device whose store lies at a path; by default this machine's.
      clock: seconds since the epoch.
    """

    name: str | None = None
    index: int = 0
    create: bool = True
    key_file: Path | None = None
    keyring: bool = True
    sensors: Callable[[Path], Sensors] = machine_sensors
    clock: Callable[[], float] = time.time


#: A store of its own, on the machine that the program runs on.
THIS_MACHINE = Environment()

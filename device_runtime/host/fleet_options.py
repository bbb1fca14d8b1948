"""What a device host does, and how it measures and spends time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What a fleet does.

    Attributes:
      population: what the devices check in for.
      devices: their numbers in the state folder.
      durable: whether what a device sent survives a power cut (see ``Store.open``).
      until_finished: return once the task that was seen has no round left.
      keep_running: go on where a service's certificate or evidence is refused again and again, instead of ending.
      end_after: seconds after which ``run`` returns, or raises where it was to end with its task; 0 is one look at what
        the server offers.
      most_contributions: return after that many.
    """

    population: str
    devices: range
    durable: bool = True
    until_finished: bool = False
    keep_running: bool = False
    end_after: float | None = None
    most_contributions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How a fleet measures and spends time.

    Attributes:
      clock: seconds that only grow.
      wait: sleeps for some seconds and returns True when the fleet is to stop; None waits for its ``stop``.
      uniform: a random number between two bounds, for retry windows.
    """

    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], bool] | None = None
    uniform: Callable[[float, float], float] = SystemRandom().uniform

"""Restarts programs of `odp up` that end by themselves, with growing pauses, up to a limit.

A program recovers everything from its files, so that the next start goes on where the last one ended. One that ends
again and again has a fault that no further start removes: its last line is the operator's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from odp.errors import OdpError, ServiceError

if TYPE_CHECKING:
    from odp.operations.local.processes import Services

#: Ends of one program within ``WITHIN_SECONDS`` that are followed by a start.
MOST_RESTARTS = 5
WITHIN_SECONDS = 600.0
_FIRST_PAUSE_SECONDS = 1.0


class Supervisor:
    """Supervises the children of ``services``; ``say`` takes one line for the operator."""

    def __init__(
        self, services: Services, *, say: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._services = services
        self._say = say
        self._monotonic = monotonic
        self._ends: dict[str, list[float]] = {}
        self._due: dict[str, float] = {}

    def look(self) -> None:
        """Starts the programs that are due; returns at once.

        Raises:
            ServiceError: a program ended too often, with its last line.
        """
        now = self._monotonic()
        for name, child in list(self._services.children.items()):
            if child.process.poll() is None:
                continue
            if name not in self._due:
                self._plan(name, now)
            elif now >= self._due[name]:
                del self._due[name]
                try:
                    self._services.restart_child(name)
                except (OdpError, OSError) as error:  # a full disk, or no memory: that may pass, as with its own end
                    self._plan(name, now, str(error))

    def _plan(self, name: str, now: float, line: str = "") -> None:
        line = line or self._services.children[name].last_line()
        ends = [at for at in self._ends.get(name, []) if now - at < WITHIN_SECONDS]
        ends.append(now)
        self._ends[name] = ends
        if len(ends) > MOST_RESTARTS:
            raise ServiceError(
                f"{name} ended {len(ends)} times in {WITHIN_SECONDS / 60:.0f} minutes, the last time with: "
                f"{line}; the others were stopped too"
            )
        pause = _FIRST_PAUSE_SECONDS * 2 ** (len(ends) - 1)
        self._due[name] = now + pause
        self._say(f"{name} ended by itself and is started again in {pause:.0f} s; its last line: {line}")

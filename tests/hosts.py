"""A device host under a clock that only its own pauses move, for tests of what it does and how long it waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from device_runtime.host.ending import FleetOptions, Timing
from device_runtime.host.fleet import Fleet
from device_runtime.host.pacing import CheckInPlan
from device_runtime.person.limits import Limits
from device_runtime.store.schema import State
from odp._system.files.state_folder import StateFolder


class Host:
    """A fleet under a clock that only its own pauses move; ``events`` are called one per pause."""

    def __init__(
        self,
        world: Any,
        *,
        count: int,
        limits: Limits | None = None,
        until_finished: bool = True,
        keep_running: bool = False,
        plan: CheckInPlan | None = None,
        end_after: float | None = None,
        housekeeping: Any = None,
    ) -> None:
        self.world = world
        self.now = 0.0
        self.most_pauses = 100
        self.pauses: list[float] = []
        self.events: list[Callable[[], None]] = []
        self.stop = threading.Event()
        self.state = StateFolder.open(world.folder / "devices-state", "devices")
        self.fleet = Fleet(
            FleetOptions(
                population="people", devices=range(count), until_finished=until_finished, keep_running=keep_running,
                end_after=end_after,
            ),
            state=self.state, participant=world.participant(limits=limits), stop=self.stop, log=world.log, plan=plan,
            housekeeping=housekeeping,
            timing=Timing(clock=lambda: self.now, wait=self.pause, uniform=lambda low, high: (low + high) / 2),
        )  # fmt: skip

    def pause(self, seconds: float) -> bool:
        assert len(self.pauses) < self.most_pauses, "the host never ends"
        self.pauses.append(seconds)
        self.now += seconds
        if self.events:
            self.events.pop(0)()
        return self.stop.is_set()

    def run(self) -> None:
        try:
            self.fleet.run()
        finally:
            self.state.close()

    def written(self) -> dict[str, Any]:
        return json.loads((self.world.folder / "devices-state" / "stats.json").read_text())


def states(world: Any, count: int) -> list[list[State]]:
    found = []
    for device in range(count):
        with world.store(device) as store:
            found.append([line.state for line in store.ledger()])
    return found

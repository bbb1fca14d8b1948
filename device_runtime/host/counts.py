"""Statistics of a device host per round, in numbers that say nothing about any one device."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from typing import Any

from device_runtime.network.services import Traffic
from odp.errors import StateError

FILE = "stats.json"
_FORMAT = 1


@dataclass
class RoundCounts:
    """One round: devices by how they ended, bytes of serialized messages, and seconds from first to last attempt.

    ``devices_in`` counts accepted contributions, ``refused`` those that an enclave refused, ``declined`` devices whose
    limits forbade the task, and ``failed`` attempts that another one may make good.
    """

    task: str
    round: int
    devices_in: int = 0
    refused: int = 0
    declined: int = 0
    failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


class HostCounts:
    """Counters of all rounds, kept over restarts; thread-safe."""

    def __init__(self, *, population: str, devices: int, stored: bytes | None = None) -> None:
        self._population, self._devices = population, devices
        self._lock = threading.Lock()
        self._rounds: dict[tuple[str, int], RoundCounts] = {}
        self._waiting = Traffic()
        self._outages = 0
        self._finished = False
        self._changed = True
        self._started: dict[tuple[str, int], float] = {}
        if stored is not None:
            self._restore(stored)

    def count(self, key: tuple[bytes, int], what: str, traffic: Traffic, *, now: float) -> None:
        """Adds one attempt: ``what`` is a counter of RoundCounts, or empty for bytes alone."""
        with self._lock:
            entry = self._entry(key)
            if what:
                setattr(entry, what, getattr(entry, what) + 1)
            entry.bytes_up += traffic.up
            entry.bytes_down += traffic.down
            # ``seconds`` goes on from a restart: only what passed since this process began the round is added.
            task_round = (entry.task, entry.round)
            started = self._started.setdefault(task_round, now - entry.seconds)
            entry.seconds = now - started
            self._changed = True

    def recovered(self, key: tuple[bytes, int], devices_in: int, refused: int) -> None:
        """Sets the counts of a round from the device stores: they survive a kill, and the file may lag behind."""
        with self._lock:
            entry = self._entry(key)
            entry.devices_in, entry.refused = devices_in, refused
            self._changed = True

    def waited(self, traffic: Traffic) -> None:
        """Counts a check-in that gave no work."""
        with self._lock:
            self._waiting.up += traffic.up
            self._waiting.down += traffic.down
            self._changed = True

    def outage(self) -> None:
        """Counts one outage of a service."""
        with self._lock:
            self._outages += 1
            self._changed = True

    def finish(self) -> None:
        """Marks the host as finished: no work is left."""
        with self._lock:
            self._finished = True
            self._changed = True

    def rounds(self) -> list[RoundCounts]:
        """A copy of all rounds, in the order in which they were first seen."""
        with self._lock:
            return [RoundCounts(**asdict(entry)) for entry in self._rounds.values()]

    def contributions(self) -> int:
        """Accepted contributions of all rounds."""
        with self._lock:
            return sum(entry.devices_in for entry in self._rounds.values())

    def take_changes(self) -> bytes | None:
        """The JSON file's content, or None where nothing changed since the last call."""
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            content = {
                "format": _FORMAT,
                "population": self._population,
                "devices": self._devices,
                "finished": self._finished,
                "outages": self._outages,
                "waiting": {"bytes_up": self._waiting.up, "bytes_down": self._waiting.down},
                "rounds": [{**asdict(entry), "seconds": round(entry.seconds, 3)} for entry in self._rounds.values()],
            }
        return json.dumps(content, indent=1).encode() + b"\n"

    def _entry(self, key: tuple[bytes, int]) -> RoundCounts:
        task_round = (key[0].hex(), key[1])
        return self._rounds.setdefault(task_round, RoundCounts(task=task_round[0], round=task_round[1]))

    def _restore(self, stored: bytes) -> None:
        try:
            content: dict[str, Any] = json.loads(stored)
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            for values in content["rounds"]:
                entry = RoundCounts(**values)
                self._rounds[entry.task, entry.round] = entry
            self._waiting = Traffic(content["waiting"]["bytes_up"], content["waiting"]["bytes_down"])
            self._outages = int(content["outages"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{FILE} of the state folder is damaged; remove it: nothing depends on it") from error

"""What one host of a simulated fleet did, line by line in a file, so that a killed one goes on with what is left.

A line is written before a fault is injected, and after a device's part in a round ended: ``kill -9`` loses no line that
was written, and what lies between two lines is in the device's own store. A line that was cut is left out.

The file is no promise to anybody but this simulation: it is not synced, so a power cut needs a new fleet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from odp._system.closing import Closing
from odp.errors import StateError

FILE = "journal.jsonl"
_FAULT, _REPLAY, _ATTEMPT, _DONE, _FILLED = "fault", "replay", "attempt", "done", "filled"


@dataclass
class Counts:
    """One round of one host. The numbers follow from the seed, but for the seconds."""

    devices_in: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    retries: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    processor_seconds: float = 0.0
    seconds: float = 0.0
    simulated_hours: float = 0.0


class Journal(Closing):
    """The journal of a folder; a context manager.

    Args:
      folder: it exists.
      rounds: how many a fleet has.

    Raises:
      StateError: the file cannot be read or written, or is of another fleet.
    """

    def __init__(self, folder: Path, *, rounds: int) -> None:
        self._path = folder / FILE
        self.counts = [Counts() for _ in range(rounds)]
        #: Devices that are through with each round.
        self.through: list[set[int]] = [set() for _ in range(rounds)]
        self.is_filled = False
        self._past: dict[tuple[int, int], set[str]] = {}
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            self._file = self._path.open("ab", buffering=0)
            # What a killed process wrote in part would spoil the next line.
            self._file.truncate(len(whole))
        except OSError as error:
            raise StateError(f"cannot use the journal {self._path}: {error.strerror}; take another --state") from error
        try:
            for line in whole.splitlines():
                self._apply(*json.loads(line))
        except (ValueError, TypeError, IndexError, KeyError) as error:
            self._file.close()
            raise StateError(f"the journal {self._path} is damaged; start a new fleet in another --state") from error

    def past(self, device: int, round: int) -> frozenset[str]:
        """What happened to a device in a round already, and happens once."""
        return frozenset(self._past.get((device, round), ()))

    def fault(self, device: int, round: int, kind: str) -> bool:
        """Notes a fault before it happens; False where it was noted before, and counts no second time."""
        if kind in self._past.get((device, round), ()):
            return False
        self._write(_FAULT, round, device, kind)
        return True

    def replay(self, device: int, round: int, kind: str, answer: str) -> None:
        """Notes a contribution that was sent again, and its answer: after it, since all of it can happen again."""
        self._write(_REPLAY, round, device, [kind, answer])

    def attempt(self, device: int, round: int, numbers: Mapping[str, int]) -> None:
        """Adds to a round's numbers: what an attempt that did not end the device's part took."""
        self._write(_ATTEMPT, round, device, dict(numbers))

    def done(
        self,
        device: int,
        round: int,
        numbers: Mapping[str, int] = MappingProxyType({}),
        *,
        refused: str = "",
        sent: bool = False,
    ) -> None:
        """Ends a device's part in a round."""
        self._write(_DONE, round, device, {"refused": refused, "sent": sent, **numbers})

    def filled(self) -> None:
        """Notes that all devices have their data."""
        self._write(_FILLED, 0, 0, None)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    def _write(self, *line: Any) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise StateError(f"cannot write the journal {self._path}: {error.strerror}; free some space") from error
        self._apply(*line)

    def _apply(self, what: str, round: int, device: int, details: Any) -> None:
        counts = self.counts[round]
        match what:
            case "filled":
                self.is_filled = True
            case "fault":
                self._past.setdefault((device, round), set()).add(details)
                counts.injected[details] += 1
            case "replay":
                kind, answer = details
                self._past.setdefault((device, round), set()).add(kind)
                counts.injected[kind] += 1
                counts.refused[f"replay: {answer}"] += 1
            case "attempt" | "done":
                for name in ("rests", "retries", "bytes_up", "bytes_down"):
                    setattr(counts, name, getattr(counts, name) + details.get(name, 0))
                if what == _DONE and device not in self.through[round]:
                    self.through[round].add(device)
                    self._past.pop((device, round), None)  # nothing happens to it in this round any more
                    counts.devices_in += details["sent"]
                    if details["refused"]:
                        counts.refused[details["refused"]] += 1
            case _:
                raise ValueError(what)

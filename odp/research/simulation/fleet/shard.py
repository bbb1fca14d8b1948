"""What one host of a simulated fleet is given, and what it tells of its progress."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

TASK_FILE, PROGRESS_FILE = "task.json", "progress.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one host needs to know; ``first`` .. ``first + count - 1`` are its devices of ``devices``.

    ``closed`` rounds are over since an earlier run; ``task`` is the task's id in hex.
    """

    scenario: str
    folder: str
    seed: int
    devices: int
    first: int
    count: int
    rounds: int
    closed: int
    behaviours: tuple[str, ...]
    bad_byte: int
    day: float
    task: str
    population: str
    server: str
    ca: str
    reference_values: str
    stores: str
    wait_seconds: float


def earlier(folder: Path, rounds: int) -> list[dict[str, float]]:
    """What earlier runs of this host took in each round."""
    nothing = {"seconds": 0.0, "processor_seconds": 0.0, "simulated_hours": 0.0}
    try:
        stored = json.loads((folder / PROGRESS_FILE).read_bytes())["rounds"]
        return [{name: float(stored[number][name]) for name in nothing} for number in range(rounds)]
    except (OSError, ValueError, TypeError, LookupError):
        return [dict(nothing) for _ in range(rounds)]

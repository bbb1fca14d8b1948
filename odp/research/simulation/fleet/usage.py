"""What this process and all below it use, by Linux's ``/proc``: memory now, and processor time so far."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """Samples this process and its descendants.

    Attributes:
      memory_bytes: the largest sum of resident bytes of a sample; pages that processes share count for each.
    """

    memory_bytes: int = 0
    _processor: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def processor_seconds(self) -> float:
        """User and system seconds of all processes that a sample saw, ended ones included."""
        return sum(self._processor.values())

    def sample(self) -> None:
        """Looks once."""
        resident = 0
        for pid in _family(os.getpid()):
            try:
                fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended
                continue
            self._processor[pid] = max(self._processor.get(pid, 0.0), (int(fields[11]) + int(fields[12])) / _TICKS)
            resident += int(fields[21]) * _PAGE
        self.memory_bytes = max(self.memory_bytes, resident)


def _family(pid: int) -> Iterator[int]:
    """``pid`` and its descendants."""
    yield pid
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        children = [int(text) for task in tasks for text in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(child)

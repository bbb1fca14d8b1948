"""What a set of processes used, sampled while they run: peak memory and processor seconds."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

_SAMPLE_SECONDS = 0.5
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Usage:
    """Samples processes by name until it is closed; a process that ended keeps its last values."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._lock = threading.Lock()
        self._peak = dict.fromkeys(pids, 0)
        self._processor = dict.fromkeys(pids, 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def peak_bytes(self) -> dict[str, int]:
        """Peak resident bytes since each process began, as the kernel counts them where it does."""
        self.sample()
        with self._lock:
            return dict(self._peak)

    def processor_seconds(self) -> dict[str, float]:
        """User and system seconds since each process began."""
        self.sample()
        with self._lock:
            return dict(self._processor)

    def sample(self) -> None:
        """Looks once."""
        for name, process in self._processes.items():
            try:
                times, peak = process.cpu_times(), peak_resident_bytes(process)
            except psutil.Error:
                continue
            with self._lock:
                self._processor[name] = max(self._processor[name], times.user + times.system)
                self._peak[name] = max(self._peak[name], peak)

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.sample()

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def peak_resident_bytes(process: psutil.Process) -> int:
    """The kernel's high-water mark on Linux, elsewhere what is resident now."""
    try:
        found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else int(process.memory_info().rss)

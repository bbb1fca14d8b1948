"""What a set of processes used, sampled while they run: peak memory and processor seconds."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

_SAMPLE_SECONDS = 0.5
#: What an enclave's host has below it: the platform process, and the enclave below that.
_BELOW = ("platform", "enclave")
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


def with_enclaves(pids: Mapping[str, int]) -> dict[str, int]:
    """``pids``, and the processes below those that host an enclave, as ``<name> platform`` and ``<name> enclave``."""
    found: dict[str, int] = {}
    for name, pid in pids.items():
        found[name] = pid
        process = psutil.Process(pid)
        for what in _BELOW:
            below = process.children()
            if len(below) != 1:
                break
            (process,) = below
            found[f"{name} {what}"] = process.pid
    return found


def peak_resident_bytes(process: psutil.Process) -> int:
    """The kernel's high-water mark on Linux, elsewhere what is resident now."""
    try:
        found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else int(process.memory_info().rss)

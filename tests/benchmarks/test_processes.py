"""Sampling of processes: what is read is the kernel's, and stays when a process ends."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from benchmarks.processes import Usage, peak_resident_bytes


def test_the_peak_is_at_least_what_is_resident_now() -> None:
    own = psutil.Process(os.getpid())
    assert peak_resident_bytes(own) >= own.memory_info().rss // 2 > 0


def test_a_process_that_ended_keeps_its_last_values() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        usage = Usage({"child": child.pid})
        before = usage.peak_bytes()["child"]
        used = usage.processor_seconds()["child"]
    finally:
        child.communicate(b"\n")
    assert before > 2**20
    assert usage.peak_bytes() == {"child": before}
    assert usage.processor_seconds() == {"child": used}

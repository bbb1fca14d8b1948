"""Sampling of processes: what is read is the kernel's, and stays when a process ends."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from benchmarks.processes import Usage, peak_resident_bytes, with_enclaves


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


_HOST = r"""
import subprocess, sys
depth = int(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]]
below = [subprocess.Popen(command, stdin=-1, stdout=-1)] if depth else []
for child in below:
    child.stdout.readline()
print(flush=True)
input()
for child in below:
    child.communicate(b"\n")
"""


def test_the_processes_below_an_enclaves_host_are_named_and_a_host_without_has_none() -> None:
    hosts = [
        subprocess.Popen([sys.executable, "-c", _HOST, str(depth), _HOST], stdin=-1, stdout=-1) for depth in (2, 0)
    ]
    try:
        for host in hosts:
            assert host.stdout is not None
            host.stdout.readline()
        found = with_enclaves({"aggregator": hosts[0].pid, "server": hosts[1].pid})
        assert list(found) == ["aggregator", "aggregator platform", "aggregator enclave", "server"]
        assert psutil.Process(found["aggregator enclave"]).ppid() == found["aggregator platform"]
    finally:
        for host in hosts:
            host.communicate(b"\n")

"""An enclave whose code is hostile tries to get out, past Python too; each attempt fails, and what holds is told."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from trust.enclave.conftest import Hostile

from odp._system.sandbox import kernel
from odp.errors import StateError
from odp.trust.enclave import launcher, sandbox
from odp.trust.enclave.registers import read

WRITTEN = Path("/tmp/odp-hostile-enclave-wrote-this")


def needs(hostile: Hostile, *names: str) -> None:
    missing = [name for name in names if name not in hostile.enclave.restrictions]
    if missing:
        pytest.skip(f"this kernel refused {', '.join(missing)}, and the enclave says so")


@pytest.mark.parametrize(
    "attempt",
    [
        "open file", "open own image", "open device", "open other memory", "open own memory", "list folder",
        "write file", "tcp", "udp", "unix", "fork", "exec", "program", "dumpable",
    ],
)  # fmt: skip
def test_an_enclave_that_runs_reaches_nothing(hostile: Hostile, attempt: str) -> None:
    needs(hostile, "seccomp")
    assert hostile.ask(attempt) == "EPERM"
    assert not WRITTEN.exists()


def test_system_calls_past_python_fail_alike(hostile: Hostile) -> None:
    needs(hostile, "seccomp")
    if os.uname().machine != "x86_64":
        pytest.skip("the test's numbers are those of x86-64; test_seccomp.py has the filter of both")
    answers = hostile.ask("syscall")
    assert len(answers) > 40
    assert set(answers.values()) == {"EPERM"}, answers
    assert set(hostile.ask("clone").values()) == {"EPERM"}


def test_it_cannot_signal_the_platform_nor_the_host(hostile: Hostile) -> None:
    needs(hostile, "seccomp")
    for process in (hostile.enclave.platform_pid, os.getpid(), -1, 0):
        assert hostile.ask("signal", pid=process) == "EPERM"


def test_its_memory_goes_to_no_core_file(hostile: Hostile) -> None:
    needs(hostile, "no-core-dumps", "not-dumpable")
    assert hostile.ask("early")["core limit"] == "(0, 0)"
    assert hostile.ask("raise limit") != "done"


def test_it_can_still_compute_in_threads_and_draw_randomness(hostile: Hostile) -> None:
    assert hostile.ask("compute") == 200.0**3
    assert hostile.ask("random") == 64


def test_while_it_starts_it_can_neither_read_nor_write_nor_connect(hostile: Hostile) -> None:
    needs(hostile, "landlock-no-files", "namespace-network")
    early = hostile.ask("early")
    assert early["read"] == "EACCES"
    assert early["write"] == "EACCES"
    assert early["connect"] != "done"
    assert early["interfaces"] == "lo"
    assert not WRITTEN.exists()


def test_it_inherits_no_environment(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python itself sets LC_CTYPE where no locale is given.
    assert set(hostile.ask("early")["environment"].split(",")) - {"LC_CTYPE"} == {
        "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENSSL_CONF", "PYTHONHOME", "PYTHONPATH",
        "PYTHONUTF8",
    }  # fmt: skip


def test_it_imports_what_was_measured_and_nothing_else(hostile: Hostile) -> None:
    early = hostile.ask("early")
    imports = {name: came for name, came in early.items() if name.startswith("import ")}
    assert len(imports) == 7
    assert set(imports.values()) == {"ModuleNotFoundError"}, imports


def test_what_is_said_to_hold_does_hold_as_seen_from_outside(hostile: Hostile) -> None:
    process = Path(f"/proc/{hostile.enclave.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    held = hostile.enclave.restrictions
    assert (status["NoNewPrivs"] == "1") == ("no-new-privileges" in held)
    assert (status["Seccomp"] == "2") == ("seccomp" in held)
    # Of a process that is not dumpable, its files in /proc are root's.
    assert ((process / "mem").stat().st_uid == 0) >= ("not-dumpable" in held)
    links = {"user": "user", "network": "net", "ipc": "ipc", "process": "pid"}
    for name, link in links.items():
        try:
            apart = (process / "ns" / link).readlink() != Path(f"/proc/self/ns/{link}").readlink()
        except PermissionError:
            continue  # only root may look into a process that is not dumpable
        assert apart == (f"namespace-{name}" in held), name


def test_of_what_it_inherits_two_sockets_stay_open(hostile: Hostile) -> None:
    needs(hostile, "closed-descriptors")
    try:
        opened = {int(entry.name): entry for entry in Path(f"/proc/{hostile.enclave.pid}/fd").iterdir()}
        kinds = {number: entry.stat().st_mode for number, entry in opened.items()}
    except PermissionError:
        pytest.skip("only root may look into a process that is not dumpable")
    assert sorted(number for number, mode in kinds.items() if stat.S_ISSOCK(mode)) == [3, 4]
    assert all(opened[number].readlink() == Path(os.devnull) for number in kinds if number not in (3, 4))


def test_every_restriction_is_told_once_as_held_or_refused_and_stands_in_the_log(hostile: Hostile) -> None:
    held, refused = hostile.enclave.restrictions, hostile.enclave.refused
    assert sorted((*held, *refused)) == sorted(sandbox.RESTRICTIONS)
    hostile.ask("bind")
    log = read(hostile.ask("evidence", nonce="00" * 16)["event_log"].encode())
    told = [event.split(" ") for register, event in log if register == "sandbox"]
    assert sorted(told) == sorted([["held", name] for name in held] + [["refused", name] for name in refused])


def test_a_debug_launch_lets_debuggers_in_and_says_so(debugged: Hostile) -> None:
    assert "not-dumpable" in debugged.enclave.refused
    debugged.ask("bind")
    assert "configuration debug on\n" in debugged.ask("evidence", nonce="00" * 16)["event_log"]


def test_a_restriction_that_the_kernel_refuses_is_told_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(kernel, "prctl", refuse)
    monkeypatch.setattr(kernel, "_syscall", refuse)
    monkeypatch.setattr(kernel, "no_core_dumps", lambda: False)
    found = sandbox.before_imports()
    assert found.held == ()
    assert found.refused == sandbox.BEFORE_IMPORTS


def test_a_restriction_that_was_taken_and_does_not_hold_is_told_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "prctl", lambda *_: 0)
    monkeypatch.setattr(kernel, "landlock", lambda _: True)
    monkeypatch.setattr(kernel, "no_core_dumps", lambda: True)
    # Nothing was taken, so the file can be written and no_new_privs reads 0; the calls themselves did not fail.
    found = sandbox.before_imports()
    assert {"no-new-privileges", "landlock-read-only"} <= set(found.refused)


REFUSING = """
import sys
from odp.trust.enclave import platform_process
clone = platform_process._clone
platform_process._clone = lambda flags: -1 if flags else clone(flags)
control, channel, image = map(int, sys.argv[1:4])
platform_process.main(names=(), control=control, channel=channel, image=image)
"""


def test_where_the_kernel_refuses_namespaces_the_enclave_starts_without_them_and_says_so(
    start: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_PLATFORM", ("-P", "-c", REFUSING))
    hostile = start()
    assert set(hostile.enclave.refused) >= set(sandbox.NAMESPACES)
    hostile.ask("bind")
    log = hostile.ask("evidence", nonce="00" * 16)["event_log"]
    assert all(f"sandbox refused {name}\n" in log for name in sandbox.NAMESPACES)
    if "seccomp" in hostile.enclave.restrictions:
        assert hostile.ask("open file") == "EPERM"
        assert hostile.ask("signal", pid=hostile.enclave.platform_pid) == "EPERM"


FORBIDDEN = """
import errno, sys
from odp.trust.enclave import platform_process
def clone(flags):
    platform_process.ctypes.set_errno(errno.EAGAIN)
    return -1
platform_process._clone = clone
control, channel, image = map(int, sys.argv[1:4])
platform_process.main(names=(), control=control, channel=channel, image=image)
"""


def test_where_the_kernel_starts_no_further_process_its_reason_is_named(
    start: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_PLATFORM", ("-P", "-c", FORBIDDEN))
    with pytest.raises(StateError, match="could not be started: resource temporarily unavailable"):
        start()

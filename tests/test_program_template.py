"""A program that is forked has what a program has that starts in an interpreter of its own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import program_template
import psutil
import pytest
from program_template import Template

from odp.operations.local.processes import ODP, Child

#: Says what it was given; the descriptors are those before this file is read.
_REPORT = """
import json, os, random, resource, signal, sys, tempfile, threading
names = {int(name) for name in os.listdir("/proc/self/fd")}
def open_now(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
streams = [sys.stdin, sys.stdout, sys.stderr]
given = {
    "name": __name__, "arguments": [sys.argv, sys.orig_argv], "input": sys.stdin.read(),
    "shown": [open(f"/proc/self/{name}").read() for name in ("cmdline", "environ")],
    "folder": os.getcwd(), "variables": dict(os.environ), "umask": os.umask(0o77), "threads": threading.active_count(),
    "descriptors": [number for number in range(64) if number in names and open_now(number)],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through] for s in streams],
    "first streams": [each is first for each, first in zip(streams, [sys.__stdin__, sys.__stdout__, sys.__stderr__])],
    "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
    "signals": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "parent": os.getppid(),
    "path": sys.path, "main": sys.modules["__main__"].__dict__ is globals(), "temporary": tempfile.gettempdir(),
    "group": os.getpgid(0) == os.getpgid(os.getppid()), "session": os.getsid(0) == os.getsid(os.getppid()),
}
print(json.dumps({"given": given, "drawn": [random.random(), os.urandom(8).hex(), hash(object())]}))
print("an error", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "report.py"
    path.write_text(_REPORT)
    monkeypatch.setattr(program_template, "_SCRIPTS", (str(path),))
    return path


def _is_forked(process: int, template: Template) -> bool:
    """Whether the process has the addresses of the template, which a new program draws."""
    return _stack(process) == _stack(template.process)


def _stack(process: int) -> str:
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return next(line.partition("-")[2].split()[0] for line in lines if line.endswith("[stack]"))


def _both(template: Template, script: Path, *arguments: str, **options: Any) -> list[subprocess.CompletedProcess[str]]:
    """The script forked, and started afresh."""
    done = []
    for template.forks in (True, False):
        with subprocess.Popen(
            [sys.executable, "-P", str(script), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        ) as process:  # fmt: skip
            assert _is_forked(process.pid, template) == template.forks
            answer, error = process.communicate("some input", timeout=300)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, answer, error))
    return done


@pytest.mark.parametrize(
    ("session", "variables"), [(False, {}), (True, {}), (False, {"PYTHONIOENCODING": "ascii:replace"})]
)
def test_it_is_given_what_a_started_program_is(
    template: Template,
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    session: bool,
    variables: dict[str, str],
) -> None:
    monkeypatch.setenv("ODP_OF_THIS_PROCESS", "1")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    before, files = os.umask(0o027), resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "open").open("wb"), contextlib.ExitStack() as stack:
        stack.callback(os.umask, before)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, files)
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, files[1]))
        forked, started = _both(
            template, script, "one", "two words", cwd=elsewhere, start_new_session=session,
            env={**os.environ, "ODP_OF_THE_PROGRAM": "2", "TMPDIR": str(elsewhere), **variables},
        )  # fmt: skip
    assert forked.returncode == started.returncode == 7
    assert forked.stderr == started.stderr == "an error\n"
    given = json.loads(forked.stdout)["given"]
    assert given == json.loads(started.stdout)["given"]
    assert given["arguments"][0] == [str(script), "one", "two words"]
    assert given["parent"] == os.getpid()
    assert given["umask"] == 0o027
    assert given["session"] is not session


def test_an_interrupt_that_is_ignored_here_is_ignored_there(template: Template, script: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forked, started = _both(template, script)
    finally:
        signal.signal(signal.SIGINT, before)
    signals = json.loads(forked.stdout)["given"]["signals"]
    assert signals == json.loads(started.stdout)["given"]["signals"]
    assert signals[str(int(signal.SIGINT))] == str(signal.SIG_IGN)


def test_two_draw_other_numbers(template: Template, script: Path) -> None:
    drawn = [json.loads(_both(template, script)[0].stdout)["drawn"] for _ in range(2)]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_signals_reach_it_and_its_end_is_told(template: Template, script: Path, tmp_path: Path) -> None:
    script.write_text("import time\nprint('runs', flush=True)\ntime.sleep(60)\n")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-P", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=300)
        assert process.returncode == -number
        assert (b"KeyboardInterrupt" in error) == (number == signal.SIGINT)
        assert not Path(f"/proc/{process.pid}").exists(), "waited for"


@pytest.mark.parametrize(
    "options",
    [
        {"env": {**os.environ, "PYTHONHASHSEED": "1"}}, {"env": {**os.environ, "PYTHONPATH": "/nowhere"}},
        {"pass_fds": (0,)}, {"umask": 0o77}, {"preexec_fn": os.getpid}, {"close_fds": False},
    ],
    ids=["hashes", "path", "descriptors", "umask", "code", "all descriptors"],
)  # fmt: skip
def test_what_only_a_start_can_give_starts(template: Template, script: Path, options: dict[str, Any]) -> None:
    script.write_text("input()\n")
    with subprocess.Popen([sys.executable, "-P", str(script)], stdin=subprocess.PIPE, **options) as process:
        assert not _is_forked(process.pid, template)
        process.communicate(b"\n", timeout=300)


def test_other_programs_start(template: Template) -> None:
    command = [sys.executable, "-P", "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert not _is_forked(process.pid, template)
        process.communicate(b"\n", timeout=300)


@pytest.mark.afresh
def test_those_of_a_marked_test_start(template: Template, script: Path) -> None:
    script.write_text("input()\n")
    with subprocess.Popen([sys.executable, "-P", str(script)], stdin=subprocess.PIPE) as process:
        assert not _is_forked(process.pid, template)
        process.communicate(b"\n", timeout=300)


@pytest.mark.processes
def test_the_programs_of_a_forked_program_are_forked_and_end_with_it(template: Template, tmp_path: Path) -> None:
    child = Child("up", ["up", "--listen", "127.0.0.1:0"], state=tmp_path / "s", log=tmp_path / "log", command=ODP)
    until = time.monotonic() + 60.0
    while not (tmp_path / "s" / "server" / "address").exists():
        assert time.monotonic() < until
        assert child.process.poll() is None, child.last_line()
        time.sleep(0.05)
    up = psutil.Process(child.process.pid)
    programs = up.children()
    assert len(programs) == 5, "issuer, distributor, aggregator and server, and their template"
    assert all(_is_forked(process.pid, template) for process in [up, *programs])
    family = up.children(recursive=True)
    child.process.kill()
    assert child.process.wait(60.0) == -signal.SIGKILL
    _, alive = psutil.wait_procs(family, timeout=300.0)
    assert not alive

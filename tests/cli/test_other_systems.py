"""Simulation and developer commands run where POSIX modules are missing; services say that they need Linux."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: A Python without what Windows lacks, as far as one can take it away.
_WITHOUT = """
import sys
for name in ("fcntl", "resource", "uvloop", "pwd", "grp", "termios"):
    sys.modules[name] = None
import os, signal, socket
for module, names in (
    (socket, ("AF_UNIX", "AF_VSOCK")),
    (signal, ("SIGKILL", "SIGHUP", "SIGUSR1")),
    (os, ("fork", "getuid", "geteuid", "sched_getaffinity", "memfd_create")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import odp._system.posix
odp._system.posix.sys = type("sys", (), {"platform": "win32"})
from odp.cli.main import main
"""
_ONE_COMMAND = 'sys.argv[0] = "odp"; main()'
#: Of a list in JSON, to the first one that fails.
_COMMANDS = """
import json
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["odp", *arguments]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            print(arguments, file=sys.stderr)
            raise
"""
DATA = "synthetic:n_users=200,n_items=30,ratings_per_user=12"


def odp(folder: Path, *arguments: str, run: str = _ONE_COMMAND) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT + run, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_researcher_simulates_compares_and_reports(tmp_path: Path) -> None:
    commands = (
        ("simulate", "--data", DATA, "--delta", "1e-4", "--no-baselines", "--output", "run"),
        ("report", "run"),
        ("compare", "--data", DATA, "--delta", "1e-4", "--epsilons", "8", "--seeds", "1"),
        ("task", "new", "task.toml"),
        ("task", "show", "task.toml"),
        ("data", "info", DATA),
    )
    done = odp(tmp_path, json.dumps(commands), run=_COMMANDS)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("command", [("up",), ("demo",), ("fleet", "run", "--scenario", "x.toml"), ("witness", "run")])
def test_services_say_that_they_need_linux(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = odp(tmp_path, *command)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    if done.returncode == 1:
        assert "needs Linux" in done.stderr
        assert "Simulation and the commands of developers work here" in done.stderr


def test_the_look_at_an_image_says_where_it_runs(tmp_path: Path) -> None:
    done = odp(tmp_path, "enclave", "show", "aggregator.image")
    assert done.returncode == 1
    assert done.stderr == "odp: odp enclave show needs Linux or macOS; in Windows it runs in WSL 2\n"

"""A stdout that is closed, full, narrow or no longer read: one line or none, and never an internal error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = ("data", "check", "synthetic:n_users=60,n_items=20,ratings_per_user=8")
#: A command that computes nothing.
LIST = ("data", "list")


def run(*arguments: str, redirect: str = "", encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    command = f'exec "{sys.executable}" -m odp "$@" {redirect}'
    variables = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    variables.pop("ODP_TRACE", None)
    return subprocess.run(
        ["bash", "-c", command, "odp", *arguments],
        capture_output=True, text=True, timeout=120, env=variables, encoding="utf-8", check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [CHECK, (*LIST, "--json"), ("--help",), ("--version",)], ids=lambda one: one[-1])
@pytest.mark.slow
def test_a_full_stdout_is_one_line_and_exit_code_1(arguments: tuple[str, ...]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = run(*arguments, redirect="> /dev/full")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "odp: cannot write results to stdout: No space left on device; give the command another stdout"
    )


def test_a_closed_stdout_is_one_line_and_exit_code_1() -> None:
    done = run(*LIST, redirect=">&-")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write results to stdout: Bad file descriptor" in done.stderr


def test_a_reader_that_went_away_ends_the_command_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    variables = {name: value for name, value in os.environ.items() if name != "ODP_TRACE"}
    done = subprocess.run(
        [sys.executable, "-m", "odp", *LIST], stdout=write, stderr=subprocess.PIPE, timeout=120, env=variables,
        check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
def test_a_stdout_without_unicode_escapes_text_and_refuses_names(tmp_path: Path) -> None:
    done = run(*CHECK, encoding="ascii")
    assert done.returncode == 0
    assert "\\u03b5 = " in done.stdout
    named = tmp_path / "zoë.csv"
    named.write_text("user,item,rating\n1,2,3\n1,3,4\n", encoding="utf-8")
    refused = run("data", "info", str(named), "--csv", encoding="ascii")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "whose encoding is ascii: set PYTHONIOENCODING=utf-8" in refused.stderr


def test_a_closed_stderr_loses_words_and_nothing_else() -> None:
    done = run(*CHECK, "--json", redirect="2>&-")
    assert (done.returncode, done.stdout[0], done.stderr) == (0, "{", "")

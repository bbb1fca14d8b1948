"""Runs a page of the documentation in the working folder: its files, its Python and its commands, in order."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation.code_blocks import Block, blocks_of, check_printed
from program_template import ODP_SCRIPT

ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "MPLBACKEND": "Agg",
    "COLUMNS": "120",
    "NO_COLOR": "1",
    "PYTHONIOENCODING": "utf-8",
}
_SECONDS = 300.0
#: What makes a line more than words; quotes are read as a shell does.
_OF_A_SHELL = re.compile(r"[|&;<>()$`*?#~{}!]|\[")
_PORT = re.compile(r"127\.0\.0\.1:(\d{4})\b")


def run_page(*pages: Path, shift_ports: bool = False) -> dict[str, Any]:
    """Runs every block that tests run; returns the names that its Python has defined.

    What a page leaves running, runs on in the pages after it. With ``shift_ports`` ports of 127.0.0.1 are 10,000
    higher than on the page: services of this machine may have the others.

    Lines after ``first:`` have a function ``run``, which takes a command, and returns what it printed.
    """
    names: dict[str, Any] = {"__name__": "__page__", "run": run}
    printed = ""
    with contextlib.ExitStack() as stack:
        for block in (block for page in pages for block in blocks_of(page)):
            if not block.runs_here:
                continue
            if shift_ports:
                block = dataclasses.replace(block, text=_PORT.sub(r"127.0.0.1:1\1", block.text))
            if block.note == "printed":
                check_printed(block, printed)
                continue
            if block.note == "stopped":
                stack.close()
            exec(block.first, names)
            if block.note.startswith("file: "):
                Path(block.note.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
            elif block.note == "runs until stopped":
                stack.enter_context(_served(block))
            elif block.language == "python":
                out = io.StringIO()
                code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
                with contextlib.redirect_stdout(out):
                    exec(code, names)
                printed = out.getvalue()
            elif block.language == "bash":
                printed = run(block.text, fails=block.note == "fails", place=block.place)
    return names


def run(commands: str, *, fails: bool = False, place: str = "") -> str:
    """What the commands print; they succeed, or fail where the page says so."""
    printed = ""
    for command in _apart(commands):
        finished = subprocess.run(
            command,
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        printed += finished.stdout
        if finished.returncode:
            break
    assert (finished.returncode != 0) == fails, f"{place}: {commands}: {printed}"
    assert "Traceback" not in printed, f"{place}: {printed}"
    return printed


def _apart(commands: str) -> list[list[str]]:
    """The commands one by one, where a shell would do nothing but find `odp`; or else all of them in a shell."""
    lines = [shlex.split(line) for line in commands.replace("\\\n", " ").splitlines() if line.strip()]
    if all(words[:1] == ["odp"] for words in lines) and not _OF_A_SHELL.search(commands.replace("\\\n", " ")):
        return [[sys.executable, "-P", ODP_SCRIPT, *words[1:]] for words in lines]
    return [["bash", "-euo", "pipefail", "-c", commands]]


@contextlib.contextmanager
def _served(block: Block) -> Iterator[None]:
    """Runs the one command of ``block`` from its first line until it is stopped, or to the end of the page.

    `odp up` reports "ready at ..", and a single program the event "serving".
    """
    (command,) = _apart(block.text)
    process = subprocess.Popen(
        command if command[0] != "bash" else ["bash", "-euc", f"exec {block.text}"],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        lines: list[str] = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("ready at ") or " serving " in line:
                break
        else:
            pytest.fail(f"{block.place} ended: {''.join(lines)}")
        # A full pipe would stop the program.
        threading.Thread(target=collections.deque, args=(process.stdout, 0), daemon=True).start()
        yield
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0

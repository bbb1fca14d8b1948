"""The tutorials run from an empty folder: every file, every line of Python and every command, in order."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation.code_blocks import ROOT, Block, blocks_of, check_printed

TUTORIALS = ROOT / "docs" / "tutorials"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "MPLBACKEND": "Agg",
    "COLUMNS": "120",
    "NO_COLOR": "1",
    "PYTHONIOENCODING": "utf-8",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_every_tutorial_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for page in TUTORIALS.glob("*.md"):
        assert page.stem == "README" or f'run_page("{page.stem}")' in source, page.name


def test_the_first_model_runs(folder: Path) -> None:
    names = run_page("first-model")
    assert names["errors"][0.5] > names["errors"][2] > names["errors"][8]
    assert (folder / "first-model.svg").stat().st_size > 1000
    assert "films" in (folder / "run" / "report.html").read_text(encoding="utf-8")


def test_own_data_runs(folder: Path) -> None:
    run_page("your-own-data")
    assert (folder / "run" / "report.html").is_file()
    assert (folder / "comparison" / "comparison.json").is_file()


@pytest.mark.processes
def test_a_device_in_an_app_runs(folder: Path) -> None:
    names = run_page("device-in-your-app")
    assert 0.49 < names["spent"] <= 0.5


@pytest.mark.processes
@pytest.mark.slow
def test_an_audited_task_runs(folder: Path) -> None:
    run_page("audited-task")
    assert (folder / "odp-state" / "reference_values.json").is_file()


# Only where TensorFlow is: `make test-keras` has this file on its list.
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: make test-keras"
)
def test_a_federated_keras_network_is_trained(folder: Path) -> None:
    assert run_page("federated-keras")["accuracy"] > 0.8


def test_own_data_takes_at_most_ten_commands() -> None:
    commands = [line for block in _blocks("your-own-data", "bash") for line in block.text.splitlines()]
    assert len(commands) + len(_blocks("your-own-data", "python")) <= 10


def test_an_app_with_a_device_takes_at_most_forty_lines() -> None:
    """The service and the app of the tutorial together, all of its four steps."""
    blocks = _blocks("device-in-your-app", "python")
    assert sum(bool(line.strip()) for block in blocks for line in block.text.splitlines()) <= 40


def _blocks(name: str, language: str) -> list[Block]:
    return [block for block in blocks_of(TUTORIALS / f"{name}.md") if block.language == language]


def run_page(name: str) -> dict[str, Any]:
    """Runs the page in the working folder; returns the names that its Python has defined."""
    names: dict[str, Any] = {"__name__": "__page__"}
    printed = ""
    with contextlib.ExitStack() as stack:
        for block in blocks_of(TUTORIALS / f"{name}.md"):
            if not block.runs_here:
                continue
            if block.note == "printed":
                check_printed(block, printed)
            elif block.note.startswith("file: "):
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
                printed = _commands(block)
    return names


def _commands(block: Block) -> str:
    """What the commands print; they succeed, or fail where the page says so."""
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (finished.returncode != 0) == (block.note == "fails"), f"{block.place}: {finished.stdout}"
    assert "Traceback" not in finished.stdout, f"{block.place}: {finished.stdout}"
    return finished.stdout


@contextlib.contextmanager
def _served(block: Block) -> Iterator[None]:
    """Runs the one command of ``block`` from its line "ready at .." to the end of the page."""
    (command,) = block.text.splitlines()
    process = subprocess.Popen(
        command.split(), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        lines: list[str] = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("ready at "):
                break
        else:
            pytest.fail(f"{block.place} ended: {''.join(lines)}")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0

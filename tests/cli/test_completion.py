"""Shells complete commands, options and data; an interrupted command says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from program_template import ODP_SCRIPT

from odp.cli import main as entry
from odp.cli.console import interrupted, resume_with
from odp.cli.data_options import data_names


def _completed(words: str, folder: Path) -> list[str]:
    """What bash offers for the last of ``words``."""
    environment = os.environ | {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_ODP_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-P", ODP_SCRIPT],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(("words", "offered"), [("odp sim", "simulate"), ("odp compare --da", "--data")])
def test_bash_completes_commands_and_options(words: str, offered: str, tmp_path: Path) -> None:
    assert offered in _completed(words, tmp_path)


@pytest.mark.parametrize(
    ("command", "begun", "offered"),
    [
        ("simulate", "ml-1", {"ml-100k", "ml-10m", "ml-1m"}), ("compare", "m", {"my.csv", "more/"}),
        ("device run", "syn", {"synthetic"}),
    ],
)  # fmt: skip
def test_bash_completes_data_sets_and_files(command: str, begun: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("")
    (tmp_path / "more").mkdir()
    (tmp_path / ".hidden").write_text("")
    completed = _completed(f"odp {command} --data {begun}", tmp_path)
    assert offered & set(completed), completed
    assert all(word.startswith(begun) for word in completed)


def test_a_folder_is_completed_to_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.parquet").write_text("")
    assert data_names(f"{tmp_path}/mo") == [f"{tmp_path}/more/"]
    assert data_names(f"{tmp_path}/more/") == [f"{tmp_path}/more/own.parquet"]
    assert data_names(f"{tmp_path}/nowhere/") == []


@pytest.mark.processes
@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_a_simulation_that_is_interrupted_says_in_one_line_how_to_go_on(tmp_path: Path, kept: bool) -> None:
    data = "synthetic:n_users=2000,n_items=200,ratings_per_user=40"
    arguments = ["simulate", "--data", data, "--no-baselines", "--delta", "1e-5"]
    arguments += ["--checkpoint", "rounds"] if kept else []
    command = [sys.executable, "-P", ODP_SCRIPT, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        try:
            assert any(line.startswith("round 0: test RMSE") for line in running.stderr)
            running.send_signal(signal.SIGINT)
            lines = running.stderr.read().splitlines()
            assert running.stdout.read() == ""
            assert running.wait(60) == 130
        finally:
            running.kill()
    way = "the same command goes on from the last round in rounds" if kept else "--checkpoint FOLDER keeps a run"
    assert [line for line in lines if not line.startswith("round ")] == [lines[-1]]
    assert lines[-1].startswith(f"odp: interrupted; {way}")


def test_a_command_that_is_run_is_the_one_of_the_whole_command_line() -> None:
    whole = typer.main.get_command(entry.app)
    for name, command in whole.commands.items():
        ((only, alone),) = typer.main.get_command(entry.command_line(name)).commands.items()
        assert only == name
        assert _shape(alone) == _shape(command)


def _shape(command: Any) -> dict[str, Any]:
    """The options of a command with their texts, and of a group of commands the commands in it."""
    options = [(type(option), option.name, option.opts, option.help) for option in command.params]
    return {
        "options": options,
        "help": command.help,
        **{n: _shape(c) for n, c in getattr(command, "commands", {}).items()},
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_each_shell_is_shown(shell: str) -> None:
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-P", ODP_SCRIPT, "--show-completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "_ODP_COMPLETE" in done.stdout


def test_an_interrupted_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(**_: object) -> None:
        resume_with("the same command goes on")
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["odp"])
    monkeypatch.setattr(entry, "command_line", lambda: stop)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "odp: interrupted; the same command goes on\n"
    assert interrupted().endswith("goes on")

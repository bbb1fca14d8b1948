"""Shells complete commands and options; an interrupted command says what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from odp.cli import main as entry
from odp.cli.console import interrupted, resume_with


@pytest.mark.parametrize(("words", "found"), [("odp sim", "simulate"), ("odp compare --da", "--data")])
def test_bash_completes_commands_and_options(words: str, found: str) -> None:
    environment = os.environ | {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_ODP_COMPLETE": "complete_bash",
    }
    code = "import sys; sys.argv = ['odp']; from odp.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert found in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_each_shell_is_shown(shell: str) -> None:
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = f"import sys; sys.argv = ['odp', '--show-completion', {shell!r}]; from odp.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "_ODP_COMPLETE" in done.stdout


def test_an_interrupted_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(**_: object) -> None:
        resume_with("the same command goes on")
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "app", stop)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "odp: interrupted; the same command goes on\n"
    assert interrupted().endswith("goes on")

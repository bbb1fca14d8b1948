"""What the demo says before it starts and after it ended."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from odp.cli.demo import next_steps, parties_table
from odp.cli.main import app


@pytest.mark.parametrize("helper", [False, True])
def test_the_programs_fit_into_80_columns_and_the_emulation_is_said(helper: bool) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(parties_table(helper=helper))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for name in ("devices", "issuer", "distributor", "aggregator", "server"):
        assert f"│ {name} " in text
    assert ("│ helper " in text) == helper
    assert "emulated" in text


def test_the_next_steps_are_three_commands_that_exist() -> None:
    head, *steps = next_steps(Path("odp-demo")).splitlines()
    assert head == "next:"
    assert len(steps) == 3
    for step in steps:
        program, *words = step.split("  ")[1].split()
        assert program == "odp"
        command = get_command(app)
        while hasattr(command, "commands") and words:
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), step
        assert len(words) <= 1, "an argument at most"

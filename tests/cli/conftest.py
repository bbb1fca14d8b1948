"""Runs a command in this process and gives back what it printed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from odp.cli.main import app

TASK = """\
name = "films"
[model]
items = 30
rank = 2
[data]
[privacy]
epsilon = 8.0
delta = 1e-6
[training]
steps = 1
[cohort]
minimum = 20
goal = 130
"""


@dataclass(frozen=True)
class Printed:
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout, strictly as JSON."""

        def refuse(name: str) -> float:
            raise AssertionError(f"{name} is no JSON")

        found: dict[str, Any] = json.loads(self.out.strip().splitlines()[-1], parse_constant=refuse)
        return found


@pytest.fixture
def odp() -> Iterator[Callable[..., Printed]]:
    """``odp("task", "show", ..)``; an error of the command is raised as it is."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object, code: int = 0) -> Printed:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.stderr
        return Printed(result.stdout, result.stderr)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(TASK)
    return path

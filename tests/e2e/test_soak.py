"""The soak in its short form; ``python tests/e2e/soak.py --hours 24`` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.processes
@pytest.mark.slow
def test_an_hour_of_kills_ends_with_what_the_log_says() -> None:
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--hours", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "are those of the log" in done.stdout

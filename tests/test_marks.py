"""`make test` leaves out what starts programs, but for one test of each party and mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _selected(*files: str) -> list[str]:
    """The tests of some files that `make test` runs."""
    (expression,) = re.findall(r'^test: .*\n\t\$\(PYTEST\) -m "([^"]+)"', (ROOT / "Makefile").read_text(), re.MULTILINE)
    options = ["--collect-only", "-qq", "-n0", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-m", expression, *files],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("tests/")]


def test_what_starts_programs_is_left_out_unless_it_stands_for_its_party() -> None:
    selected = _selected("tests/e2e/test_tree.py", "tests/cli/test_issuer.py", "tests/operations/local")
    assert "tests/e2e/test_tree.py: 1" in selected, "the one with the mark representative"
    assert not [line for line in selected if line.startswith("tests/operations/local/test_processes.py")]
    assert [line for line in selected if line.startswith("tests/cli/test_issuer.py")] == ["tests/cli/test_issuer.py: 1"]


def test_ci_runs_all_tests() -> None:
    (recipe,) = re.findall(r"^test-all: .*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe == '$(PYTEST) -m "not proof" $(ARGS)'
    assert "\nmake test-all" in (ROOT / ".ci" / "run").read_text()

"""The pages of operators run to the letter, against real programs, from an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation.code_blocks import ROOT
from documentation.running import run_page

HOW_TO = ROOT / "docs" / "how-to"
TASK = """
name = "films"
[model]
kind = "matrix_factorization"
items = 20
rank = 2
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = 8.0
delta = 1e-6
[training]
kind = "dpam"
steps = 1
[cohort]
minimum = 100
goal = 120
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.processes
@pytest.mark.proof
def test_r385_the_back_up_page_runs_to_the_letter(folder: Path) -> None:
    """``back-up.md``: back up, restore, lose a chip, move, retire."""
    (folder / "films.toml").write_text(TASK, encoding="utf-8")
    run_page(HOW_TO / "back-up.md")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "odp-state.replaced-0", "new-state", "lost-aggregator", "log-of-films", "odp-devices",
    }  # fmt: skip

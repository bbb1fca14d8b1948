"""The table and the picture at the end."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from odp.evaluation.baselines import Baselines
from odp.evaluation.comparison import comparison_table, draw_progress

FOUND = Baselines(global_mean=1.1, user_mean=1.05, dp_item_mean=1.0, dp_item_user_bias=0.93, als_ceiling=0.85)


def test_the_table_states_every_error_and_its_privacy() -> None:
    out = Console(width=120)
    with out.capture() as captured:
        out.print(comparison_table(FOUND, 0.9123, 7.99, 1e-6))
    text = captured.get()
    for part in ("1.1000", "1.0500", "1.0000", "0.9123", "0.8500", "ε = 7.99, δ = 1e-06"):
        assert part in text


def test_a_run_without_noise_is_not_called_private() -> None:
    out = Console(width=120)
    with out.capture() as captured:
        out.print(comparison_table(FOUND, 0.9, math.inf, 1e-6))
    assert "no noise, not private" in captured.get()
    assert "inf" not in captured.get()


def test_the_picture_is_a_png_also_where_a_round_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "picture.png"
    draw_progress(path, rmse=[1.1, math.nan, 0.9], epsilon=[0.0, 1.5, 8.0], budget=8.0, baselines=FOUND)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 10_000

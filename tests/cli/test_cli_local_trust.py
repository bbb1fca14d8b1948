"""Tasks of local trust as a person makes them: what `odp task show` says, and what cannot be done with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odp.errors import ConfigurationError
from odp.tasks.file import load_task, parse_task

MODEL = """
name = "clicks"

[draw_and_discard]
epsilon = 1.0
features = { x = { kind = "number", size = 3 } }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    return path


def test_a_model_without_rounds_is_shown_with_what_a_report_costs(odp: Callable[..., Any], model: Path) -> None:
    shown = odp("task", "show", model).out
    assert parse_task(shown) == load_task(model)
    assert "# no rounds and no enclave: each report is private by itself" in shown
    assert "a device sends at most 1" in shown
    assert "# model_epsilon = 3.9" in shown
    assert "prior: uniform on the sphere" in shown
    assert "# computing time: 0.25 s on every device, whatever it holds" in shown
    found = odp("task", "show", model, "--json").json
    assert found["rounds"] == 0
    assert found["planned_epsilon"] == pytest.approx(4 * found["definition"]["drawAndDiscard"]["featureEpsilon"])


def test_what_needs_rounds_says_that_there_are_none(odp: Callable[..., Any], model: Path) -> None:
    for command, message in (
        (("task", "plan", model), "its devices fetch none"),
        (("privacy", "plan", "--task", model), "`odp task show` says what each report costs"),
        (
            ("simulate", model, "--data", "synthetic:n_users=60,n_items=12,ratings_per_user=6"),
            "simulate it by odp.load",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            odp(*command)

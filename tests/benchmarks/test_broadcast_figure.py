from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broadcast_figure import costs, main
from odp.errors import ConfigurationError


def report() -> dict[str, Any]:
    def figure(name: str, value: float, limit: float | None = None) -> dict[str, Any]:
        return {"name": name, "value": value, "limit": None if limit is None else {"name": "whole", "value": limit}}

    return {
        "figures": [
            figure("10 x 4 B: bytes down per device, enclave", 8.0, 40.0),
            figure("10 x 4 B: CPU per device, enclave, one at a time", 2.0, 5.0),
            figure("10 x 4 B: CPU per device, enclave, 12 at once", 1.0, 5.0),
            figure("10 x 4 B: CPU per device, the whole table", 5.0),
            figure("something else", 3.0),
        ]
    }


def test_the_figure_shows_the_reports_numbers() -> None:
    found = costs(report())
    assert found["bytes to a device"] == {"enclave": {"10 x 4 B": 8.0}, "all": {"10 x 4 B": 40.0}}
    assert found["processor time per device (ms)"] == {
        "enclave, one at a time": {"10 x 4 B": 2.0},
        "enclave, 12 at once": {"10 x 4 B": 1.0},
        "all": {"10 x 4 B": 5.0},
    }


@pytest.mark.parametrize("content", [{}, {"figures": [{}]}, {"figures": []}, {"figures": 3}])
def test_another_json_is_named(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="benchmarks distributor"):
        costs(content)


def test_a_picture_is_drawn_and_a_missing_file_is_an_exit_code(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report()))
    assert main([str(tmp_path / "report.json"), str(tmp_path / "cost.png")]) == 0
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(tmp_path / "missing.json"), str(tmp_path / "cost.png")]) == 1
    assert "missing.json" in capsys.readouterr().err

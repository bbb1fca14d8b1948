from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broadcast_figure import costs, main, table_of
from odp.errors import ConfigurationError


def report() -> dict[str, Any]:
    figures = [{"name": "something else", "value": 3.0}]
    for number, method in enumerate(("enclave", "all", "pir"), start=1):
        for what, value in (("bytes up per device", 10.0), ("bytes down per device", 1e3), ("CPU per device", 0.1)):
            figures.append({"name": f"10 x 4 B: {what}, {method}", "value": number * value})
    figures.append({"name": "10 x 4 B: CPU per device, pir, 12 at once", "value": 0.25})
    return {"figures": figures}


def test_the_figure_shows_the_reports_numbers() -> None:
    found = costs(report())
    table = "10 x 4 B"
    ways = {"enclave": 1, "all": 2, "pir": 3}
    assert found["bytes to a device"] == {way: {table: 1e3 * number} for way, number in ways.items()}
    assert found["bytes from a device"] == {way: {table: 10.0 * number} for way, number in ways.items()}
    assert found["processor time of all servers per device (ms)"]["pir"][table] == pytest.approx(0.3)


def test_the_table_has_a_line_per_method() -> None:
    lines = table_of(report()).splitlines()
    assert lines[2] == "| 10 x 4 B | `enclave` | 10 B | 1.0 kB | 0.1 ms |  |"
    assert lines[4] == "|  | `pir` | 30 B | 3.0 kB | 0.3 ms | 0.2 ms |"
    assert len(lines) == 5


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

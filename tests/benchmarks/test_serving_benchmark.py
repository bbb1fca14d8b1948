"""The benchmark of serving: its catalogue is what it says, its process measures, and its picture shows the numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.serving_data import catalogue
from benchmarks.serving_device import main as served
from benchmarks.serving_figure import lines, main
from odp.errors import ConfigurationError
from odp.serving import IndexedModel, save_index


def test_a_process_recommends_what_the_model_recommends_and_measures_itself(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is read from /proc")
    made = catalogue(800)
    save_index(made.index(), tmp_path / "items.index")
    person = made.person(0)
    rows = person["rows"]
    assert len(rows.items) == 100
    assert set(rows.values.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    np.savez(tmp_path / "items.index.people.npz", items=rows.items[None], values=rows.values[None])
    found: dict[str, Any] = served(str(tmp_path / "items.index"), str(tmp_path / "items.index"), 1)  # type: ignore[assignment]
    assert found["items"] == [IndexedModel.of(made.index()).recommend(person, k=20).items.tolist()]
    assert set(found["times"]) == {"recommend", "recommend, 2 threads", "scan"}
    assert found["peak"] < 100


def report() -> dict[str, Any]:
    figures: list[dict[str, Any]] = [{"name": "1,000 items: something else", "value": 3.0, "limit": None}]
    for items, size in (("1,000", 1.0), ("10,000", 10.0)):
        for name in ("best 20, p50", "scan alone, p50", "memory, at its peak"):
            figures.append({"name": f"{items} items: {name}", "value": size, "limit": {"name": "", "value": 2 * size}})
    return {"figures": figures}


def test_the_picture_shows_the_reports_numbers(tmp_path: Path, capsys: Any) -> None:
    found = lines(report())
    assert found["memory (MB)"] == {
        "index, at its peak": {1000: 1, 10_000: 10},
        "rows as float32": {1000: 2, 10_000: 20},
    }
    assert found["processor time of one recommendation (ms)"]["all of it"] == {1000: 2.0, 10_000: 20.0}
    (tmp_path / "report.json").write_text(json.dumps(report()))
    assert main([str(tmp_path / "report.json"), str(tmp_path / "serving.png")]) == 0
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(tmp_path / "missing.json"), str(tmp_path / "serving.png")]) == 1
    assert "missing.json" in capsys.readouterr().err


@pytest.mark.parametrize("content", [{}, {"figures": [{}]}, {"figures": []}, {"figures": 3}])
def test_another_json_is_named(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="benchmarks serving"):
        lines(content)

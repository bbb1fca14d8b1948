"""The service of `docs/isolated-service.md` runs as the page shows it, and its tables say what the code says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from odp.isolated import RIGHTS, DataKind

PAGE = Path(__file__).resolve().parents[3] / "docs" / "isolated-service.md"


@pytest.mark.skipif(sys.platform != "linux", reason="services need Linux")
def test_the_service_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service, trial = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "player.py").write_text(service)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(trial, "page", "exec"), names)
    assert names["page"] == "<h1>Bolero</h1>"
    (example,) = names["examples"]  # type: ignore[misc]
    assert example.columns == {"song": "song/calm/1", "value": 1.0}  # type: ignore[has-type]
    assert names["store"].get("asked") == b"1"  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


def test_the_page_shows_the_rights_that_hold() -> None:
    rows = re.findall(r"^\| `(on_\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(RIGHTS)
    for handler, rights in RIGHTS.items():
        (reads,) = (reads for name, _, reads, _ in rows if name == handler.value)
        (writes,) = (writes for name, _, _, writes in rows if name == handler.value)
        assert ("everything" in reads) == (rights.reads == frozenset(DataKind))
        assert ("downloads" in reads) == (rights.reads == {DataKind.DOWNLOADS})
        words = {"rows of its request": DataKind.REQUESTS, "local": DataKind.LOCAL, "events": DataKind.EVENTS}
        words["downloads"] = DataKind.DOWNLOADS
        assert {table for word, table in words.items() if word in writes} == rights.writes

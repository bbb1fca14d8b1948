"""`odp device doctor`: prints what is enforced, and its exit code says whether all of it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_runtime.isolated import process
from odp.cli.main import app
from odp.isolated.walls import PROMISES, RESTRICTIONS


def test_it_tells_of_every_promise_and_restriction_whether_it_holds() -> None:
    told = CliRunner().invoke(app, ["device", "doctor", "--json"])
    found = json.loads(told.stdout.strip().splitlines()[-1])
    services = found["services"]
    assert sorted(services["enforced"] + services["not_enforced"]) == sorted(PROMISES)
    assert sorted(services["restrictions"]["held"] + services["restrictions"]["refused"]) == sorted(RESTRICTIONS)
    assert told.exit_code == (1 if services["not_enforced"] else 0)
    assert {"python", "store", "keyring", "sensors"} <= set(found)


def test_its_exit_code_is_1_where_services_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_PROGRAM", tmp_path / "missing.py")
    told = CliRunner().invoke(app, ["device", "doctor", "--state", str(tmp_path)])
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("NOT ENFORCED")] == list(PROMISES)
    assert any(line.startswith("services do not run here") for line in lines)
    for name in RESTRICTIONS:
        assert any(f"REFUSED  {name} " in line for line in lines), name

"""The judge of trials: what it takes for a fault of the platform, and what for one that was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import trials

from odp.trust.log.sources import AuditFailure


class Server:
    """A deployment whose server writes half of an entry, and ends or goes on."""

    def __init__(self, root: Path, *, ends: bool) -> None:
        self.root, self.torn, self._ends = root, True, ends

    def has_ended(self, name: str) -> bool:
        return self._ends and self.torn

    def serving(self) -> None:
        self.torn = False

    def audit(self, source: Any, pins: Any) -> str:
        if self.torn:
            raise AuditFailure("file 'entries'", "no checkpoint covers the bytes behind entry 160")
        return "report"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = tmp_path / "server" / "log"
    log.mkdir(parents=True)
    for name in ("entries", "hashes", "checkpoint"):
        (log / name).touch()
    return tmp_path


def test_an_audit_is_repeated_where_the_server_meets_its_planned_fault_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment: Any = Server(folder, ends=True)
    monkeypatch.setattr(trials, "audit", deployment.audit)
    assert trials._audited(deployment, pins=None) == "report"  # type: ignore[arg-type]


def test_a_finding_beside_a_server_that_goes_on_stays_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment: Any = Server(folder, ends=False)
    monkeypatch.setattr(trials, "audit", deployment.audit)
    monkeypatch.setattr(trials, "_ENDING_SECONDS", 0.0)
    with pytest.raises(AuditFailure):
        trials._audited(deployment, pins=None)  # type: ignore[arg-type]

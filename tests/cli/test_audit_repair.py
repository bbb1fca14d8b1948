"""`odp audit repair`, as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trust.log.world import NOW, filler
from typer.testing import CliRunner

from odp.cli.audit import app
from odp.errors import ConfigurationError
from odp.trust.log.key_file import note_key
from odp.trust.log.log_files import CHECKPOINT, LogFiles


@pytest.mark.parametrize("place", ["server/log.key", "log.key"], ids=["of a server alone", "of `odp up`"])
def test_a_lost_checkpoint_is_restored_with_the_key_of_the_services(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "server" / "log"
    key = note_key(tmp_path / place, name="example.com/log")
    with LogFiles.open(folder, key, now=NOW) as log:
        log.append(filler(3), now=NOW)
        (tmp_path / "witness").write_bytes(log.checkpoint.body)
    (folder / CHECKPOINT).unlink()
    arguments = ["repair", "--services", str(tmp_path), "--checkpoint", str(tmp_path / "witness"), "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"log": str(folder), "size": 3, "own": 3, "signed_anew": True}
    with LogFiles.open(folder, key, now=NOW) as log:
        assert log.size == 3


def test_without_the_key_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    done = CliRunner().invoke(app, ["repair", "--log", str(tmp_path / "log")])
    assert isinstance(done.exception, ConfigurationError)
    assert "give the log's private key with --log-key" in str(done.exception)
    assert list(tmp_path.iterdir()) == [tmp_path / "log"]

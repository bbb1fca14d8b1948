"""`odp audit verify`: one screen or one JSON object, and the exit code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed
from trust.log.run import Run
from trust.log.world import NOW
from typer.testing import CliRunner

from odp._system.files.state_folder import StateFolder
from odp.cli.main import app
from odp.errors import ConfigurationError
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.log.log_files import LogFiles
from odp.trust.log.released_values import VALUES, ReleasedValues
from odp.v1 import log_pb2_grpc
from server.log_servicer import NAME, log_servicer


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run's log in ``log``, and what is pinned in ``pins.json``."""
    made = Run(EmulatedPlatform.open(tmp_path / "platform", clock=lambda: NOW))
    made.write(tmp_path / "log", made.entries())
    made.pins().save(tmp_path / "pins.json")
    return made


def test_a_log_that_holds_is_one_screen(odp: Callable[..., Printed], run: Run, tmp_path: Path) -> None:
    printed = odp("audit", "verify", "--log", tmp_path / "log", "--reference-values", tmp_path / "pins.json")
    assert printed.err == ""
    for part in ("audit passed", "films", "12 entries", "2/2", run.log_key.name, "witnesses: none"):
        assert part in printed.out, printed.out
    assert len(printed.out.splitlines()) < 40


def test_a_log_that_holds_as_json(odp: Callable[..., Printed], run: Run, tmp_path: Path) -> None:
    found = odp(
        "audit", "verify", "--log", tmp_path / "log", "--reference-values", tmp_path / "pins.json", "--json"
    ).json
    assert found["passed"] is True
    assert found["size"] == sum(found["entries"].values()) == 12
    (task,) = found["tasks"]
    assert task["contributions"] == [5, 5]
    assert 0 < task["epsilon"] <= task["budget"] == 8.0


def test_a_log_that_does_not_hold_names_the_record_and_ends_with_code_1(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log" / "entries"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    arguments = ["audit", "verify", "--log", str(tmp_path / "log"), "--reference-values", str(tmp_path / "pins.json")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "audit failed" in done.stdout
    assert "entry 11 (model)" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 1
    assert '"passed": false' in done.stdout
    assert '"record": "entry 11 (model)"' in done.stdout


def test_the_log_of_a_running_server_is_audited_over_the_network(
    odp: Callable[..., Printed], run: Run, tmp_path: Path
) -> None:
    with (
        StateFolder.open(tmp_path / "state", "server") as state,
        LogFiles.open(tmp_path / "log", run.log_key, now=NOW) as log,
    ):
        identity = development_identity(state, tmp_path / "ca")
        values = ReleasedValues(log.folder / VALUES, state.health)
        service = log_servicer(log, values, Log("server"))
        running = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=lambda server: log_pb2_grpc.add_LogServiceServicer_to_server(service, server),
            service_names=[NAME],
        )
        try:
            found = odp(
                "audit", "verify", "--address", running.address, "--ca", tmp_path / "ca" / "ca.pem",
                "--reference-values", tmp_path / "pins.json", "--json",
            ).json  # fmt: skip
        finally:
            running.stop(0.1)
    assert found["passed"] is True
    assert found["log"] == running.address
    assert found["size"] == 12


def test_defaults_come_from_the_state_folder_of_up(odp: Callable[..., Printed], run: Run, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "log", tmp_path / "odp-state" / "server" / "log")
    shutil.copy(tmp_path / "pins.json", tmp_path / "odp-state" / "reference_values.json")
    assert odp("audit", "verify", "--services", tmp_path / "odp-state", "--json").json["passed"]
    with pytest.raises(ConfigurationError, match="cannot read the reference values"):
        odp("audit", "verify", "--services", tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="got both"):
        odp("audit", "verify", "--log", tmp_path, "--address", "127.0.0.1:1", "--services", tmp_path / "odp-state")

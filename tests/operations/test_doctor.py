"""`odp doctor` beside real programs, of which one dies, and beside endpoints, clocks and folders that are not well."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

import odp
from odp._system.files.state_folder import StateFolder
from odp.cli.main import app
from odp.operations.doctor import Deployment, Finding, examine, examine_listener, examine_metrics
from odp.operations.local.processes import Services
from odp.operations.metrics import Endpoint, Metrics
from odp.transport.tls import development_identity
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues

DAY = 86_400.0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("services")
    with Services(folder, policy=EnclavePolicy(role="aggregator", minimum_cohort=20)) as running:
        yield running


def _states(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in findings}


def _server(services: Services, *, now: float) -> list[Finding]:
    values = ReferenceValues.load(services.reference_values)
    return list(examine_listener("server", services.server_address, services.ca.read_bytes(), values, now=now))


@pytest.mark.processes
def test_a_deployment_that_is_well_passes(services: Services) -> None:
    done = CliRunner().invoke(app, ["doctor", "--services", str(services.root), "--strict", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["passed"]
    seen = {(finding["subject"].split()[0], finding["check"]) for finding in found["findings"]}
    for role in ("server", "distributor", "aggregator", "issuer"):
        assert {(role, "certificate"), (role, "health")} <= seen
    assert {("server", "log"), ("distributor", "enclave"), ("aggregator", "enclave"), ("folder", "disk")} <= seen
    table = CliRunner().invoke(app, ["doctor", "--services", str(services.root)])
    assert table.exit_code == 0
    assert "failure" not in table.stdout


@pytest.mark.processes
def test_a_certificate_near_its_end_and_clocks_apart_are_told(services: Services) -> None:
    now = time.time()
    assert _states(_server(services, now=now)) == {"certificate": "ok", "health": "ok", "log": "ok"}
    assert _states(_server(services, now=now + 3640 * DAY))["certificate"] == "warning"
    assert _states(_server(services, now=now + 400))["log"] == "failure", "signed too long ago"
    (clock,) = [finding for finding in _server(services, now=now - 200) if finding.check == "clock"]
    assert clock.state == "failure"
    assert "in the future" in clock.told


def _enclave(services: Services, *, days: float) -> Finding:
    """What is found of the aggregator's enclave in so many days."""
    values = ReferenceValues.load(services.reference_values)
    address = services.children["aggregator"].address
    found = examine_listener("aggregator", address, services.ca.read_bytes(), values, now=time.time() + days * DAY)
    (finding,) = [finding for finding in found if finding.check == "enclave"]
    return finding


@pytest.mark.processes
def test_r382_the_end_of_a_chips_certificate_is_told_before_and_after_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _enclave(services, days=0).state == "ok"
    # Images are endorsed, and tokens last, for less than a chip.
    monkeypatch.setattr("odp.operations.doctor.WARN_DAYS", 8 * 365.0)
    soon = _enclave(services, days=0)
    assert (soon.state, "the certificate of its chip ends in" in soon.told) == ("warning", True)
    ended = _enclave(services, days=2600)
    assert ended.state == "failure"
    assert "chain_expired" in ended.told
    assert "certify it again" in ended.todo


@pytest.mark.processes
def test_an_enclave_that_devices_refuse_and_a_wrong_authority_fail(services: Services, tmp_path: Path) -> None:
    values = json.loads(services.reference_values.read_text())
    for role in values["image_digests"]:
        values["image_digests"][role] = ["sha384:" + "0" * 96]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(values))
    command = ["doctor", "--services", str(services.root), "--reference-values", str(other), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    failed = {
        (finding["subject"].split()[0], finding["check"])
        for finding in json.loads(done.stdout.splitlines()[-1])["findings"]
        if finding["state"] == "failure"
    }
    assert failed == {("distributor", "enclave"), ("aggregator", "enclave")}

    with StateFolder.open(tmp_path / "stranger", "server") as state:
        pem = development_identity(state).ca_pem
    (refused,) = examine_listener("server", services.server_address, pem, None, now=time.time())
    assert (refused.check, refused.state) == ("certificate", "failure")


@pytest.mark.processes
def test_a_program_that_is_gone_is_one_line(services: Services) -> None:
    services.children["distributor"].stop()
    done = CliRunner().invoke(app, ["doctor", "--services", str(services.root), "--json"])
    assert done.exit_code == 1
    found = [one for one in json.loads(done.stdout.splitlines()[-1])["findings"] if one["state"] == "failure"]
    assert [(one["subject"].split()[0], one["check"]) for one in found] == [("distributor", "reachable")]
    assert "start the program" in found[0]["todo"]


def test_an_endpoint_tells_version_clock_and_disk(tmp_path: Path) -> None:
    endpoint = Endpoint("127.0.0.1:0", Metrics("aggregator", tmp_path).registry)
    try:
        well = list(examine_metrics(endpoint.address))
        assert _states(well) == {"version": "ok", "clock": "ok", "disk": "ok"}
        assert well[0].subject.startswith("aggregator ")
        for apart, state in ((8.0, "warning"), (-8.0, "warning"), (90.0, "failure"), (-90.0, "failure")):
            found = _states(list(examine_metrics(endpoint.address, clock=lambda apart=apart: time.time() + apart)))
            assert found["clock"] == state, apart
    finally:
        endpoint.close()
    assert _states(list(examine_metrics(endpoint.address))) == {"reachable": "failure"}


class _Stranger(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is logged."""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"<html>hello</html>", {"reachable": "failure"}),
        (b"\xff\xfe", {"reachable": "failure"}),
        (b"", {"reachable": "failure"}),
        (
            b'odp_info{program="server",version="9.9"} 1\n',
            {"version": "warning", "clock": "ok", "disk": "not examined"},
        ),
        (
            f'odp_info{{program="server",version="{odp.__version__}"}} 1\nodp_disk_free_bytes 1e6\n'.encode(),
            {"version": "ok", "clock": "ok", "disk": "warning"},
        ),
    ],
)
def test_what_an_endpoint_answers_is_checked(body: bytes, found: dict[str, str]) -> None:
    class Answering(_Stranger):
        pass

    Answering.body = body
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert _states(list(examine_metrics(f"127.0.0.1:{server.server_address[1]}"))) == found
        server.shutdown()
        thread.join(10)


def test_folders_that_others_may_enter_or_that_are_none_are_told(tmp_path: Path) -> None:
    state = tmp_path / "server"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    (state / "format").write_text("odp server 1\n")
    deployment = Deployment(programs={}, ca=b"", folders=(state, tmp_path / "none"))
    found = [(finding.check, finding.state) for finding in examine(deployment)]
    assert found[:2] == [("state", "ok"), ("permissions", "failure")]
    assert found[-1] == ("state", "failure")


def test_wrong_options_are_one_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--services", str(tmp_path)])
    assert done.exit_code != 0
    assert "odp up" in str(done.exception)

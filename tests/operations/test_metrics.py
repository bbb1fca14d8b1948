"""Metrics: what they count, who may read them, and that dashboard, alerts and docs name no others."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from odp.errors import ConfigurationError
from odp.operations import metrics as endpoint_module
from odp.operations.metrics import MOST_CALLERS, MOST_TASKS, WATCHED, Endpoint, Metrics
from odp.transport import observing
from odp.transport.logs import FORMAT_VARIABLE, Log

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_NAME = re.compile(r"\b(?:odp|process)_[a-z_]+[a-z]\b")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(observing, "_observers", [])
    monkeypatch.setattr(observing, "_watched", {})
    found = Metrics("server", tmp_path, clock=lambda: 1000.0)
    observing.observe(found)
    return found


def value(measured, name, **labels):
    return measured.registry.get_sample_value(name, labels)


def names(measured):
    """Of all series, those of no value yet included."""
    for name in WATCHED:
        measured.watch(name, lambda: 0.0)
    measured.call_ended("/m", "OK", 0.1)
    measured.contribution("MALFORMED")
    measured.logged("info", "round_released", {"task": "t", "epsilon_spent": 1.0})
    found = set()
    for family in measured.registry.collect():
        found |= {family.name} | {sample.name for sample in family.samples}
    return found


def test_calls_contributions_events_and_releases_are_counted(measured):
    observing.call_ended("/odp.v1.ServerService/CheckIn", "OK", 0.02)
    observing.contribution()
    observing.contribution("MALFORMED")
    log = Log("server", stream=io.StringIO())
    for number in range(MOST_TASKS + 5):
        log.event(
            "round_released", task=f"t{number}", round=3, contributions=70, epsilon_spent=1.5, epsilon_remaining=6.5
        )
    assert value(measured, "odp_rpc_total", method="/odp.v1.ServerService/CheckIn", code="OK") == 1
    assert value(measured, "odp_contributions_accepted_total") == 1
    assert value(measured, "odp_contributions_refused_total", reason="MALFORMED") == 1
    assert value(measured, "odp_events_total", level="info", event="round_released") == MOST_TASKS + 5
    assert value(measured, "odp_last_release_time_seconds") == 1000.0
    assert value(measured, "odp_task_epsilon_remaining", task=f"t{MOST_TASKS}") == 6.5
    assert value(measured, "odp_task_epsilon_spent", task="t0") is None, "the oldest tasks are dropped"
    assert value(measured, "odp_disk_free_bytes") > 0


def test_what_a_program_says_of_itself_is_shown_whenever_it_began_to(tmp_path, monkeypatch):
    monkeypatch.setattr(observing, "_observers", [])
    monkeypatch.setattr(observing, "_watched", {})
    observing.watch("active_tasks", lambda: 7.0)
    found = Metrics("server", tmp_path)
    observing.observe(found)
    assert found.registry.get_sample_value("odp_tasks_active") == 7.0
    assert observing.observed()
    observing.watch("active_tasks", lambda: 8.0)
    assert found.registry.get_sample_value("odp_tasks_active") == 8.0, "what is said last counts"
    observing.figures({"task": "abc", "epsilon_spent": 2.5})
    assert found.registry.get_sample_value("odp_task_epsilon_spent", {"task": "abc"}) == 2.5
    assert found.registry.get_sample_value("odp_last_release_time_seconds") == 0.0, "it was released before"


def _get(address, path, method="GET"):
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_endpoint_serves_two_pages_and_nothing_else(measured):
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    try:
        status, text = _get(endpoint.address, "/metrics")
        assert status == 200
        assert 'odp_info{program="server",version=' in text
        assert _get(endpoint.address, "/healthz") == (200, "ok\n")
        assert _get(endpoint.address, "/")[0] == 404
        assert _get(endpoint.address, "/metrics", method="POST")[0] == 501
        with pytest.raises(ConfigurationError, match="cannot serve metrics"):
            Endpoint(endpoint.address, measured.registry)
    finally:
        endpoint.close()


def test_r403_a_program_that_starts_or_drains_lives_and_is_not_ready(measured, monkeypatch):
    for event in ("_serving", "_draining"):
        monkeypatch.setattr(observing, event, threading.Event())
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    try:
        assert _get(endpoint.address, "/readyz") == (503, "starting\n")
        assert _get(endpoint.address, "/healthz") == (200, "ok\n")
        observing.serve()
        assert _get(endpoint.address, "/readyz") == (200, "ok\n")
        observing.drain()
        assert _get(endpoint.address, "/readyz") == (503, "draining\n")
        assert _get(endpoint.address, "/healthz") == (200, "ok\n")
    finally:
        endpoint.close()


def test_a_thread_that_cannot_start_keeps_no_place(measured, monkeypatch):
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _no_thread)
            for _ in range(MOST_CALLERS + 2):
                assert _answered(endpoint.address) == 0
        assert _answered(endpoint.address) == 200
    finally:
        endpoint.close()


def _no_thread(_):
    raise RuntimeError("can't start new thread")


def test_r362_callers_that_drip_keep_no_probe_out(measured):
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    host, port = endpoint.address.split(":")
    dripping = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2 * MOST_CALLERS)]
    ended = threading.Event()

    def drip():
        while not ended.wait(0.05):
            for each in dripping:
                with contextlib.suppress(OSError):
                    each.sendall(b"G")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert [_answered(endpoint.address) for _ in range(5)] == [200] * 5
        assert dripping[0].recv(1) == b"", "it has been there for longest"
    finally:
        ended.set()
        thread.join()
        for each in dripping:
            each.close()
        endpoint.close()


def test_r362_a_request_that_drips_ends_when_its_time_is_over(measured, monkeypatch):
    monkeypatch.setattr(endpoint_module, "_SECONDS", 0.3)
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    host, port = endpoint.address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=0.02) as caller:
            for _ in range(500):  # 10 s of one byte each
                with contextlib.suppress(TimeoutError, ConnectionError):
                    caller.sendall(b"G")
                    if caller.recv(1) == b"":
                        break
            else:
                pytest.fail("it may drip for ever")
    finally:
        endpoint.close()


def test_probes_have_a_port_without_metrics():
    endpoint = Endpoint("127.0.0.1:0")
    try:
        assert _get(endpoint.address, "/healthz") == (200, "ok\n")
        assert _get(endpoint.address, "/metrics")[0] == 404
    finally:
        endpoint.close()


@pytest.mark.parametrize(
    ("name", "status"),
    [("127.0.0.1:9200", 200), ("[::1]:9200", 200), ("localhost", 200), ("server:9200", 200),
     ("rebound.example:9200", 421), ("rebound.example", 421)],
)  # fmt: skip
def test_r362_a_foreign_name_for_this_machine_is_refused(measured, name, status):
    endpoint = Endpoint("127.0.0.1:0", measured.registry)
    try:
        connection = http.client.HTTPConnection(endpoint.address, timeout=10)
        connection.request("GET", "/metrics", headers={"Host": name})
        assert connection.getresponse().status == status
        connection.close()
    finally:
        endpoint.close()


def _answered(address):
    try:
        return _get(address, "/healthz")[0]
    except (OSError, http.client.HTTPException):
        return 0


def test_logs_are_json_where_the_environment_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    with (tmp_path / "log").open("w+") as file:
        Log("server", stream=file).event("serving", address="127.0.0.1:1")
        file.seek(0)
        line = json.loads(file.read())
    assert (line["program"], line["event"], line["address"]) == ("server", "serving", "127.0.0.1:1")
    with (tmp_path / "log").open("w+") as file:
        Log("server", stream=file).event("odd", level="high", time="never", program="other")
        file.seek(0)
        line = json.loads(file.read())
    assert (line["level"], line["program"], line["event"]) == ("info", "server", "odd")
    assert (line["level_"], line["time_"], line["program_"]) == ("high", "never", "other")


@pytest.fixture(scope="module")
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    return found


def test_the_alert_rules_are_valid_and_do_what_their_tests_say(promtool):
    folder = DEPLOY / "prometheus"
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules.test.yml"]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_expression_of_the_dashboard_parses(promtool, tmp_path):
    rules = "groups:\n  - name: dashboard\n    rules:\n"
    for number, expression in enumerate(_expressions()):
        rules += f"      - record: panel:{number}\n        expr: {json.dumps(expression)}\n"
    (tmp_path / "rules.yml").write_text(rules)
    command = [promtool, "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _expressions():
    dashboard = json.loads((DEPLOY / "grafana" / "odp.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_and_alerts_name_only_metrics_that_there_are(measured):
    known = names(measured) | {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    used = set(_NAME.findall(" ".join(_expressions()))) | {
        name for line in re.findall(r"expr:(.*?)(?:for|labels):", rules, re.DOTALL) for name in _NAME.findall(line)
    }
    assert used
    assert used <= known


def test_the_docs_list_every_metric(measured):
    table = (ROOT / "docs" / "operating.md").read_text()
    shown = {name for name in names(measured) if name.startswith("odp_") and not name.endswith(("_created", "_bucket"))}
    families = {re.sub(r"_(total|sum|count)$", "", name) for name in shown}
    assert not {name for name in families if f"`{name}" not in table}

"""What a span holds, and what it does not; e2e/test_traces.py has those of real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from odp.errors import ConfigurationError, ServiceError
from odp.operations.traces import OpenTelemetry
from odp.transport import observing

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is not installed: pip install 'odp-platform[traces]'")


def _failing_step(tracer: OpenTelemetry) -> None:
    with observing.span("open", task="abc", round=1):
        with tracer.call("/odp.v1.X/Y") as metadata:
            assert [name for name, _ in metadata] == ["traceparent"]
        raise ServiceError("a secret of somebody")


def test_errors_leave_their_kind_and_not_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_tracers", [])
    tracer = OpenTelemetry("server", f"file:{tmp_path / 'spans'}")
    observing.trace(tracer)
    with pytest.raises(ServiceError):
        _failing_step(tracer)
    with tracer.call("/odp.v1.X/Z") as metadata:
        assert metadata == [], "a call outside of spans takes nothing along"
    stranger = [("traceparent", "00-" + "ab" * 5), ("tracestate", "x=y")]
    with tracer.serve("/odp.v1.X/Z", stranger):
        pass
    tracer.close()
    text = (tmp_path / "spans").read_text()
    assert "secret" not in text
    call, span = (json.loads(line) for line in text.splitlines())
    assert call["parent_id"] == span["context"]["span_id"]
    assert (span["name"], span["status"]["status_code"]) == ("open", "ERROR")
    assert span["attributes"] == {"odp.task": "abc", "odp.round": 1, "error.type": "ServiceError"}


@pytest.mark.parametrize("target", ["collector:4317", "", "file:", "file:/nowhere/at/all"])
def test_a_wrong_target_is_one_error(target: str) -> None:
    with pytest.raises(ConfigurationError, match="traces"):
        OpenTelemetry("server", target)


def test_without_traces_nothing_of_opentelemetry_is_loaded() -> None:
    code = "import sys, odp.cli.main, server.program, odp.transport.front; assert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

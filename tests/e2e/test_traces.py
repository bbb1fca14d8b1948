"""Traces: what the server does for a task is one trace through the others, and devices are in none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from e2e import crash
from e2e.killing import DEVICE_HOST, Platform, a_task, crashing_at

from odp.operations.local.processes import ODP, Child, Services
from odp.trust.enclave.policy import EnclavePolicy

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is not installed: pip install 'odp-platform[traces]'")


class TracedServices(Services):
    """Services of which the server, the aggregator and the distributor write traces into files."""

    def start_child(self, name: str, port: int, *, command: tuple[str, ...] = ODP) -> Child:  # type: ignore[override]
        if name not in ("server", "aggregator", "distributor"):
            return super().start_child(name, port, command=command)
        # The option is one of `run`.
        traced = crashing_at(f"{crash.LAST}--traces=file:{self.root / name}.jsonl")
        return super().start_child(name, port, command=traced)


class TracedPlatform(Platform):
    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        return TracedServices(root, policy=policy)


def _spans(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.processes
def test_a_round_is_one_trace_through_the_programs_and_devices_are_in_none(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    platform = TracedPlatform(tmp_path, stack)
    task = a_task()
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.check(task)
    platform.services.stop()
    found = {name: _spans(tmp_path / f"{name}.jsonl") for name in ("server", "aggregator", "distributor")}

    begun = {span["context"]["trace_id"]: span for span in found["server"] if span["parent_id"] is None}
    assert {span["name"] for span in begun.values()} == {"publish", "open", "close", "apply"}
    rounds = [span["attributes"]["odp.round"] for span in begun.values() if span["name"] == "close"]
    assert sorted(set(rounds)) == list(range(len(set(rounds))))
    assert len({span["attributes"]["odp.task"] for span in begun.values()}) == 1
    of = {
        name: {(begun[span["context"]["trace_id"]]["name"], span["name"]) for span in found[name]}
        for name in ("aggregator", "distributor")
    }
    assert ("open", "odp.v1.AggregatorControlService/OpenRound") in of["aggregator"]
    assert ("close", "odp.v1.AggregatorControlService/CloseRound") in of["aggregator"]
    assert ("publish", "odp.v1.DistributorControlService/Publish") in of["distributor"]
    calls = {span["context"]["span_id"] for span in found["server"] if span["kind"] == "SpanKind.CLIENT"}
    for span in (*found["aggregator"], *found["distributor"]):
        assert span["parent_id"] in calls, "nothing begins here"
        assert "Control" in span["name"], "a device's call is in no trace"
        assert set(span["attributes"]) <= {"rpc.system", "rpc.service", "rpc.method"}
        assert span["events"] == []

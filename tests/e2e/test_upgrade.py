"""`odp enclave upgrade` between two images, as programs: a population goes on with what it had left."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.killing import DATA, ArmedServices, a_task
from e2e.world import POPULATION, wait_finished

from odp.client import connect
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.local.processes import ODP, Services
from odp.task import Task
from odp.transparency.audit import AuditReport, audit
from odp.transparency.sources import LogFolder

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS = 300.0
POLICY = EnclavePolicy(role="aggregator", minimum_cohort=20)


def _odp(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*ODP, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _run(root: Path, services: Services, task: Task) -> None:
    """One task, from its submission to its end."""
    with connect(services.server_address, state=root) as connection:
        handle = connection.submit(task)
        _odp(
            "device", "run", "--population", POPULATION, "--server", services.server_address, "--services", str(root),
            "--state", str(root / "devices"), "--data", DATA, "--min-cohort", "20", "--until-finished",
        )  # fmt: skip
        wait_finished(handle)


def _audited(root: Path) -> AuditReport:
    return audit(LogFolder(root / "server" / "log"), ReferenceValues.load(root / "reference_values.json"))


def _upgraded(root: Path, options: Sequence[str] = ()) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_odp("enclave", "upgrade", "--services", str(root), "--json", *options).stdout)
    return told


def test_a_population_goes_on_under_the_next_version_of_the_code(tmp_path: Path) -> None:
    """The first task runs under one image, the second under another, on the ledger of the first."""
    task = a_task()
    with ArmedServices(tmp_path, policy=POLICY) as old:
        _run(tmp_path, old, task)
        told = _upgraded(tmp_path)
        assert told["populations"] == [POPULATION]
        assert told["from"] != told["to"]
    before = (tmp_path / "aggregator" / "sealed.db").read_bytes()
    with Services(tmp_path, policy=POLICY) as new:
        assert (tmp_path / "aggregator.handed-over-0" / "sealed.db").read_bytes() == before
        _run(tmp_path, new, dataclasses.replace(task, name="films-again"))
    report = _audited(tmp_path)
    assert (report.counts["hand-over"], report.counts["evidence"]) == (1, 2)
    first, second = report.tasks
    assert first.epsilon == pytest.approx(second.epsilon)
    entries = (tmp_path / "server" / "log" / "entries").read_bytes()
    assert told["from"].encode() in entries

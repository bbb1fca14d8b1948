"""One trial: what the services do under one kind of fault, and everything that must hold afterwards."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from e2e import shifted_clock
from faults.configurations import CONFIGURATIONS
from faults.deployment import Deployment
from faults.device_host import DeviceHost, Plan
from faults.disk import Machine
from faults.kinds import KINDS
from faults.sessions import WaitingSessions
from faults.verdicts import require_charged_as_counted, require_named_failure, require_spent
from faults.works import work_of

from device_runtime import Store
from odp.errors import OdpError
from odp.signed.task import open_task, task_sha256
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import AuditReport, audit
from odp.trust.log.records import TaskFindings
from odp.trust.log.sources import AuditFailure, LogFolder
from odp.v1 import common_pb2, server_pb2

_FAILED = server_pb2.TaskStatus.STATE_FAILED
_BEHIND_SECONDS = 5.0
# Between a server's release of its log and the end of its process.
_ENDING_SECONDS = 20.0
_SERVER = "server"


def run_trial(
    deployment: Deployment, layer: Path, number: int, configuration: str, kind: str, draws: random.Random
) -> tuple[str, str]:
    """("finished" or "failed", what happened). Raises AssertionError, Stuck where something does not hold."""
    name, of = f"trial-{number}", CONFIGURATIONS[configuration]
    folder = Path(f"{deployment.root}.{name}")
    plan = Plan(
        root=str(deployment.root), server_address=deployment.services.server_address, configuration=configuration,
        population=name, folder=str(folder), clock=str(folder / "clock"),
    )  # fmt: skip
    plan.state.parent.mkdir(parents=True)
    shifted_clock.create(Path(plan.clock))
    deployment.serving()
    work = work_of(deployment, of, name)
    work.begin()
    with contextlib.ExitStack() as stack:
        devices = DeviceHost(plan, Machine(layer, plan.state.parent, folder / "shadow"))
        stack.callback(devices.kill)
        struck = draws.randrange(of.trainings)
        deployment.until(lambda: work.go_on() or work.begun > struck, what=f"the begin of training {struck}")

        def is_over() -> bool:
            with contextlib.suppress(OdpError):
                return work.go_on()
            return False

        happened = KINDS[kind](deployment, devices, is_over, draws)
        sessions = WaitingSessions(deployment)

        def has_ended() -> bool:
            devices.keep_running()
            sessions.shorten()
            return work.go_on()

        deployment.until(has_ended, what=f"the end of the task ({kind}: {happened})")
    deployment.serving()
    statuses = deployment.until(work.statuses, what="the statuses")
    findings = _findings(deployment, statuses)
    failures = [status.failure for status in statuses if status.state == _FAILED]
    for status in statuses:
        charged = _charged(plan.state, task_sha256(status.task))
        assert len(charged) == of.devices
        if status.state == _FAILED:
            require_named_failure(configuration, status.failure)
        if of.local:
            _check_reports(deployment, status, charged)
        else:
            _check_rounds(deployment, status, findings[_id(status)], charged)
    return ("failed", f"{happened}: {failures[0]}") if failures else ("finished", happened)


def _findings(deployment: Deployment, statuses: Sequence[server_pb2.TaskStatus]) -> dict[str, TaskFindings]:
    """What an audit beside the running server finds of each task; of two servers one may be a moment behind."""
    pins = ReferenceValues.load(deployment.services.reference_values)
    end = time.monotonic() + (_BEHIND_SECONDS if deployment.databases else 0.0)
    while True:
        report = _audited(deployment, pins)
        findings = {task.task_id: task for task in report.tasks}
        rounds = [findings[task_id].rounds if (task_id := _id(status)) in findings else -1 for status in statuses]
        if rounds == [len(released(status)) for status in statuses] or time.monotonic() >= end:
            return findings


def _audited(deployment: Deployment, pins: ReferenceValues) -> AuditReport:
    """An audit of the server's log; a second one where the server ends meanwhile, since it meets its fault only now.

    What such a server was writing is a finding, until it starts again and cuts that off.
    """
    folder = deployment.root / _SERVER / "log"
    try:
        return audit(LogFolder(folder), pins)
    except AuditFailure:
        end = time.monotonic() + _ENDING_SECONDS
        while not deployment.has_ended(_SERVER):
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)
        deployment.serving()
        return audit(LogFolder(folder), pins)


def _check_reports(deployment: Deployment, status: server_pb2.TaskStatus, charged: Mapping[str, Sequence[int]]) -> None:
    """Each device reported once, was counted once, and is charged for it."""
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED
    assert (status.reports, list(status.rounds)) == (len(charged), [])
    answers = deployment.until(lambda: deployment.connection.results(status), what="the answers")
    assert answers.contributions == len(charged)
    require_charged_as_counted(charged, [0])


def _check_rounds(
    deployment: Deployment, status: server_pb2.TaskStatus, finding: TaskFindings, charged: Mapping[str, Sequence[int]]
) -> None:
    """Each round was released, charged and logged once, and each device is charged for what it counted in."""
    failed, releases = status.state == _FAILED, released(status)
    if not failed:
        assert len(status.rounds) == status.planned_rounds
        assert [entry.contributions for entry in status.rounds] == [len(charged)] * status.planned_rounds
    logged = f"the log has {finding.rounds} releases, the server {len(releases)}; failure: {status.failure or 'none'}"
    assert finding.rounds == len(releases), logged
    ledger = deployment.until(lambda: deployment.connection.ledger(status), what="the ledger").ledger()
    ledger.verify()
    rounds = [entry.round for entry in ledger.entries if entry.events and entry.task_id == _id(status)]
    assert rounds == sorted(set(rounds)), "each round is charged once"
    assert finding.charged_epsilon <= open_task(status.task).privacy.epsilon * (1 + 1e-9)
    if not failed:
        assert rounds == list(range(status.planned_rounds)), "nothing else is charged"
        spent = common_pb2.Release.FromString(releases[-1]).epsilon_spent
        assert finding.epsilon == pytest.approx(spent, rel=1e-9), "what the enclave states follows from the releases"
        assert finding.charged_epsilon == pytest.approx(spent, rel=1e-9), "and from the charges"
    without_sum = status.rounds[-1].round if failed else None
    require_charged_as_counted(charged, rounds, without_sum=without_sum)
    if failed and without_sum not in rounds:
        require_spent(charged, status.rounds[-1].round)


def _charged(state: Path, task: bytes) -> dict[str, list[int]]:
    """By device, the rounds of a task that its store charges the person for."""
    charged = {}
    for path in sorted(state.glob("devices/*/*.sqlite")):
        with Store.open(path) as store:
            charged[path.stem] = [one.round for one in store.charged() if one.terms.task_sha256 == task]
    return charged


def released(status: server_pb2.TaskStatus) -> list[bytes]:
    """Of the rounds that have one: that of an open round is there, and empty."""
    return [entry.release.release for entry in status.rounds if entry.release.release]


def _id(status: server_pb2.TaskStatus) -> str:
    return task_sha256(status.task).hex()

"""Every combination of algorithm, aggregation, sampling and broadcast that a task can be made with runs to its end.

The services are real programs, whose enclaves can open no file: what one loads late, on any path of any task, fails
here. As many tasks as an enclave has populations run at once, each with a device host of its own. CI runs tasks
that have each option once; the enclaves of all others run in ``trusted_aggregator/enclave/test_recorded.py``, and
`make proof` runs all of them here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from pathlib import Path

import pytest
from e2e.combination_devices import devices_of
from e2e.killing import UnattackedServices
from selection import selected_params
from task_combinations import COMBINATIONS, DEVICES, Combination

from odp.services.connection import TaskHandle, connect
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import server_pb2
from trusted_aggregator.state.limits import MOST_POPULATIONS

pytestmark = pytest.mark.processes

SECONDS = 240.0
RUN = [combination for combination in COMBINATIONS if combination.is_distinct]


def _options(combination: Combination) -> set[tuple[str, str]]:
    """By name: "full" and "" stand for what nobody chose."""
    return {(field.name, getattr(combination, field.name)) for field in dataclasses.fields(combination)}


def _covering(combinations: list[Combination]) -> list[Combination]:
    """Few of them, which have every option that any of them has."""
    left, chosen = set[tuple[str, str]]().union(*map(_options, combinations)), []
    while left:
        chosen.append(max(combinations, key=lambda combination: len(_options(combination) & left)))
        left -= _options(chosen[-1])
    return chosen


IN_CI = _covering(RUN)


@pytest.fixture(scope="module")
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Combination, server_pb2.TaskStatus]:
    """The last status of each task whose test is selected, and what failed before."""
    run = selected_params(request, "combination", test_a_task_of_every_combination_finishes)
    root, statuses = tmp_path_factory.mktemp("combinations"), {}
    for first in range(0, len(run), MOST_POPULATIONS):
        statuses.update(_finished(run[first : first + MOST_POPULATIONS], root / str(first)))
    return statuses


def _finished(combinations: list[Combination], root: Path) -> dict[Combination, server_pb2.TaskStatus]:
    policy = EnclavePolicy(role="aggregator", minimum_cohort=DEVICES)
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(
            UnattackedServices(root, policy=policy, helper=True, aggregator_options=["--secagg-silent", "60"])
        )
        connection = stack.enter_context(connect(services.server_address, state=root))
        handles = {one: connection.submit(one.task(services.helper_key)) for one in combinations}
        for combination, handle in handles.items():
            _until(lambda handle=handle: bool(handle.status().rounds))
            stack.callback(devices_of(services, combination).stop)
        return {one: _ended(handle) for one, handle in handles.items()}


def _until(holds: object) -> None:
    pause, end = threading.Event(), time.monotonic() + SECONDS
    while time.monotonic() < end:
        if holds():  # type: ignore[operator]
            return
        pause.wait(0.1)
    pytest.fail("it did not come")


def _ended(handle: TaskHandle) -> server_pb2.TaskStatus:
    _until(lambda: handle.status().state != server_pb2.TaskStatus.STATE_ACTIVE)
    return handle.status()


@pytest.mark.parametrize(
    "combination",
    [pytest.param(each, id=each.name, marks=[] if each in IN_CI else pytest.mark.proof) for each in RUN],
)
def test_a_task_of_every_combination_finishes(
    finished: dict[Combination, server_pb2.TaskStatus], combination: Combination
) -> None:
    status = finished[combination]
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED, status.failure
    assert len(status.rounds) == status.planned_rounds > 0
    assert [entry.contributions for entry in status.rounds] == [combination.devices] * status.planned_rounds

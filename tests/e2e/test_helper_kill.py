"""Leader and helper may be killed (SIGKILL) between any two steps: both hold whole models, and devices finish."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.killing import DEVICE_HOST, Platform, a_task

import odp

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODELS = "distributor.model_folders:IncomingFolder"
HELPER = "distributor.helper_program:HelperService"
LEADER = "distributor.leader:Leader"
REPLICATOR = "distributor.leader:Replicator"


def test_leader_and_helper_die_at_any_step_and_devices_finish_the_rounds(
    tmp_path: Path, stack: contextlib.ExitStack, points_of: Callable[[list[str]], list[str]]
) -> None:
    platform = Platform(tmp_path, stack, helper=True)
    task = a_task(broadcast=odp.Broadcast(method="pir", helper_key=platform.services.helper_key))
    platform.kill("helper")
    child = platform.start("helper", f"{MODELS}.write_table:after")  # half a model, and the leader holds it whole
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.died(child)
    platform.crash_through(
        "helper",
        points_of(
            [
                f"{MODELS}.commit:after",  # on its disk; the leader does not know
                f"{HELPER}.replicate:after",  # held, and nobody heard of it
                f"{HELPER}.answer:before:5",
                f"{HELPER}.answer:after:9",
            ]
        ),
    )
    platform.start("helper")
    platform.kill("distributor")
    platform.crash_through(
        "distributor",
        points_of(
            [
                f"{LEADER}.select:before:5",
                f"{LEADER}.select:after:5",
                f"{REPLICATOR}.ensure:before",  # of the second version: the leader has it, the helper has not
                f"{REPLICATOR}.ensure:after",  # both have it, and the server does not know
            ]
        ),
    )
    platform.start("distributor")
    platform.check(task)
    assert " select " not in platform.logged("distributor"), "no device asked the enclave instead"

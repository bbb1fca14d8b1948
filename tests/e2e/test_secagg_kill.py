"""SecAgg+ in real processes that die: nothing is charged twice, and no round has two releases."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from e2e.killing import DATA, DEVICE_HOST, DEVICES, Platform
from e2e.world import POPULATION

import odp
from device_runtime import Store, store_path
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.datasets import load
from odp.v1 import common_pb2, server_pb2

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SESSION = "trusted_aggregator.secagg_session:LiveSession"
CORE = "trusted_aggregator.enclave:AggregatorCore"


def films() -> odp.Statistics:
    return odp.Statistics(
        name="films",
        population=POPULATION,
        queries={"films": odp.Histogram(bins=20)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        cohort=odp.Cohort(minimum=40, goal=DEVICES, round_seconds=600, aggregation="secagg+"),
    )


def test_a_host_that_dies_before_vectors_are_sent_begins_the_next_attempt_and_the_sum_is_everybodys(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """20 counts, each within 8 standard deviations of the truth: false alarm below 1e-13."""
    platform = Platform(tmp_path, stack, armed=True)
    task = films()
    platform.submit(task)  # type: ignore[arg-type]  # any task that a connection takes
    platform.kill("aggregator")
    platform.start(DEVICE_HOST)
    platform.crash_through(
        "aggregator",
        [
            f"{SESSION}._end_step:after:3",  # shares are with the host
        ],
    )
    platform.start("aggregator")
    platform.check(task)  # type: ignore[arg-type]
    assert "attempt=1" in platform.logged("aggregator")
    (entry,) = platform.status().rounds
    release = common_pb2.Release.FromString(entry.release.release)
    (tensor,), (charge,) = release.tensors, release.charges
    truth = np.bincount(load(DATA).items, minlength=20) / np.sqrt(20)
    error = np.frombuffer(tensor.integers, "<i8") * tensor.step - truth
    assert np.abs(error / charge.noise_std).max() < 8


@pytest.mark.parametrize(
    ("point", "charges"),
    [
        (f"enclave/{CORE}.charge:before", 0),  # vectors are with the host, nothing is charged
        (f"{SESSION}.finish:after", 1),  # the host holds the sum, and nobody heard of it
    ],
)
def test_a_round_whose_session_dies_with_its_vectors_is_charged_once_at_most_and_never_released(
    tmp_path: Path, stack: contextlib.ExitStack, point: str, charges: int
) -> None:
    platform = Platform(tmp_path, stack, armed=True)
    platform.submit(films())  # type: ignore[arg-type]
    platform.kill("aggregator")
    child = platform.start("aggregator", point)
    platform.start(DEVICE_HOST)
    (platform.ended if point.startswith("enclave/") else platform.died)(child)
    platform.start("aggregator")
    assert platform.handle is not None
    status = platform.handle.status()
    if charges:
        handle = platform.handle
        platform.until(lambda: handle.status().state == server_pb2.TaskStatus.STATE_FAILED, what="the end of the task")
        status = handle.status()
        assert "is void" in status.failure
    else:
        # A second vector of a device could be unmasked beside the first one: no device sends it.
        platform.until_logged("aggregator", "secagg_gathers", round=0)
    ledger = platform.until(lambda: platform.connection.ledger(status), what="the ledger").ledger()
    assert len([entry for entry in ledger.entries if entry.events]) == charges
    assert not any(entry.release.release for entry in platform.handle.status().rounds)
    platform.child(DEVICE_HOST).process.kill()
    platform.child(DEVICE_HOST).stop()
    for device in range(DEVICES):
        with Store.open(store_path(platform.root / DEVICE_HOST, device)) as store:
            (mine,) = store.ledger()
            assert (mine.sealed, mine.payload) == (None, None), "in the ledger, and nothing to send again"


def test_r196_four_hosts_that_die_with_an_order_are_all_that_a_round_has_and_its_task_ends_as_failed(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """Each death comes when the order of an attempt is known; no restart of the host, nor of the devices, adds one."""
    platform = Platform(tmp_path, stack, armed=True)
    platform.submit(films())  # type: ignore[arg-type]
    platform.kill("aggregator")
    platform.start(DEVICE_HOST)
    for attempt in range(MOST_ATTEMPTS):
        if attempt == 2:
            platform.kill_and_restart(DEVICE_HOST)
        platform.crash_through("aggregator", [f"{SESSION}._end_step:after:2"])
    platform.start("aggregator")
    handle = platform.handle
    assert handle is not None
    platform.until(lambda: handle.status().state == server_pb2.TaskStatus.STATE_FAILED, what="the end of the task")
    assert "round 0 has failed: its 4 sessions ended without a sum" in handle.status().failure
    platform.child(DEVICE_HOST).process.kill()
    platform.child(DEVICE_HOST).stop()
    attempts = set()
    for device in range(DEVICES):
        with Store.open(store_path(platform.root / DEVICE_HOST, device)) as store:
            assert store.ledger() == (), "nobody made a vector"
            attempts |= {attempt for (attempt,) in store.all("SELECT attempt FROM secagg_attempts")}
    assert attempts <= set(range(MOST_ATTEMPTS))
    assert attempts
    for attempt in range(MOST_ATTEMPTS):
        assert platform.logged("aggregator").count(f"attempt={attempt}") == 1

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
from odp.datasets import load
from odp.v1 import common_pb2

pytestmark = [pytest.mark.processes, pytest.mark.proof]

SERVER = "odp.crypto.secure_aggregation.server:Server"


def films() -> odp.Statistics:
    return odp.Statistics(
        name="films",
        population=POPULATION,
        queries={"films": odp.Histogram(bins=20)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600, aggregation="secagg+"),
    )


@pytest.mark.parametrize(
    "point",  # modes/secagg/test_restarts.py has every step in CI, without processes
    [
        f"{SERVER}.masked:after:10",  # some vectors are with the host
        f"{SERVER}.unmask:after:10",  # charged; some shares are with the host
    ],
)
def test_a_session_outlives_its_host_is_charged_once_and_its_sum_is_everybodys(
    tmp_path: Path, stack: contextlib.ExitStack, point: str
) -> None:
    """20 counts, each within 8 standard deviations of the truth: false alarm below 1e-13."""
    platform = Platform(tmp_path, stack, armed=True)
    task = films()
    platform.submit(task)  # type: ignore[arg-type]  # any task that a connection takes
    platform.kill("aggregator")
    platform.start(DEVICE_HOST)
    platform.crash_through("aggregator", [point])
    platform.start("aggregator")
    platform.check(task)  # type: ignore[arg-type]
    assert "attempt=1" not in platform.logged("aggregator")
    (entry,) = platform.status().rounds
    release = common_pb2.Release.FromString(entry.release.release)
    (tensor,), (charge,) = release.tensors, release.charges
    truth = np.bincount(load(DATA).items, minlength=20) / np.sqrt(20)
    error = np.frombuffer(tensor.integers, "<i8") * tensor.step - truth
    assert np.abs(error / charge.noise_std).max() < 8
    status = platform.handle.status()  # type: ignore[union-attr]
    ledger = platform.until(lambda: platform.connection.ledger(status), what="the ledger").ledger()
    assert [entry.contributions for entry in ledger.entries if entry.events] == [DEVICES]
    platform.child(DEVICE_HOST).process.kill()
    platform.child(DEVICE_HOST).stop()
    for device in range(DEVICES):
        with Store.open(store_path(platform.root / DEVICE_HOST, device)) as store:
            (mine,) = store.ledger()
            assert (mine.sealed, mine.report) == (None, None), "in the ledger, and nothing to send again"

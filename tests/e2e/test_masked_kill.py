"""A masked round in real processes that die: each device counts once, with both halves, and the sum is charged once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from e2e.killing import DATA, DEVICE_HOST, DEVICES, Platform
from e2e.world import POPULATION

import odp
from odp.datasets import load
from odp.v1 import common_pb2

pytestmark = [pytest.mark.processes, pytest.mark.proof]

STORAGE = "trusted_aggregator.host.sqlite_storage:SqliteStorage"
ROUNDS = "trusted_aggregator.enclave.rounds:Rounds"
SUBMISSIONS = "trusted_aggregator.enclave.submissions:Submissions"


def test_host_and_enclave_die_at_any_step_of_a_masked_round_and_the_sum_is_everybodys(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """20 counts, each within 8 standard deviations of the truth: false alarm below 1e-13."""
    platform = Platform(tmp_path, stack, armed=True)
    task = odp.Statistics(
        name="films",
        population=POPULATION,
        queries={"films": odp.Histogram(bins=20)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        cohort=odp.Cohort(minimum=DEVICES, goal=DEVICES, round_seconds=600, aggregation="masked"),
    )
    platform.submit(task)  # type: ignore[arg-type]  # any task that a connection takes
    platform.kill("aggregator")
    platform.start(DEVICE_HOST)
    platform.crash_through(
        "aggregator",
        [
            f"enclave/{SUBMISSIONS}.submit_batch:after:2",  # seeds are counted in its memory, their vectors not stored
            f"{STORAGE}.add:after:2",  # both halves are stored, not acknowledged
        ],
        also=DEVICE_HOST,
    )
    platform.crash_through(
        "aggregator",
        [
            f"enclave/{ROUNDS}.host_parts:after",  # charged; the host waits for what it has to sum
            f"enclave/{ROUNDS}.release:after",  # signed, nobody heard of it
        ],
        also="server",
    )
    platform.start("aggregator")
    platform.check(task)  # type: ignore[arg-type]
    (entry,) = platform.status().rounds
    release = common_pb2.Release.FromString(entry.release.release)
    (tensor,), (charge,) = release.tensors, release.charges
    truth = np.bincount(load(DATA).items, minlength=20) / np.sqrt(20)
    error = np.frombuffer(tensor.integers, "<i8") * tensor.step - truth
    assert np.abs(error / charge.noise_std).max() < 8

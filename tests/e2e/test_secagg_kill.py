"""SecAgg+ in real processes that die: nothing is charged twice, and no round has two releases."""

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

pytestmark = pytest.mark.processes


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
    platform.start(DEVICE_HOST)
    platform.check(task)  # type: ignore[arg-type]
    (entry,) = platform.status().rounds
    release = common_pb2.Release.FromString(entry.release.release)
    (tensor,), (charge,) = release.tensors, release.charges
    truth = np.bincount(load(DATA).items, minlength=20) / np.sqrt(20)
    error = np.frombuffer(tensor.integers, "<i8") * tensor.step - truth
    assert np.abs(error / charge.noise_std).max() < 8

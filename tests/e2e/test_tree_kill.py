"""A tree of aggregators in real processes that die: each device counts once, and the sum is charged once.

``test_soak.py`` kills root and leaves once in CI; ``trusted_aggregator/modes/tree/test_tree.py`` has deaths without
processes.
"""

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
TREE = "trusted_aggregator.enclave.tree:Tree"
SUBMISSIONS = "trusted_aggregator.enclave.submissions:Submissions"
LEAF = "trusted_aggregator.enclave.leaf_core:LeafCore"
LEAVES = "trusted_aggregator.host.leaves:TreeLeaves"
PARTS = "trusted_aggregator.host.leaf_program:LeafParts"


def test_root_and_leaf_die_at_any_step_and_the_sum_is_everybodys(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """20 counts, each within 8 standard deviations of the truth: false alarm below 1e-13."""
    platform = Platform(tmp_path, stack, armed=True, leaves=2)
    task = odp.Statistics(
        name="films",
        population=POPULATION,
        queries={"films": odp.Histogram(bins=20)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        cohort=odp.Cohort(minimum=DEVICES, goal=DEVICES, round_seconds=600),
    )
    platform.submit(task)  # type: ignore[arg-type]  # any task that a connection takes
    platform.kill("leaf-0")
    platform.start(DEVICE_HOST)
    platform.crash_through(
        "leaf-0",
        [
            f"enclave/{LEAF}.open_part:after",  # it has the key, and its host does not know
            f"{PARTS}.open:after",
            f"enclave/{SUBMISSIONS}.submit_batch:after:2",  # counted in its memory, not stored
            f"{STORAGE}.add:after:2",  # stored, not acknowledged
        ],
        also=DEVICE_HOST,
    )
    platform.kill("aggregator")
    platform.start("leaf-0")
    platform.crash_through(
        "aggregator",
        [
            f"enclave/{TREE}.delegate:after",
            f"enclave/{TREE}.give_part:after",  # it has a sum, or a piece of one, that nobody stored
            f"{LEAVES}._store:after",  # the sum of one leaf is stored
            f"enclave/{ROUNDS}.charge:after",  # the charge is made, not stored
            f"enclave/{ROUNDS}.seal_release:after",  # charged in force; the release is not stored
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


def test_a_leaf_dies_while_it_hands_in_its_sum(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    platform = Platform(tmp_path, stack, armed=True, leaves=2)
    task = odp.Statistics(
        name="films",
        population=POPULATION,
        queries={"films": odp.Histogram(bins=20)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        cohort=odp.Cohort(minimum=DEVICES, goal=DEVICES, round_seconds=600),
    )
    platform.kill("leaf-1")
    platform.submit(task)  # type: ignore[arg-type]
    platform.start(DEVICE_HOST)
    platform.crash_through(
        "leaf-1",
        [f"enclave/{LEAF}.close_part:after", f"{PARTS}.close:after", f"enclave/{LEAF}.take_part:after"],
    )
    platform.start("leaf-1")
    platform.check(task)  # type: ignore[arg-type]

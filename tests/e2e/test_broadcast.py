"""Whichever way devices get the rows of a model, they train the same model on them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World, small_task

import odp
from odp.datasets import Ratings
from odp.evaluation.noise import NoNoise
from odp.protocol.wire.model import ModelVersion


def trained(root: Path, ratings: Ratings, method: str) -> tuple[ModelVersion, list[float], str]:
    """The last model of a task without noise, the bytes down of a device per round, and everything that was logged."""
    with contextlib.ExitStack() as stack:
        world = World(root, noise=NoNoise(), with_helper=method == "pir").start(stack)
        asking = odp.Broadcast(method=method, helper_key=world.helper_key if method == "pir" else "")
        task = small_task(ratings, rank=2, training=odp.DPAM(steps=1), places=ratings.n_items, broadcast=asking)
        handle = world.connection.submit(task)
        devices = world.devices(ratings)
        status = world.finish(handle, devices)
        assert [entry.contributions for entry in status.rounds] == [ratings.n_users] * 3
        down = [entry.bytes_down / entry.devices_in for entry in devices.statistics()]
        return handle.model(), down, world.logs.getvalue()


# Of "all", CI reads the same rows in distributor/test_two_parties.py, and runs a task in test_every_combination.py.
@pytest.mark.slow
@pytest.mark.parametrize("method", ["pir", pytest.param("all", marks=pytest.mark.proof)])
def test_all_methods_train_the_same_model(tmp_path: Path, ratings: Ratings, method: str) -> None:
    """Sums are integers on a grid: equal rows give equal sums, whatever the order of the devices.

    Identities differ between runs, and with them the items that a busy device leaves out; nobody here has too many.
    """
    reference, _, reference_log = trained(tmp_path / "enclave", ratings, "enclave")
    model, _, log = trained(tmp_path / method, ratings, method)
    for ours, theirs in zip(model.tables, reference.tables, strict=True):
        np.testing.assert_array_equal(ours.rows, theirs.rows)
    assert " select " in reference_log
    assert " select " not in log, "the enclave is asked for nothing"
    asked_privately = " select_privately " in log and " answered " in log
    assert asked_privately == (method == "pir")

"""``odp.CompiledModel``: a task of a network that was compiled elsewhere, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp[litert]'")

import odp
from odp.errors import ConfigurationError

from .compile_partly import CLASSES, FEATURES, LOCAL, SHARED, stored

START = (np.random.default_rng(4).normal(size=SHARED + LOCAL) * 0.5).astype(np.float32)


def _task(model: odp.CompiledModel) -> odp.Task:
    return odp.Task(
        name="kinds", model=model, data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, label="kind"),
        training=odp.DPFedAvg(rounds=3, rate=0.3, batch=4, reconstruction=odp.Reconstruction(rate=0.3)),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4), cohort=odp.Cohort(minimum=10, goal=40),
    )  # fmt: skip


def test_a_saved_model_makes_the_same_task_and_trains(tmp_path: Path) -> None:
    made = odp.CompiledModel(stored(), START)
    made.save(tmp_path / "network")
    loaded = odp.CompiledModel.load(tmp_path / "network")
    assert loaded.program == made.program
    np.testing.assert_array_equal(loaded.start, START)
    np.testing.assert_array_equal(loaded.public_matrix, START[:SHARED, None])
    assert _task(loaded).definition() == _task(made).definition()
    generator = np.random.default_rng(1)
    features = generator.uniform(-1, 1, (800, FEATURES)).astype(np.float32)
    kinds = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    people = odp.UsersExamples.of_users(features, kinds, np.arange(800) % 40)
    run = odp.simulate(_task(loaded), odp.ExamplesSplit(train=people, test=people), noise=False)
    assert run.metrics["test_loss"] < run.rounds[0].metrics["test_loss"]
    assert not np.array_equal(run.model.dense["parameters"], loaded.public_matrix)


@pytest.mark.parametrize("start", [START[:-1], START.astype(np.float64), np.full(len(START), np.nan, dtype=np.float32)])
def test_other_weights_are_refused(start: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match=f"{SHARED + LOCAL} finite weights"):
        odp.CompiledModel(stored(), start)


def test_a_file_that_is_no_model_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing: No such file"):
        odp.CompiledModel.load(tmp_path / "missing")
    other, arrays, damaged = tmp_path / "other", tmp_path / "arrays", tmp_path / "damaged"
    other.write_bytes(b"text")
    with arrays.open("wb") as file:
        np.savez(file, start=START)
    odp.CompiledModel(stored(), START).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for path in (other, arrays, damaged):
        with pytest.raises(ConfigurationError, match=f"{path.name} to be a file of odp"):
            odp.CompiledModel.load(path)

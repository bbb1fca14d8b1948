"""``odp.CompiledModel``: a task of a network that was compiled elsewhere, without TensorFlow."""

from __future__ import annotations

import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

import odp
from odp.errors import ConfigurationError
from tests.models import hostile_archives

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
    people = odp.data.UsersExamples.of_users(features, kinds, np.arange(800) % 40)
    run = odp.simulate(_task(loaded), odp.data.ExamplesSplit(train=people, test=people), noise=False)
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


@pytest.mark.parametrize("kind", hostile_archives.KINDS)
@pytest.mark.parametrize("name", ["description", "start"])
def test_a_hostile_file_is_refused_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    """Of the three arrays one is hostile."""
    whole, hostile = tmp_path / "whole", hostile_archives.write(tmp_path, kind, name)
    odp.CompiledModel(stored(), START).save(whole)
    if kind not in ("encrypted", "method", "damaged"):  # these are about the archive
        with zipfile.ZipFile(hostile, "a") as written, zipfile.ZipFile(whole) as given:
            for one in given.namelist():
                if one != f"{name}.npy":
                    written.writestr(one, given.read(one))
    with pytest.raises(ConfigurationError, match=r"to be a file of odp|finite weights"):
        odp.CompiledModel.load(hostile)


def test_an_archive_that_unpacks_to_more_than_a_model_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("start", "flatbuffer"):
            archive.writestr(f"{name}.npy", b"")
        with archive.open("description.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (33 * 2**24,)})
            for _ in range(33):
                file.write(bytes(2**24))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigurationError, match="bomb to be a file of odp"):
        odp.CompiledModel.load(bomb)
    assert bomb.stat().st_size < 2**22
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17

"""`odp task export`: the items of a task of a server, with the signature of the release that made them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Printed
from e2e.world import World, small_ratings, small_task

import odp as platform
from odp.crypto import domains
from odp.crypto.signing import verify
from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import NoNoise
from odp.services.connection import connect
from odp.serving import IndexedModel
from odp.signed.task import task_sha256
from odp.tasks.file import render_task
from odp.v1 import common_pb2

Odp = Callable[..., Printed]


@pytest.mark.slow
def test_the_items_of_a_task_are_exported_with_a_signature_that_verifies(odp: Odp, tmp_path: Path) -> None:
    task_file = tmp_path / "task.toml"
    task_file.write_text(render_task(small_task(small_ratings(), rank=2)))
    file, keys = tmp_path / "items.parquet", tmp_path / "keys.txt"
    keys.write_text("".join(f"Film {number}\n" for number in range(40)))
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world").start(stack)
        at = ("--server", world.server.address, "--state", world.root)
        identifier = odp("task", "submit", task_file, *at).out.strip()
        with pytest.raises(ConfigurationError, match="has released nothing yet"):
            odp("task", "export", identifier, file, *at)
        devices = world.devices(small_ratings(), until_finished=True)
        stack.callback(devices.stop)
        assert devices.join(600)
        with pytest.raises(ConfigurationError, match=r"ends in \.npz"):
            odp("task", "export", identifier, tmp_path / "items.csv", *at)
        with pytest.raises(DataError, match="cannot read the keys"):
            odp("task", "export", identifier, file, "--keys", tmp_path / "none.txt", *at)
        printed = odp("task", "export", identifier, file, "--keys", keys, *at, "--json").json
        odp("task", "export", identifier, tmp_path / "items.index", "--keys", keys, *at)
        connection = stack.enter_context(connect(world.server.address, state=world.root))
        (status,) = connection.tasks()
        model = connection.model(status)
    found = platform.load_items(file)
    assert printed == {"file": str(file), "items": 40, **found.facts}
    assert found.keys[39] == "Film 39"
    np.testing.assert_array_equal(found.columns.factors, model.keyed.rows[:, 3:])
    last = status.rounds[-1]
    assert found.facts["definition_sha256"] == identifier
    assert found.facts["release_round"] == str(last.round)
    assert float(found.facts["epsilon"]) == status.epsilon_spent
    assert found.facts["adjacency"] == "zero_out_user"
    signature = bytes.fromhex(found.facts["signature"])
    assert signature == last.release.signature
    verify(bytes.fromhex(found.facts["signed_by"]), signature, domains.RELEASE, last.release.release)
    served = IndexedModel.of(platform.open_index(tmp_path / "items.index"))
    assert served.index.facts == found.facts
    assert served.index.keys[39] == "Film 39"
    signed = common_pb2.SignedTask.FromString(served.index.task)
    assert task_sha256(signed).hex() == identifier
    assert signed.signature


@pytest.mark.slow
def test_a_classifier_of_devices_with_a_labelled_table_is_exported_with_its_class_names(
    odp: Odp, tmp_path: Path
) -> None:
    """One CSV file fills the devices; the file of the released model says "spam" and "ham"."""
    draw, table = np.random.default_rng(3), tmp_path / "mail.csv"
    lengths = draw.uniform(0, 100, 480)
    rows = [f"r{place % 24},{length:.1f},{'spam' if length > 50 else 'ham'}" for place, length in enumerate(lengths)]
    table.write_text("\n".join(["reader,Length,Verdict", *rows]) + "\n")
    task = platform.Task(
        name="mail", population="films", model=platform.Glm("logistic", 1),
        data=platform.Examples({"length": platform.Tensor((), 0, 100, 0.01)}, label="verdict", classes=("ham", "spam")),
        privacy=platform.UserLevelDP(epsilon=8, delta=1e-5), training=platform.DPFedAvg(rounds=2, rate=2.0, clip=2.0),
        cohort=platform.Cohort(minimum=20, goal=24),
    )  # fmt: skip
    task_file, file = tmp_path / "task.toml", tmp_path / "mail.npz"
    task_file.write_text(render_task(task))
    people = platform.load_examples(table, user="reader", label="Verdict")
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world", noise=NoNoise()).start(stack)
        at = ("--server", world.server.address, "--state", world.root)
        identifier = odp("task", "submit", task_file, *at).out.strip()
        devices = world.devices(examples=people, until_finished=True)
        stack.callback(devices.stop)
        assert devices.join(600)
        printed = odp("task", "export", identifier, file, *at).out
        described = odp("task", "export", identifier, file, *at, "--json").json
    assert "classes 'ham', 'spam'; differentially private per user; signed by: " in " ".join(printed.split())
    assert described["classes"] == ["ham", "spam"]
    read = platform.Classifier.load(file)
    assert (read.facts["release_round"], len(read.facts["signed_by"])) == ("1", 64)
    # What is longer is more like the second class, which devices know by its name alone.
    assert read.parameters[0] > 0.01
    assert set(read.classify({"length": [0.0, 100.0]}).tolist()) <= {"ham", "spam"}

"""Usable rows over the whole platform: counted in every mode, and by real processes before a training spends ε."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.world import World, wait_finished

import odp
from device_runtime import Store, store_path
from device_runtime.round import secagg
from odp.evaluation.noise import NoNoise
from odp.models.left_out import UNKNOWN
from odp.operations.local.processes import ODP, Child, Services
from odp.services.connection import Connection, connect
from odp.signed.task import open_task
from odp.tasks.file import render_task
from odp.tasks.states import FINAL, usable_in_words
from odp.transport.tls import read_ca
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import server_pb2

SECONDS = 150.0
DATA = odp.Examples({"x": odp.Tensor((3,), low=-1, high=1)}, label="clicked", classes=("no", "yes"))


def people(no_rows: int, none: int, some: int, every: int) -> odp.data.ExampleColumns:
    """Users of each place, whose unusable labels are of an older version of an app."""
    counts = np.repeat([0, 3, 4, 2], [no_rows, none, some, every])
    labels = [["maybe"] * 3] * none + [["yes", "maybe", "no", "maybe"]] * some + [["no", "yes"]] * every
    flat = np.array([label for user in labels for label in user])
    features = np.linspace(-1, 1, 3 * len(flat)).reshape(-1, 3)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return odp.data.ExampleColumns({"x": features, "clicked": flat}, np.arange(len(flat)), offsets)


def task(devices: int, *, mode: str = "enclave", share: float = 0.5, **changes: Any) -> odp.Task:
    given: dict[str, Any] = {
        "name": "clicks", "population": "films", "model": odp.Glm("logistic", features=3), "data": DATA,
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-5), "training": odp.DPFedAvg(rounds=2, clip=1.0),
        "cohort": odp.Cohort(
            minimum=20, goal=devices, round_seconds=600, computing_seconds=4.0, aggregation=mode
        ),
        "count_usable": odp.CountUsable(share=share),
    }  # fmt: skip
    return odp.Task(**{**given, **changes})


@pytest.mark.processes
@pytest.mark.parametrize(
    "mode",
    ["enclave", pytest.param("masked", marks=pytest.mark.proof), pytest.param("secagg+", marks=pytest.mark.proof)],
)
def test_r430_devices_count_usable_rows_before_they_train_in_every_mode(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise off, votes are exact; the training's rounds follow the count's release."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    noiseless: dict[str, Any] = {} if mode == "secagg+" else {"noise": NoNoise()}
    world = World(tmp_path, **noiseless).start(stack)
    by_place = (1, 9, 4, 8)
    token = world.server.token_path.read_text().strip()
    connection = stack.enter_context(Connection(address=world.server.address, ca=read_ca(world.ca), token=token))
    handle = connection.submit(task(sum(by_place), mode=mode, share=0.25))
    assert connection.submit(task(sum(by_place), mode=mode, share=0.25)) == handle, "the same task, the same count"
    waiting = open_task(handle.status().task)
    assert usable_in_words(waiting, handle.usable()).startswith("usable rows are counted by task")
    assert usable_in_words(task(sum(by_place), count_usable=None).definition(), None) == UNKNOWN
    devices = world.devices(examples=people(*by_place))
    try:
        status = wait_finished(handle)
    finally:
        devices.stop()
    assert [entry.contributions for entry in status.rounds] == [sum(by_place)] * 2
    pins = ReferenceValues.load(world.reference_values)
    counted = handle.usable(pins)
    assert counted is not None
    shares = [counted.to_json()["shares"][key]["value"] for key in ("no_rows", "none_usable", "some_usable")]  # type: ignore[index]
    assert shares == pytest.approx([place / sum(by_place) for place in by_place[:3]], abs=1e-4)
    assert counted.usable.value == pytest.approx(12 / 22, abs=1e-4)
    assert "have usable rows" in usable_in_words(open_task(status.task), counted)

    report = audit(LogFolder(world.root / "server" / "log"), pins)
    spent = {one.name: one.epsilon for one in report.tasks}
    assert spent["clicks.usable"] == pytest.approx(2.0, abs=0.05)
    assert spent["clicks.usable"] <= 2.0 + 1e-9
    assert spent["clicks"] <= 6.0 + 1e-9
    count = connection.status(open_task(status.task).count_first.task_sha256)
    assert status.rounds[0].opened >= count.rounds[0].closed
    for device in range(sum(by_place)):
        with Store.open(store_path(world.root / "devices", device)) as store:
            assert len(store.ledger()) == 3, "the vote and two rounds"
            assert store.empty_contributions() == 0


# server/test_counting.py holds the same without programs, and the test above counts on devices.
@pytest.mark.proof
@pytest.mark.processes
def test_r432_a_developer_sees_that_nobody_can_train_before_the_budget_is_spent(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """118 of 120 devices hold labels that the task does not have. By real processes, from a task file to the audit."""
    by_place = (4, 114, 1, 1)
    people(*by_place).save(tmp_path / "people.npz")
    privacy, least = odp.UserLevelDP(epsilon=4, delta=1e-5), odp.CountUsable(least=0.5)
    written = dataclasses.replace(task(sum(by_place)), count_usable=least, privacy=privacy)
    (tmp_path / "clicks.toml").write_text(render_task(written), encoding="utf-8")
    root = tmp_path / "odp-state"
    services = stack.enter_context(Services(root, policy=EnclavePolicy(role="aggregator", minimum_cohort=20)))
    at = ["--server", services.server_address, "--state", str(root), "--json"]

    def told(*arguments: str) -> dict[str, Any]:
        ran = subprocess.run([*ODP, *arguments], capture_output=True, text=True, timeout=SECONDS, check=True)
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    submitted = told("task", "submit", str(tmp_path / "clicks.toml"), "--count-usable", "0.25", *at)
    arguments = ["device", "run", "--population", "films", "--server", services.server_address]
    arguments += ["--services", str(root), "--examples", str(tmp_path / "people.npz"), "--min-cohort", "20"]
    host = Child("devices", arguments, state=tmp_path / "devices", log=tmp_path / "devices.log", command=ODP)
    stack.callback(host.stop)
    connection = stack.enter_context(connect(services.server_address, state=root))
    training, count = bytes.fromhex(submitted["task"]), bytes.fromhex(submitted["count"])
    until = time.monotonic() + SECONDS
    while connection.status(training).state not in FINAL:
        assert time.monotonic() < until, connection.status(count)
        assert host.process.poll() is None, host.last_line()
        time.sleep(0.5)

    ended, asked = connection.status(training), connection.status(count)
    assert ended.state == server_pb2.TaskStatus.STATE_FAILED
    assert "too few devices have usable rows, fewer than least=0.5" in ended.failure
    assert (len(ended.rounds), ended.epsilon_spent) == (0, 0.0)
    assert 0.9 < asked.epsilon_spent <= 1.0
    assert asked.rounds[0].contributions == sum(by_place)
    told_status = told("task", "results", submitted["count"], *at)
    # Noise of 4.3 devices: the share is nine standard deviations from here, and the interval seven from ``least``.
    assert told_status["shares"]["none_usable"]["value"] > 0.6
    with pytest.raises(subprocess.CalledProcessError):
        told("task", "results", submitted["task"], *at)
    (listed,) = [one for one in told("task", "list", *at)["tasks"] if one["task"] == submitted["task"]]
    assert "have rows of which none is usable" in listed["usable_examples"]
    table = subprocess.run(
        [*ODP, "task", "list", *at[:-1]], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert re.search(r"\d+ to \d+ %", table.stdout)
    report = audit(LogFolder(root / "server" / "log"), ReferenceValues.load(services.reference_values))
    assert {one.name: one.epsilon > 0 for one in report.tasks} == {"clicks.usable": True, "clicks": False}

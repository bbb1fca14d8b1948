"""Every algorithm that devices take part in, by a fleet with faults, on the same services."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.registry import TABLE, training_of
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns
from odp.operations.local.processes import OPEN, Services
from odp.research.simulation.fleet.device_data import load_data
from odp.research.simulation.fleet.fleet_task import fleet_task
from odp.research.simulation.fleet.plan import PROGRESS_FILE
from odp.research.simulation.fleet.run import SCENARIO_FILE, shards_of
from odp.research.simulation.fleet.scenario import load_scenario
from odp.research.simulation.fleet.worker import Worker
from odp.services.connection import Connection, connect
from odp.tasks.file import render_task
from odp.transport.logs import Log
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import server_pb2

DEVICES, SEED, ITEMS = 10, 3, 12
FAULTS = """
[faults]
drop_outs = 0.2
crashes = 0.1
malicious = 0.2
[network]
lost_answers = 0.2
[conditions]
charging = true
"""
RATINGS = f'[data]\nsource = "synthetic:n_users={DEVICES},n_items={ITEMS},ratings_per_user=5,seed=7"\n'
EXAMPLES = '[data]\nexamples = "examples.npz"\n'
EVENTS = '[data]\nevents = "events.jsonl"\n'
PRIVACY = odp.UserLevelDP(epsilon=4.0, delta=1e-6)
COHORT = odp.Cohort(minimum=4, goal=4)
LONG_SECONDS = 16.0
#: Words of the devices, for searches.
WORDS = ("ab", "ba", "ab", "a", "ab")
COLUMNS = odp.Examples({"x": odp.Tensor((2, 2), -1, 1)}, label="kind")
MODEL = odp.Glm("multinomial", features=4, classes=3)
SEARCHED = odp.Events(service="keyboard", type="typed", item="word")


def _trained(name: str, training: object) -> odp.Task:
    return odp.Task(name=name, model=MODEL, data=COLUMNS, privacy=PRIVACY, training=training, cohort=COHORT)  # type: ignore[arg-type]


def _asked(name: str, **given: Any) -> odp.Statistics:
    return odp.Statistics(
        name=name, queries={"items": odp.Histogram(bins=ITEMS)}, privacy=PRIVACY, cohort=COHORT, **given
    )


#: The data and the task of each algorithm, by its training.
TASKS: dict[str, tuple[str, Any]] = {
    "dpam": (
        RATINGS,
        odp.Task(
            name="ratings", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.RatingsData(low=1, high=5),
            privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4), training=odp.DPAM(steps=1),
            cohort=odp.Cohort(minimum=4, goal=4, computing_seconds=LONG_SECONDS),
        ),
    ),
    "implicit_dpam": (
        RATINGS,
        odp.Task(
            name="implicit", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.ImplicitData(),
            privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4),
            training=odp.ImplicitDPAM(steps=1), cohort=COHORT,
        ),
    ),
    "item_gradients": (
        RATINGS,
        odp.Task(
            name="gradients", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.RatingsData(low=1, high=5),
            privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4), training=odp.DPSGD(rounds=2),
            cohort=COHORT,
        ),
    ),
    "implicit_gradients": (
        RATINGS,
        odp.Task(
            name="seen-gradients", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.ImplicitData(),
            privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4),
            training=odp.DPSGD(rounds=2, clip=1.0), cohort=COHORT,
        ),
    ),
    "fedavg": (EXAMPLES, _trained("fedavg", odp.DPFedAvg(rounds=2))),
    "dpsgd": (EXAMPLES, _trained("dpsgd", odp.DPSGD(rounds=1))),
    "dpftrl": (EXAMPLES, _trained("dpftrl", odp.DPFTRL(rounds=2, bands=1))),
    "private_fl": (EXAMPLES, _trained("private-fl", odp.PrivateFL(rounds=2, participations=2))),
    "quantiles": (RATINGS, odp.Quantiles(name="quantiles", low=0, high=6, bins=8, privacy=PRIVACY, cohort=COHORT)),
    "heavy_hitters": (
        EVENTS,
        odp.HeavyHitters(
            name="search", events=SEARCHED, alphabet="ab", length=2, prefixes=2, privacy=PRIVACY, cohort=COHORT
        ),
    ),
    "local_heavy_hitters": (
        EVENTS,
        odp.HeavyHitters(
            name="local-search", events=SEARCHED, alphabet="ab", length=2, trust="local", privacy=PRIVACY,
            cohort=COHORT,
        ),
    ),
    "model_evaluation": (
        EXAMPLES,
        odp.Evaluation(
            name="evaluation", model=MODEL, data=COLUMNS, of=np.zeros(MODEL.size), bins=4, privacy=PRIVACY,
            cohort=COHORT,
        ),
    ),
    "statistics": (RATINGS, _asked("statistics")),
    "shuffled_statistics": (RATINGS, _asked("shuffled", trust="shuffle")),
    "local_statistics": (RATINGS, _asked("local", trust="local")),
    "draw_and_discard": (
        EXAMPLES,
        odp.DrawAndDiscard(
            name="drawn", features={"age": odp.Number(low=0, high=1)}, epsilon=2.0, label="yes", most_reports=2,
            seconds_between=3600, false_alarms=0.0,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """Running services, and a folder with the data of all devices."""

    services: Services
    connection: Connection
    folder: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root, folder = tmp_path_factory.mktemp("services"), tmp_path_factory.mktemp("fleets")
    owners, draw = np.arange(2 * DEVICES) % DEVICES, np.random.default_rng(7)
    columns = {
        "x": draw.normal(size=(len(owners), 2, 2)).clip(-1, 1),
        "kind": owners % 3,
        "age": draw.random(len(owners)),
        "yes": owners % 2,
    }
    ExampleColumns.of_users(columns, owners).save(folder / "examples.npz")
    typed = [
        {"user": user, "service": "keyboard", "type": "typed", "data": {"word": WORDS[user % len(WORDS)]}}
        for user in range(DEVICES)
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in typed))
    policy = EnclavePolicy(role="aggregator", minimum_cohort=4)
    with (
        Services(root, policy=policy, admission=OPEN) as services,
        connect(services.server_address, state=root) as connection,
    ):
        yield World(services, connection, folder)


def scenario_of(folder: Path, training: str, *, faults: str = FAULTS) -> Path:
    data, task = TASKS[training]
    text = render_task(task)
    if training == "model_evaluation":
        np.save(folder / "of.npy", task.of)
        text = re.sub(r"(?m)^# of: .*$", 'of = "of.npy"', text)
    (folder / f"{training}.task.toml").write_text(text)
    path = folder / f"{training}.toml"
    path.write_text(f'{data}[task]\nfile = "{training}.task.toml"\n{faults}')
    return path


def test_every_algorithm_of_the_platform_is_tried() -> None:
    assert {training_of(task.definition()) for _, task in TASKS.values()} == set(TASKS)
    # A count of usable rows is no task of its own: it comes with a training, which is refused below.
    assert set(TASKS) == set(TABLE) - {"usable_count"}


@pytest.mark.parametrize("training", TASKS)
def test_a_fleet_takes_part_in_every_algorithm_and_every_fault_counts(world: World, training: str) -> None:
    path = scenario_of(world.folder, training)
    scenario = load_scenario(path)
    data = load_data(scenario, folder=world.folder)
    fleet = fleet_task(
        scenario, data, folder=world.folder, devices=DEVICES, seed=SEED, population=training.replace("_", "-")
    )
    root = world.folder / training
    (root / "host").mkdir(parents=True)
    (root / SCENARIO_FILE).write_text(path.read_text())
    handle = world.connection.submit(fleet.task)
    (shard,) = shards_of(world.services, fleet, handle, root=root, folder=world.folder, hosts=1, timeout=60.0)
    stop = threading.Event()
    with (root / "log").open("w") as stream:
        worker = Worker(shard, root / "host", log=lambda clock: Log("fleet", clock=clock, stream=stream), stop=stop)
        try:
            worker.run()
        finally:
            worker.close()
    told = json.loads((root / "host" / PROGRESS_FILE).read_text())
    assert told["through"] == [DEVICES] * fleet.plan.rounds
    malicious = set(fleet.plan.malicious.values())
    for counts in told["rounds"]:
        assert counts["devices_in"] == fleet.plan.goal
        assert counts["injected"]["drop_out"] == 2
        assert counts["injected"]["crash"] == 1
        assert all(counts["injected"][behaviour] for behaviour in malicious)
        assert sum(n for reason, n in counts["refused"].items() if ":" not in reason) == len(
            [one for one in fleet.plan.malicious.values() if one != "replayed"]
        )
    if training == "dpam":
        assert sum(counts["seconds"] for counts in told["rounds"]) < LONG_SECONDS * fleet.plan.goal, "no fixed times"
    if training == "draw_and_discard":
        assert handle.status().reports == fleet.plan.goal * fleet.plan.rounds
        return
    (status,) = [one for one in handle.watch() if one.state != server_pb2.TaskStatus.STATE_ACTIVE]
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED, status.failure
    if not fleet.local:
        assert [entry.contributions for entry in status.rounds] == [fleet.plan.goal] * fleet.plan.rounds
    assert len(fleet.behaviours) >= 2


def test_what_a_fleet_cannot_run_is_refused_in_one_line(tmp_path: Path) -> None:
    def refused(text: str, *, data: str = RATINGS) -> str:
        (tmp_path / "task.toml").write_text(text)
        (tmp_path / "scenario.toml").write_text(f'{data}[task]\nfile = "task.toml"\n')
        scenario = load_scenario(tmp_path / "scenario.toml")
        with pytest.raises((ConfigurationError, DataError)) as caught:
            fleet_task(scenario, load_data(scenario, folder=tmp_path), folder=tmp_path, devices=DEVICES, seed=SEED)
        return str(caught.value)

    _, task = TASKS["fedavg"]
    text = render_task(task)
    assert "Unknown kind 'litert'" in refused(text.replace('kind = "glm"', 'kind = "litert"'))
    assert "aggregation" in refused(text.replace('aggregation = "enclave"', 'aggregation = "masked"'))
    assert "minimum_cohort=400 of 10 devices" in refused(
        render_task(_asked("many")).replace("minimum = 4", "minimum = 400").replace("goal = 4", "goal = 400")
    )
    for line, message in (
        ("{", "events.jsonl:1: Expected a JSON object with data, service, type, user"),
        ('{"user": -1, "service": "a", "type": "b", "data": {}}', "user=-1 to be a whole number"),
        ('{"user": 1, "service": 5, "type": "b", "data": {}}', "service and type to be names"),
        ("", "has no event"),
    ):
        (tmp_path / "events.jsonl").write_text(line and line + "\n")
        assert message in refused(text, data=EVENTS)
    (tmp_path / "events.jsonl").unlink()
    assert "cannot read the events" in refused(text, data=EVENTS)


def test_a_training_that_waits_for_a_count_is_refused_by_name(tmp_path: Path) -> None:
    task = dataclasses.replace(TASKS["dpam"][1], count_usable=odp.CountUsable(share=0.1))
    (tmp_path / "dpam.task.toml").write_text(render_task(task))
    path = tmp_path / "fleet.toml"
    path.write_text(f'{TASKS["dpam"][0]}[task]\nfile = "dpam.task.toml"\n{FAULTS}')
    scenario = load_scenario(path)
    with pytest.raises(ConfigurationError, match="count_usable=None"):
        fleet_task(scenario, load_data(scenario, folder=tmp_path), folder=tmp_path, devices=DEVICES, seed=SEED)

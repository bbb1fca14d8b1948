"""`odp enclave upgrade` between two images, as programs: a population goes on with what it had left."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.killing import DATA, DEVICES, ArmedServices, UnattackedServices, a_task, data_of
from e2e.world import POPULATION, wait_finished

import odp
from device_runtime import Store, store_path
from odp.operations.local.processes import ODP, Child, ListenAddresses, Services
from odp.services.connection import TaskHandle, connect
from odp.tasks.task import Task
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import AuditReport, audit
from odp.trust.log.sources import LogFolder

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS = 300.0
ADDRESSED = ("server", "distributor", "aggregator")
POLICY = EnclavePolicy(role="aggregator", minimum_cohort=20)


def _odp(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*ODP, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _run(root: Path, services: Services, task: Task) -> None:
    """One task, from its submission to its end."""
    with connect(services.server_address, state=root) as connection:
        handle = connection.submit(task)
        _odp(
            "device", "run", "--population", POPULATION, "--server", services.server_address, "--services", str(root),
            "--state", str(root / "devices"), "--data", DATA, "--min-cohort", "20", "--until-finished",
        )  # fmt: skip
        wait_finished(handle)


def _audited(root: Path) -> AuditReport:
    return audit(LogFolder(root / "server" / "log"), ReferenceValues.load(root / "reference_values.json"))


def _upgraded(root: Path, options: Sequence[str] = ()) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_odp("enclave", "upgrade", "--services", str(root), "--json", *options).stdout)
    return told


def test_a_population_goes_on_under_the_next_version_of_the_code(tmp_path: Path) -> None:
    """The first task runs under one image, the second under another, on the ledger of the first."""
    task = a_task()
    with ArmedServices(tmp_path, policy=POLICY) as old:
        _run(tmp_path, old, task)
        told = _upgraded(tmp_path)
        assert told["populations"] == [POPULATION]
        assert told["from"] != told["to"]
    before = (tmp_path / "aggregator" / "sealed.db").read_bytes()
    with UnattackedServices(tmp_path, policy=POLICY) as new:
        assert (tmp_path / "aggregator.handed-over-0" / "sealed.db").read_bytes() == before
        _run(tmp_path, new, dataclasses.replace(task, name="films-again"))
    report = _audited(tmp_path)
    assert (report.counts["hand-over"], report.counts["evidence"]) == (1, 2)
    first, second = report.tasks
    assert first.epsilon == pytest.approx(second.epsilon)
    entries = (tmp_path / "server" / "log" / "entries").read_bytes()
    assert told["from"].encode() in entries


class Hosts:
    """Two hosts, by default with half of the devices each, which go on over an upgrade: a round needs both then."""

    def __init__(
        self, root: Path, server_address: str, *, shares: Sequence[int] = (DEVICES // 2, DEVICES // 2)
    ) -> None:
        self.root, self.server_address = root, server_address
        self.shares = [range(sum(shares[:number]), sum(shares[: number + 1])) for number in range(len(shares))]
        self.data = data_of(sum(shares))
        self.children: dict[int, Child] = {}

    def start(self, number: int | None = None) -> None:
        number = len(self.children) if number is None else number
        share = self.shares[number]
        arguments = [
            "device", "run", "--population", POPULATION, "--server", self.server_address, "--services", str(self.root),
            "--data", self.data, "--min-cohort", "20", "--first", str(share.start), "--devices", str(len(share)),
        ]  # fmt: skip
        name = f"devices-{number}"
        self.children[number] = Child(name, arguments, state=self.root / name, log=self.root / "logs" / f"{name}.log")

    def lines(self, number: int) -> list[list[tuple[bytes, int]]]:
        """What each device of a host is charged for: tasks and rounds."""
        found = []
        for device in self.shares[number]:
            with Store.open(store_path(self.root / f"devices-{number}", device)) as store:
                found.append(sorted((one.terms.task_sha256, one.round) for one in store.charged()))
        return found

    def charged(self) -> list[list[int]]:
        """The rounds that each device is charged for."""
        return [[round for _, round in lines] for number in self.children for lines in self.lines(number)]

    def stop(self) -> None:
        for child in self.children.values():
            child.stop()


def _wait_for(handle: TaskHandle, contributions: int) -> None:
    pause = threading.Event()
    for _ in range(600):
        rounds = handle.status().rounds
        if rounds and rounds[-1].contributions == contributions:
            return
        pause.wait(0.2)
    pytest.fail(f"{contributions} contributions never came")


def _wait_for_line(log: Path, event: str) -> None:
    pause = threading.Event()
    for _ in range(600):
        if event in log.read_text():
            return
        pause.wait(0.2)
    pytest.fail(f"{event} never came")


def _statistics(aggregation: str) -> odp.Statistics:
    return odp.Statistics(
        name="counts", queries={"items": odp.Histogram(bins=20)}, privacy=odp.UserLevelDP(epsilon=4, delta=1e-6),
        cohort=odp.Cohort(minimum=DEVICES - 10, goal=DEVICES, round_seconds=600, aggregation=aggregation),
        population=POPULATION,
    )  # fmt: skip


TASKS: dict[str, tuple[Task | odp.Statistics, int]] = {
    "enclave": (a_task(), 0),
    "tree": (a_task(), 2),
    "masked": (_statistics("masked"), 0),
    "secagg+": (_statistics("secagg+"), 0),
}


# CI upgrades real programs between two tasks, above; in the middle of a round of any kind it does in threads:
# device_runtime/round/test_rounds_after_void_ones.py, security/test_upgrades_under_way.py.
@pytest.mark.proof
@pytest.mark.parametrize("kind", TASKS)
def test_r371_an_upgrade_in_the_middle_of_a_round_ends_with_all_rounds_each_charged_once(
    tmp_path: Path, kind: str
) -> None:
    """Hosts of devices run on; the contributions of the first one came before, and count after it, once."""
    task, leaves = TASKS[kind]
    policy = dataclasses.replace(POLICY, leaves=leaves)
    with contextlib.ExitStack() as stack:
        with ArmedServices(tmp_path, policy=policy) as old:
            ports = {name: int(old.children[name].address.rpartition(":")[2]) for name in ADDRESSED}
            connection = stack.enter_context(connect(old.server_address, state=tmp_path))
            handle = connection.submit(task)
            hosts = Hosts(tmp_path, old.server_address)
            stack.callback(hosts.stop)
            hosts.start()
            if kind == "secagg+":  # its devices gather, and no vector was made
                _wait_for_line(tmp_path / "logs" / "aggregator.log", "secagg_gathers")
            else:
                _wait_for(handle, DEVICES // 2)
            told = _upgraded(tmp_path, ["--wait", "0", "--void-rounds"])
            assert told["populations"] == [POPULATION]
        with UnattackedServices(tmp_path, policy=policy, listen=ListenAddresses(**ports)):
            hosts.start()
            status = wait_finished(handle)
            hosts.stop()
        rounds = len(status.rounds)
        assert [one.contributions for one in status.rounds] == [DEVICES] * rounds
        assert hosts.charged() == [list(range(rounds))] * DEVICES, "charged as counted"
    report = _audited(tmp_path)
    assert report.counts["hand-over"] == 1
    assert report.counts["release"] == rounds
    assert report.tasks[0].epsilon == pytest.approx(status.epsilon_spent, rel=1e-6)


@pytest.mark.proof
def test_r398_devices_that_were_away_take_their_charge_back_with_the_next_task(tmp_path: Path) -> None:
    """Others fill all rounds of the task after the upgrade, and it ends. Only then its first devices come back."""
    task = dataclasses.replace(a_task(count=60), cohort=odp.Cohort(minimum=20, goal=30, round_seconds=600))
    first, others = 20, 40
    with contextlib.ExitStack() as stack:
        with ArmedServices(tmp_path, policy=POLICY) as old:
            ports = {name: int(old.children[name].address.rpartition(":")[2]) for name in ADDRESSED}
            connection = stack.enter_context(connect(old.server_address, state=tmp_path))
            handle = connection.submit(task)
            hosts = Hosts(tmp_path, old.server_address, shares=(first, others))
            stack.callback(hosts.stop)
            hosts.start()
            _wait_for(handle, first)
            hosts.stop()
            _upgraded(tmp_path, ["--wait", "0", "--void-rounds"])
        with UnattackedServices(tmp_path, policy=POLICY, listen=ListenAddresses(**ports)):
            hosts.start(1)
            wait_finished(handle)
            assert hosts.lines(0) == [[(handle.task_sha256, 0)]] * first, "no word reached them"
            after = connection.submit(dataclasses.replace(a_task(count=60), name="films-again"))
            hosts.start(0)
            rounds = len(wait_finished(after).rounds)
            hosts.stop()
        assert hosts.lines(0) == [[(after.task_sha256, round) for round in range(rounds)]] * first
    assert _audited(tmp_path).counts["hand-over"] == 1

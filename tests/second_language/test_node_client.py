"""A device in another language, which shares the protos and no code with ours, takes part in a task beside ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from second_language.node import (
    HERE,
    ITEMS,
    NODE_DEVICES,
    POPULATION,
    PYTHON_DEVICES,
    SECONDS,
    a_task,
    node_program,
    run_node,
)

import device_runtime
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.datasets import Ratings, synthetic_movielens
from odp.operations.local.processes import OPEN, Services
from odp.privacy.accounting import epsilon
from odp.privacy.events import GaussianRelease
from odp.services.connection import TaskHandle, connect
from odp.signed.task import open_task
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import common_pb2, server_pb2

PROTOS = HERE.parents[1] / "protos"


@pytest.fixture(scope="module")
def client_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its packages, beside a copy of the protos and of nothing else."""
    node_program()
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which is not installed")
    folder = tmp_path_factory.mktemp("second_language")
    for source in (*HERE.glob("*.mjs"), HERE / "package.json", HERE / "package-lock.json"):
        shutil.copy(source, folder)
    shutil.copytree(PROTOS, folder / "protos")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci did not end within {SECONDS:.0f} s: no registry in reach")
    if done.returncode != 0:
        # These are faults of this folder or of a package, not of the network.
        assert "EUSAGE" not in done.stderr, done.stderr
        assert "EINTEGRITY" not in done.stderr, done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        pytest.skip(f"npm ci cannot fetch the client's packages: {' '.join(errors[:3]) or done.returncode}")
    return folder


def test_the_lock_file_pins_every_package_by_hash_and_names_no_registry() -> None:
    text = (HERE / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]
    assert all("integrity" in entry for name, entry in packages.items() if name)
    assert "resolved" not in text
    assert "://" not in text


def node_devices() -> list[dict[str, object]]:
    rng = np.random.default_rng(3)
    devices = []
    for number in range(NODE_DEVICES):
        count = int(rng.integers(0, 20))  # some have more than 16 items, and device 0 some at least
        items = np.sort(rng.choice(ITEMS, count + (number == 0), replace=False))
        devices.append(
            {
                "secret": hashlib.sha256(b"node device %d" % number).hexdigest(),
                "seed": str(int(rng.integers(2**63))),
                "items": items.tolist(),
                "values": rng.integers(1, 6, len(items)).tolist(),
            }
        )
    return devices


ACCEPTED = "REFUSAL_UNSPECIFIED"


BEFORE = {
    "changed_byte": "REFUSAL_MALFORMED",
    "other_context": "REFUSAL_MALFORMED",
    "spare_bytes": "REFUSAL_MALFORMED",
    "not_sealed": "REFUSAL_MALFORMED",
    "other_task": "REFUSAL_WRONG_TASK",
    "other_task_inside": "REFUSAL_WRONG_TASK",
    "other_round": "REFUSAL_WRONG_ROUND",
    "other_model_inside": "REFUSAL_WRONG_MODEL",
    "item_twice": "REFUSAL_OUT_OF_BOUNDS",
    "item_out_of_range": "REFUSAL_OUT_OF_BOUNDS",
}


AFTER = dict.fromkeys(("replay", "second_payload", "second_id"), "REFUSAL_ALREADY_CONTRIBUTED")


BIASES = {
    "too_heavy": "REFUSAL_OUT_OF_BOUNDS",
    "too_far": "REFUSAL_OUT_OF_BOUNDS",
    "item_twice": "REFUSAL_OUT_OF_BOUNDS",
    "round_before": "REFUSAL_ROUND_CLOSED",
}


def python_devices(services: Services, folder: Path) -> device_runtime.Running:
    ratings: Ratings = synthetic_movielens(n_users=PYTHON_DEVICES, n_items=ITEMS, ratings_per_user=8, seed=5)
    config = device_runtime.Config(
        state=folder, server=services.server_address, ca=services.ca, reference_values=services.reference_values,
        population=POPULATION, limits=device_runtime.Limits(min_cohort=20),
    )  # fmt: skip
    return device_runtime.start(config, ratings=ratings)


def finished(handle: TaskHandle) -> server_pb2.TaskStatus:
    """The last status of a task. Both kinds of devices have contributed by now, so it ends within seconds."""
    for status in handle.watch(poll_seconds=0.2):
        if status.state != server_pb2.TaskStatus.STATE_ACTIVE:
            assert status.state == server_pb2.TaskStatus.STATE_FINISHED, status.failure
            return status
    raise AssertionError("the status of the task ended")


@pytest.mark.processes
@pytest.mark.slow
def test_node_devices_take_part_beside_python_devices_and_read_the_signed_release_and_its_charges(
    client_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "state"
    with contextlib.ExitStack() as stack:
        policy = EnclavePolicy(role="aggregator", minimum_cohort=20)
        services = stack.enter_context(Services(root, policy=policy, admission=OPEN))
        connection = stack.enter_context(connect(services.server_address, state=root))
        handle = connection.submit(a_task())
        base = {
            "protos": str(client_folder / "protos"),
            "ca": str(services.ca),
            "reference_values": str(services.reference_values),
            "server": services.server_address,
        }
        taking_part = {
            **base,
            "command": "take_part",
            "population": POPULATION,
            "devices": node_devices(),
            "limits": {"max_epsilon": 8, "max_delta": 1e-5, "min_cohort": 20},
        }
        counts = run_node(
            client_folder, "client.mjs", {**taking_part, "round": 0, "before": list(BEFORE), "after": list(AFTER)}
        )
        assert counts["refusals"] == [ACCEPTED] * NODE_DEVICES
        assert counts["attacks"] == {**BEFORE, **AFTER}
        assert counts["task_sha256"] == handle.task_sha256.hex()
        assert counts["policy"]["minimum_cohort"] == 20
        assert counts["sizes"] == {
            "payload": 24, "contribution": 162, "sealed_contribution": 210, "sealed_keys": 155, "sealed_rows": 221,
        }  # fmt: skip

        # The attacks added nothing: with the Python devices the round has exactly its goal.
        devices = python_devices(services, tmp_path / "devices")
        stack.callback(devices.stop)
        biases = run_node(client_folder, "client.mjs", {**taking_part, "round": 1, "before": list(BIASES)})
        assert biases["refusals"] == [ACCEPTED] * NODE_DEVICES
        assert biases["attacks"] == BIASES
        assert biases["sizes"]["payload"] == 48

        status = finished(handle)
        token = (root / "server" / "operator.token").read_text(encoding="ascii").strip()
        asked = {**base, "command": "audit", "token": token, "task_sha256": handle.task_sha256.hex()}
        audited = run_node(client_folder, "client.mjs", asked)
        signed_ledger = connection.ledger(status)

    algorithm = algorithm_for(open_task(status.task))
    charged: list[GaussianRelease] = []
    for number, release in enumerate(audited["releases"]):
        query = algorithm.query(number)
        charged += charges_of(query)
        assert release["round"] == number
        assert release["contributions"] == NODE_DEVICES + PYTHON_DEVICES
        assert [tensor["name"] for tensor in release["tensors"]] == [entry.name for entry in query.releases]
        released = common_pb2.Release.FromString(status.rounds[number].release.release)
        for tensor, sent in zip(release["tensors"], released.tensors, strict=True):
            assert tensor["values"] == (np.frombuffer(sent.integers, "<i8") * sent.step).tolist()
        assert [
            (charge["name"], charge["sensitivity"], charge["noise_std"], int(charge["coordinates"]))
            for charge in release["charges"]
        ] == [(event.name, event.sensitivity, event.noise_std, event.coordinates) for event in charges_of(query)]
        assert release["epsilon_spent"] == pytest.approx(epsilon(charged, delta=1e-5), rel=1e-9)
    assert [len(release["charges"]) for release in audited["releases"]] == [1, 2]

    ledger = signed_ledger.ledger()
    ledger.verify()
    assert audited["ledger"]["entries"] == json.loads(ledger.encode())["entries"]
    assert [(entry["round"], entry["state"]) for entry in audited["ledger"]["entries"]] == [
        (round, state) for round in range(2) for state in ("CHARGED", "SEALED")
    ]
    assert [event.name for event in ledger.population_events] == ["counts", "mass", "sums"]

"""What an object says of itself: enough for a person, on a line, and nothing that is private."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import odp
from device_runtime import Recommendation
from device_runtime.sdk import Environment
from odp._system.files.state_folder import StateFolder
from odp.algorithms.seam import LocalRows
from odp.crypto.signing import SigningKey
from odp.protocol.wire.model import Slices
from odp.services.connection import Connection, TaskHandle
from odp.signed.task import sign_task
from odp.tasks.states import in_one_line
from odp.transport.tls import development_identity
from odp.v1 import server_pb2

TASK = odp.Task(
    name="films",
    model=odp.MatrixFactorization(items=30),
    data=odp.RatingsData(),
    privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
    cohort=odp.Cohort(minimum=20, goal=150),
)
RATINGS = odp.data.synthetic_movielens(n_users=150, n_items=30, ratings_per_user=12)
#: A value that only a person's data hold.
SECRET = 31337


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with StateFolder.open(tmp_path / "server", "server") as folder:
        identity = development_identity(folder, tmp_path / "ca")
    with Connection(address="127.0.0.1:7200", ca=identity.ca_pem, token="secret-token") as opened:
        yield opened


def test_connections_and_handles_name_their_server_and_task(connection: Connection) -> None:
    handle = TaskHandle(connection, bytes.fromhex("ab" * 32), "films")
    assert repr(connection) == "<connection to 127.0.0.1:7200>"
    assert repr(handle) == "<task 'films' abababababab at 127.0.0.1:7200>"
    assert repr(TaskHandle(connection, bytes(32))) == "<task 000000000000 at 127.0.0.1:7200>"
    assert handle == TaskHandle(connection, bytes.fromhex("ab" * 32)), "its name is for people alone"


def test_a_state_of_a_task_is_one_line() -> None:
    status = server_pb2.TaskStatus(
        task=sign_task(TASK.definition(), SigningKey.generate()),
        state=server_pb2.TaskStatus.STATE_ACTIVE,
        planned_rounds=3,
        rounds=[
            server_pb2.RoundStatus(round=0, state=server_pb2.RoundStatus.STATE_APPLIED, contributions=150),
            server_pb2.RoundStatus(round=1, state=server_pb2.RoundStatus.STATE_OPEN, contributions=12),
        ],
        epsilon_spent=3.25,
        waits_for=server_pb2.TaskWait(reason="waits for devices"),
    )
    assert in_one_line(status) == (
        "task 'films' is active; round 2 of 3 is open with 12 contributions; ε spent 3.25 of 8; waits for devices"
    )


def test_a_simulation_tells_its_rounds_epsilon_and_scores() -> None:
    run = odp.simulate(TASK, RATINGS)
    assert repr(run).startswith(f"<simulation of task 'films': {len(run.rounds)} rounds, ε = ")
    assert f"test_rmse {run.metrics['test_rmse']:.4f}" in repr(run)
    assert len(repr(run)) < 200
    assert "TableValues('items', 30 x " in repr(run.model)
    silent = odp.simulate(TASK, RATINGS, noise=False)
    assert "no noise, nothing protected" in repr(silent)


def test_an_answer_tells_its_epsilon() -> None:
    asked = odp.Statistics(
        name="stars",
        queries={"stars": odp.Histogram(bins=30)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=150),
    )
    assert repr(odp.simulate(asked, RATINGS)).startswith("<simulation of task 'stars': 1 round, ε = ")


def test_a_device_names_its_folder_and_service(tmp_path: Path) -> None:
    with odp.Device(tmp_path / "app", environment=Environment(keyring=False)) as device:
        device.record("play", {"track": SECRET})
        assert repr(device) == f"<device of 'app' in {str(tmp_path / 'app')!r}>"


@pytest.mark.parametrize(
    "private",
    [
        odp.data.UsersTexts(np.array([str(SECRET)] * 2), np.array([0, 1, 2])),
        odp.data.UsersExamples(
            np.full((2, 3), SECRET, dtype=np.float32), np.full(2, SECRET, dtype=np.float32), np.arange(2), np.arange(3)
        ),
        odp.data.ExampleColumns.of_users({"x": [SECRET, SECRET]}, [0, 1]),
        LocalRows(np.array([SECRET]), np.array([float(SECRET)]), {"x": np.array([SECRET])}),
        Slices(3, np.array([SECRET]), np.array([[SECRET]], dtype=np.float32), {}),
        Recommendation(np.array([SECRET]), np.array([float(SECRET)])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_private_value_is_told(private: object) -> None:
    assert str(SECRET) not in repr(private)
    assert len(repr(private)) < 120
    assert type(private).__name__ in repr(private)

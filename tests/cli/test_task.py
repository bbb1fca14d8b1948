"""`odp task`: files, and the tasks of a running server."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.conftest import TASK, Printed
from e2e.world import World

from odp.cli.task import find_task
from odp.errors import ConfigurationError, ServiceError
from odp.tasks.file import load_task, parse_task
from odp.v1 import common_pb2, server_pb2

Odp = Callable[..., Printed]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("world")).start(stack)


def test_the_file_to_start_from_is_a_task_whose_numbers_can_be_shown(odp: Odp, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert odp("task", "new", path).out == f"{path}\n"
    assert load_task(path).model.items == 3706
    assert "planned epsilon 8.0000" in odp("task", "show", path).out


def test_show_prints_a_file_that_is_the_same_task(odp: Odp, task_file: Path) -> None:
    shown = odp("task", "show", task_file).out
    assert parse_task(shown) == load_task(task_file)
    for number in range(3):
        assert f"# round {number}: " in shown
    assert "# count_noise_std = " in shown


def test_show_json_states_the_planned_epsilon(odp: Odp, task_file: Path) -> None:
    found = odp("task", "show", task_file, "--json").json
    assert 7.99 < found["planned_epsilon"] <= 8.0
    assert found["rounds"] == 3
    assert found["definition"]["privacy"]["maxItemsPerUser"] == 30


def test_a_task_without_noise_can_be_shown_and_states_no_epsilon(odp: Odp, task_file: Path) -> None:
    task_file.write_text(TASK.replace("epsilon = 8.0", "epsilon = inf"))
    assert odp("task", "show", task_file, "--json").json["planned_epsilon"] is None
    assert parse_task(odp("task", "show", task_file).out).privacy.epsilon == math.inf


def test_a_submitted_task_can_be_listed_watched_and_cancelled(odp: Odp, task_file: Path, world: World) -> None:
    at = ("--server", world.server.address, "--state", world.root)
    submitted = odp("task", "submit", task_file, *at)
    identifier = submitted.out.strip()
    assert "computing time: 0.25 s on every device" in submitted.err
    again = odp("task", "submit", task_file, *at, "--json").json
    assert again == {"task": identifier, "computing_seconds": 0.25}, "the same file, the same task"
    task_file.write_text(TASK.replace('"films"', '"songs"'))
    other = odp("task", "submit", task_file, *at).out.strip()
    assert other != identifier

    listed = odp("task", "list", *at, "--json").json["tasks"]
    assert [(row["task"], row["name"]) for row in listed] == [(other, "songs"), (identifier, "films")]
    assert identifier[:12] in odp("task", "list", *at).out

    status = odp("task", "status", identifier[:10].upper(), *at).json
    assert (status["task"], status["state"], status["failure"]) == (identifier, "active", "")
    assert (status["epsilon"], status["delta"]) == (0.0, 1e-6)

    assert odp("task", "pause", identifier, *at, "--json").json["state"] == "paused"
    assert "is paused" in odp("task", "pause", identifier[:10], *at).out
    assert "is active" in odp("task", "resume", identifier[:10], *at).out

    assert odp("task", "cancel", identifier[:10], *at).out == "cancelled\n"
    assert odp("task", "cancel", identifier[:10], *at).out == "cancelled\n"
    assert odp("task", "status", identifier, *at).json["state"] == "cancelled"
    assert odp("task", "status", other, *at).json["state"] == "active"

    for line, wrong, named in (
        ("epsilon = 8.0", "epsilon = 30.0", "population"), ("minimum = 20", "minimum = 19", "cohort.minimum=19"),
    ):  # fmt: skip
        task_file.write_text(TASK.replace('"films"', '"books"').replace(line, wrong))
        with pytest.raises(ServiceError, match=named) as refused:
            odp("task", "submit", task_file, *at)
        assert "\n" not in str(refused.value)
    assert len(odp("task", "list", *at, "--json").json["tasks"]) == 2, "neither was taken"

    with pytest.raises(ConfigurationError, match="0 tasks have an id that starts with 'zz'"):
        odp("task", "cancel", "zz", *at)


def test_an_empty_id_names_no_task_even_where_there_is_one_alone() -> None:
    """`odp task cancel "$TASK"` in a script that forgot to set it."""
    only = SimpleNamespace(tasks=lambda: [server_pb2.TaskStatus(task=common_pb2.SignedTask(definition=b"one"))])
    with pytest.raises(ConfigurationError, match="got ''; `odp task list` shows all"):
        find_task(only, "")


def test_a_task_is_shown_with_its_computing_time(odp: Odp, task_file: Path) -> None:
    shown = odp("task", "show", task_file)
    (line,) = (line for line in shown.out.splitlines() if line.startswith("# computing time"))
    assert "0.25 s on every device" in line
    assert odp("task", "show", task_file, "--json").json["definition"]["computingMilliseconds"] == 250


def test_a_task_that_no_device_pays_is_refused_where_it_is_shown(odp: Odp, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "notifications.toml"
    path = tmp_path / "task.toml"
    path.write_text(example.read_text().replace("epochs = 3", "epochs = 1000\nmost_examples = 20000"))
    with pytest.raises(ConfigurationError, match=r"lower most_examples=20000 \(at most \d+\) or epochs=1000"):
        odp("task", "show", path)

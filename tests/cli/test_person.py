"""`odp device privacy` and its like, on devices of a real small platform that took part in every round of a task."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import device_runtime_ledger
import pytest
from cli.conftest import Printed
from e2e.world import World, small_task
from typer.testing import CliRunner

import odp as package
from device_runtime import Limits, Store, store_path
from device_runtime.person.ledger import TaskTerms
from device_runtime.round.verification import FOLDER, record_path
from odp.cli.main import app
from odp.errors import ConfigurationError, StateError
from odp.privacy import accounting
from odp.v1 import common_pb2

Odp = Callable[..., Printed]
USERS = 24


@dataclasses.dataclass(frozen=True)
class Lived:
    """What is left when the task is finished and everything stopped."""

    state: Path
    reference_values: Path
    task: bytes
    charges: list[Any]

    def of(self, device: int) -> tuple[str, ...]:
        return ("--state", str(self.state), "--device", str(device))

    def store(self, device: int) -> Store:
        return Store.open(store_path(self.state, device))


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    root = tmp_path_factory.mktemp("lived")
    ratings = package.synthetic_movielens(n_users=USERS, n_items=20, ratings_per_user=8, seed=3)
    with contextlib.ExitStack() as stack:
        world = World(root / "world").start(stack)
        handle = world.connection.submit(small_task(ratings))
        world.finish(handle, world.devices(ratings))
        ledger = world.connection.ledger(handle.status()).ledger()
        charges = [event for entry in ledger.entries for event in entry.events]
    return Lived(world.root / "devices", world.reference_values, handle.task_sha256, charges)


def examples(lived: Lived, device: int) -> str:
    with lived.store(device) as store:
        return str(store.ratings().items.size)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_the_privacy_page_charges_what_the_enclave_released(odp: Odp, lived: Lived) -> None:
    found = odp("device", "privacy", *lived.of(0), "--json").json
    assert found["spent"]["total"] == {"epsilon": accounting.epsilon(lived.charges, delta=1e-5), "delta": 1e-5}
    assert found["spent"]["30_days"] == found["spent"]["total"]
    (developer,) = found["developers"]
    assert developer["total"] == found["spent"]["total"]
    first, second = found["contributions"]
    assert [first["state"], second["state"], first["round"], second["round"]] == ["sent", "sent", 0, 1]
    assert first["so_far"]["epsilon"] < second["so_far"]["epsilon"] == found["spent"]["total"]["epsilon"]
    assert [charge["name"] for line in (first, second) for charge in line["charges"]] == [
        charge.name for charge in lived.charges
    ]
    assert found["adjacency"] == "zero_out_user"
    assert found["read"] == [
        {
            "table": "ratings", "task": "films", "rounds": 2, "columns": [], "program": False, "local_trust": False,
            "epsilon": 8.0, "delta": 1e-5,
        }
    ]  # fmt: skip
    assert (found["limits_set_by"], found["limits"]["min_cohort"]) == ("host", 20)
    text = odp("device", "privacy", *lived.of(0)).out
    assert f"{found['spent']['total']['epsilon']:.4f}" in text
    assert first["developer"][:8] in text


def test_limits_are_set_shown_and_left_to_the_host_again(odp: Odp, lived: Lived) -> None:
    at = lived.of(1)
    odp("device", "limit", "max_total_epsilon=4.5", "populations=films,music", "min_cohort=30", *at)
    found = odp("device", "limit", "max_developer_epsilon=3", *at, "--json").json
    assert (found["set_by"], found["limits"]["max_total_epsilon"]) == ("person", 4.5)
    with lived.store(1) as store:
        assert store.person().limits == Limits(
            max_total_epsilon=4.5, populations=("films", "music"), min_cohort=30, max_developer_epsilon=3.0
        )
    for wrong, message in (
        ("max_total_epsilom=4", "max_total_epsilon"),
        ("max_total_epsilon", "NAME=VALUE"),
        ("max_total_epsilon=many", "to be a number"),
        ("max_total_epsilon=-1", ">= 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            odp("device", "limit", wrong, *at)
    assert odp("device", "limit", "--reset", *at, "--json").json["set_by"] == "host"
    with lived.store(1) as store:
        assert store.person().limits is None


def test_explain_names_what_keeps_a_device_from_training_and_its_exit_code_says_it(odp: Odp, lived: Lived) -> None:
    at = lived.of(2)
    for given in ((), ("--population", "films")):
        found = run("device", "explain", *at, *given)
        assert found.exit_code == 1, "the only task that it knows is finished"
        assert "would not train now" in found.stdout
        assert "films: the task has no round left" in found.stdout
    assert "no task is known yet" in odp("device", "explain", *at, "--population", "books").out
    finished = run("device", "explain", "films", *at)
    assert finished.exit_code == 1
    assert "NO  round: the task has no round left" in finished.stdout
    odp("device", "pause", *at)
    paused = run("device", "explain", *at, "--json")
    assert paused.exit_code == 1
    unmet = [one["name"] for one in json.loads(paused.stdout)["findings"] if not one["met"]]
    assert unmet == ["pause", "tasks"]
    odp("device", "resume", *at)
    odp("device", "limit", "max_total_epsilon=1", *at)
    declined = run("device", "explain", "films", *at)
    assert "is above max_total_epsilon=1" in " ".join(declined.stdout.split())
    with pytest.raises(ConfigurationError, match="was offered"):
        odp("device", "explain", "music", *at)


def test_explain_reads_a_policy_file(lived: Lived, tmp_path: Path) -> None:
    policy = tmp_path / "conditions.toml"
    policy.write_text('unmetered = true\nwindows = ["00:00-00:00"]\n')
    found = run("device", "explain", *lived.of(2), "--conditions", policy, "--json")
    readings = {one["name"]: one for one in json.loads(found.stdout)["findings"]}
    assert (found.exit_code, readings["time"]["met"]) == (1, True)
    assert readings["network"]["read"].startswith("cannot be read")


def test_what_the_last_contribution_rests_on_is_verified_again_offline(odp: Odp, lived: Lived) -> None:
    found = odp(
        "device", "explain", "--last", *lived.of(3), "--reference-values", lived.reference_values, "--json"
    ).json
    assert found["holds"]
    said = {one["name"]: one["read"] for one in found["findings"]}
    assert set(said) == {
        "record", "reference values", "task", "model", "distributor", "aggregator", "population", "recipient",
        "transparency log",
    }  # fmt: skip
    assert said["reference values"].endswith("and are today")
    assert "emulated" in said["aggregator"]
    assert "both endorsements" in said["transparency log"]


def test_a_record_that_was_changed_or_is_gone_verifies_nothing(odp: Odp, lived: Lived) -> None:
    with lived.store(4) as store:
        path = record_path(lived.state / FOLDER, store.ledger()[-1].record)
    content = path.read_bytes()
    try:
        path.write_bytes(content.replace(b'"time": 1', b'"time": 2', 1))
        with pytest.raises(StateError, match="was changed"):
            odp("device", "explain", "--last", *lived.of(4))
        path.unlink()
        with pytest.raises(StateError, match="missing"):
            odp("device", "explain", "--last", *lived.of(4))
    finally:
        path.write_bytes(content)


def test_an_opt_out_by_name_by_id_or_of_everything_and_back(odp: Odp, lived: Lived) -> None:
    at = lived.of(5)
    odp("device", "opt-out", lived.task.hex()[:9], *at)
    with lived.store(5) as store:
        assert list(store.person().opt_outs) == [lived.task.hex()]
        assert store.local_parameters(lived.task) is None
    odp("device", "opt-out", lived.task.hex()[:9], "--undo", *at)
    odp("device", "opt-out", "films", *at)
    for unknown in ("a-task-of-the-future", "flims", "0" * 64, ""):
        for undo in ((), ("--undo",)):
            with pytest.raises(ConfigurationError, match="was offered: it knows films") as refused:
                odp("device", "opt-out", unknown, *undo, *at)
            assert ("did you mean 'films'" in str(refused.value)) == (unknown == "flims")
    assert "never offered" in odp("device", "opt-out", "a-task-of-the-future", "--ahead", *at).out
    for impossible in ("", "Films, all of them", "x" * 65):
        with pytest.raises(ConfigurationError, match="task="):
            odp("device", "opt-out", impossible, "--ahead", *at)
    odp("device", "opt-out", "--all", *at)
    text = odp("device", "privacy", *at).out
    for told in ("opted out of films", "opted out of a-task-of-the-future", "opted out of everything"):
        assert told in text
    assert "NO  opt-out: opted out of everything" in run("device", "explain", *at).stdout
    odp("device", "opt-out", "--all", "--undo", *at)
    odp("device", "opt-out", "a-task-of-the-future", "--undo", *at)
    assert "yes opt-out: not opted out" in run("device", "explain", *at).stdout
    for wrong in ((), ("films", "--all")):
        with pytest.raises(ConfigurationError, match="TASK or --all"):
            odp("device", "opt-out", *wrong, *at)


def test_the_export_holds_the_persons_data_and_no_secret(odp: Odp, lived: Lived, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    odp("device", "export", file, *lived.of(6))
    assert file.stat().st_mode & 0o777 == 0o600
    content = json.loads(file.read_text())
    with lived.store(6) as store:
        ratings, identity = store.ratings(), store.identity()
    assert [(one["item"], one["value"]) for one in content["ratings"]] == list(
        zip(ratings.items.tolist(), ratings.values.tolist(), strict=True)
    )
    assert len(content["privacy"]["contributions"]) == 2
    assert [one["task"] for one in content["local_parameters"]] == [lived.task.hex()]
    assert identity.secret.hex() not in file.read_text()
    assert str(identity.seed) not in file.read_text()


def test_erase_asks_first_and_leaves_the_ledger_unless_told(odp: Odp, lived: Lived) -> None:
    at = lived.of(7)
    refused = CliRunner().invoke(app, ["device", "erase", *at], input="n\n")
    assert refused.exit_code == 1
    assert "because the limits count on it" in refused.stderr
    assert "nothing was changed" in refused.stdout
    assert examples(lived, 7) != "0"
    odp("device", "erase", "--yes", *at)
    found = odp("device", "privacy", *at, "--json").json
    assert (found["examples"], len(found["contributions"])) == (0, 2)
    odp("device", "erase", "--yes", "--ledger-too", *at)
    found = odp("device", "privacy", *at, "--json").json
    assert (found["contributions"], found["spent"]["total"]["epsilon"]) == ([], 0.0)


def test_a_device_that_does_not_exist_is_named(odp: Odp, lived: Lived) -> None:
    for command in ("privacy", "pause", "explain", "limit"):
        with pytest.raises(StateError, match=r"999\.sqlite does not exist"):
            odp("device", command, *lived.of(999))


def test_the_privacy_page_says_how_the_store_is_protected_and_what_apps_keep(odp: Odp, tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        data = store.data("music")
        asked = data.add_request("player", {"mood": "calm"}, time=1.0)
        data.add_event("play", {"track": 17}, time=2.0, request=asked)
        data.add_event("sync", b"bytes", time=3.0)
        data.answer(asked, [{"track": 17}])
        data.set("volume", b"11", time=1.0)
        data.download("v1", {"titles": b"one"}, time=1.0)
    given = ("--state", tmp_path)
    found = odp("device", "privacy", *given, "--json").json
    assert found["at_rest"]["source"] == "file"
    assert found["at_rest"]["where"] == str(tmp_path / "store.key")
    assert found["services"] == {"music": {"events": 2, "examples": 0, "requests": 1, "local": 1, "downloads": 1}}
    assert "encrypted with AES-256" in run("device", "privacy", *given).output.replace("\n", " ")
    assert run("device", "export", tmp_path / "mine.json", *given).exit_code == 0
    exported = json.loads((tmp_path / "mine.json").read_text())["services"]["music"]
    assert [(one["type"], one.get("data"), one.get("base64")) for one in exported["events"]] == [
        ("play", {"track": 17}, None), ("sync", None, "Ynl0ZXM="),
    ]  # fmt: skip
    assert [(one["asked"], one["rows"]) for one in exported["requests"]] == [({"mood": "calm"}, [{"track": 17}])]
    assert (exported["local"], exported["downloads"]) == ({"volume": "MTE="}, {"titles": "b25l"})
    assert "whole" in run("device", "repair", *given).output
    assert run("device", "erase", *given, "--yes").exit_code == 0
    assert odp("device", "privacy", *given, "--json").json["services"] == {}


def test_the_privacy_page_says_what_reports_tell_by_themselves(odp: Odp, tmp_path: Path) -> None:
    definition = package.Task(
        name="clicks", population="people", model=package.Glm("logistic", 3),
        data=package.Examples({"x": package.Tensor((3,), -1.0, 1.0)}, label="clicked"),
        privacy=package.UserLevelDP(epsilon=4, delta=1e-6), training=package.PrivateFL(rounds=6, participations=2),
        cohort=package.Cohort(minimum=100, goal=200),
    ).definition()  # fmt: skip
    definition.developer_key = b"d" * 32
    terms = TaskTerms.of(definition, bytes(range(32)))
    signed = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=b"s" * 64)
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        line = device_runtime_ledger.participation(0, task=terms.task_sha256)
        store.prepare(line, local_parameters=None, task=signed, terms=terms)
    (found,) = odp("device", "privacy", "--state", tmp_path, "--json").json["local"]["tasks"]
    assert (found["sent"], found["most_participations"]) == (1, 2)
    shown = "".join(run("device", "privacy", "--state", tmp_path).output.split())
    for text in ("1 reports were private by themselves: ε 24", found["in_words"], found["certificate"], "at most 50"):
        assert "".join(text.split()) in shown

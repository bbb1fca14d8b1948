"""Living models against a server that is a simulation: what is stored, what a death at any step leaves behind."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

import odp
from odp._system.files import durability
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.cli.main import app
from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, ServiceError, StateError
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.protocol.wire.model import ModelVersion
from odp.tasks.file import render_task
from odp.trainings.living_model import LivingModel, Stage
from odp.v1 import common_pb2, server_pb2

ITEMS, USERS, DAY = 30, 200, 86_400.0
KEYS = tuple(f"film {number}" for number in range(ITEMS))
RATINGS = odp.data.synthetic_movielens(n_users=USERS, n_items=ITEMS, ratings_per_user=10)
SEEN = replace(RATINGS, implicit=True, values=np.ones_like(RATINGS.values), low=0.0, high=1.0)


class Platform:
    """What of a server a living model sees; the same definition is the same task, as on a real one."""

    def __init__(self) -> None:
        self.tasks: dict[bytes, common_pb2.TaskDefinition] = {}
        self.features: dict[bytes, np.ndarray | None] = {}
        self.states: dict[bytes, int] = {}
        self.dies: str = ""

    def _die_at(self, step: str) -> None:
        if self.dies == step:
            self.dies = ""
            raise ServiceError("the server does not answer")

    def submit(self, task: object) -> SimpleNamespace:
        self._die_at("before submit")
        definition = task.definition()
        key = hashlib.sha256(definition.SerializeToString(deterministic=True)).digest()
        self.tasks[key] = definition
        self.features[key] = task.public_matrix
        self.states.setdefault(key, server_pb2.TaskStatus.STATE_ACTIVE)
        self._die_at("after submit")
        return SimpleNamespace(task_sha256=key)

    def status(self, task_sha256: bytes) -> server_pb2.TaskStatus:
        self._die_at("status")
        task = common_pb2.SignedTask(definition=task_sha256)
        return server_pb2.TaskStatus(task=task, state=self.states[task_sha256], failure="")

    def model(self, status: server_pb2.TaskStatus) -> ModelVersion:
        self._die_at("model")
        implicit = self.tasks[bytes(status.task.definition)].HasField("implicit")
        return _trained(_seen_task(), SEEN) if implicit else _trained(_task(), RATINGS)

    def finish(self) -> None:
        for key in self.states:
            self.states[key] = server_pb2.TaskStatus.STATE_FINISHED


@functools.cache
def _trained(task: odp.Task, ratings: odp.data.Ratings) -> ModelVersion:
    return odp.simulate(task, ratings, noise=False).model


def _task(**changes: object) -> odp.Task:
    settings = {
        "name": "films",
        "model": odp.MatrixFactorization(items=ITEMS, rank=2),
        "data": odp.RatingsData(low=1.0, high=5.0),
        "privacy": odp.UserLevelDP(epsilon=1.0, delta=1e-5),
        "training": odp.DPAM(steps=1),
        "cohort": odp.Cohort(minimum=100, goal=USERS),
    }
    return odp.Task(**(settings | changes))


def _seen_task() -> odp.Task:
    return _task(data=odp.ImplicitData(), training=odp.ImplicitDPAM(steps=1))


def _schedule(**changes: object) -> odp.living.Schedule:
    return odp.living.Schedule(**({"every": "7d", "horizon": "4w", "lifetime_epsilon": 12.0, "delta": 1e-5} | changes))


def _living(folder: Path, **changes: object) -> LivingModel:
    return LivingModel(folder, **({"task": _task(), "schedule": _schedule(), "item_keys": KEYS} | changes))


def test_a_schedule_runs_to_its_end_and_each_training_begins_with_the_release_before(tmp_path):
    platform, now = Platform(), 1e9
    seen = []
    for week in range(4):
        # A new object each time: as another run of the command.
        begun = _living(tmp_path).advance(platform, now=now)
        assert (begun.stage, begun.training) == (Stage.TRAINING, week)
        assert _living(tmp_path).advance(platform, now=now + DAY).words == f"training {week} goes on"
        platform.finish()
        seen.append(_living(tmp_path).advance(platform, now=now + 2 * DAY))
        now += 7 * DAY
    assert [one.stage for one in seen] == [Stage.WAITING] * 3 + [Stage.COMPLETE]
    assert [one.due for one in seen[:3]] == [1e9 + 7 * DAY * week for week in (1, 2, 3)]
    assert 0.97 * 12.0 < seen[-1].epsilon <= 12.0
    assert len(platform.tasks) == 4
    features = list(platform.features.values())
    assert features[0] is None
    assert all(matrix is not None for matrix in features[1:])
    assert [one.name for one in platform.tasks.values()] == [f"films-{number}" for number in range(4)]
    assert {one.population for one in platform.tasks.values()} == {"films"}
    assert _living(tmp_path).advance(platform, now=now + 1000 * DAY).stage is Stage.COMPLETE


def test_a_living_model_refuses_a_count_of_usable_rows_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match="count_usable=None"):
        _living(tmp_path, task=_task(count_usable=odp.CountUsable()))


def test_a_model_of_what_people_have_seen_lives_as_well(tmp_path):
    platform = Platform()
    for week in range(2):
        begun = _living(tmp_path, task=_seen_task()).advance(platform, now=7 * DAY * week)
        assert (begun.stage, begun.training) == (Stage.TRAINING, week)
        platform.finish()
        _living(tmp_path, task=_seen_task()).advance(platform, now=7 * DAY * week + DAY)
    first, second = platform.tasks.values()
    assert not first.model.item_features_width
    assert second.model.item_features_width
    matrix = list(platform.features.values())[1]
    server = algorithm_for(second).server(item_features=matrix)
    counts = np.bincount(SEEN.items, minlength=ITEMS).astype(float)
    begun = server.step(server.start(), NoisyTensors(0, {"counts": counts}, USERS))
    fresh = algorithm_for(first).server()
    other = fresh.step(fresh.start(), NoisyTensors(0, {"counts": counts}, USERS))
    assert not np.array_equal(server.broadcast(begun).keyed.rows, fresh.broadcast(other).keyed.rows)
    bare = algorithm_for(second).server()
    with pytest.raises(ConfigurationError, match="names a matrix that was not given"):
        bare.step(bare.start(), NoisyTensors(0, {"counts": counts}, USERS))
    with pytest.raises(ConfigurationError, match="whose SHA-256 the task definition names"):
        algorithm_for(second).server(item_features=matrix + 1.0)


@pytest.mark.parametrize("step", ["before submit", "after submit", "status", "model"])
def test_a_death_at_any_step_neither_loses_nor_repeats_a_training(tmp_path, step):
    platform, now = Platform(), 1e9
    for _ in range(3):
        platform.dies = step
        for _ in range(3):
            try:
                _living(tmp_path).advance(platform, now=now)
            except ServiceError:
                continue
        platform.finish()
        now += 7 * DAY
    _living(tmp_path).advance(platform, now=now - 7 * DAY)
    assert len(platform.tasks) == 3
    assert _living(tmp_path).start_of(1).keys == KEYS


def test_state_survives_a_power_cut_and_what_a_killed_program_left_is_removed(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(durability, "sync_folder", synced.append)
    (tmp_path / f".state.json.1-1{durability.UNFINISHED}").write_bytes(b"half")
    _living(tmp_path).advance(Platform(), now=1e9)
    assert tmp_path in synced, "a power cut may undo a rename in a folder that was not synced"
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(durability.UNFINISHED)]


def test_a_task_that_was_stored_is_submitted_whatever_the_task_file_says_later(tmp_path):
    platform = Platform()
    platform.dies = "after submit"
    with pytest.raises(ServiceError):
        _living(tmp_path).advance(platform, now=0.0)
    other = _task(training=odp.DPAM(steps=2))
    _living(tmp_path, task=other).advance(platform, now=0.0)
    assert len(platform.tasks) == 1


def test_r378_a_training_that_began_by_a_clock_that_was_ahead_holds_up_the_next_one_for_one_period(
    tmp_path: Path,
) -> None:
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    _living(tmp_path).advance(platform, now=400 * DAY)
    platform.finish()
    healed = _living(tmp_path).advance(platform, now=DAY)
    assert (healed.stage, healed.due) == (Stage.WAITING, 8 * DAY)
    assert _living(tmp_path).advance(platform, now=7 * DAY).due == 8 * DAY
    assert _living(tmp_path).advance(platform, now=8 * DAY).stage is Stage.TRAINING


def test_a_late_schedule_does_not_train_in_a_crowd(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    late = _living(tmp_path).advance(platform, now=70 * DAY)
    assert late.stage is Stage.TRAINING
    platform.finish()
    assert _living(tmp_path).advance(platform, now=71 * DAY).due == 77 * DAY


def test_a_training_that_failed_is_paid_and_the_next_begins_with_the_release_before(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    _living(tmp_path).advance(platform, now=7 * DAY)
    for key in platform.states:
        platform.states[key] = server_pb2.TaskStatus.STATE_FAILED
    spent = _living(tmp_path).epsilon
    third = _living(tmp_path).advance(platform, now=14 * DAY)
    assert "training 1 ended without a model" in third.words
    assert third.training == 2
    assert third.epsilon > spent
    with pytest.raises(ConfigurationError, match=r"training 1 has no release; those with one: \[0\]"):
        _living(tmp_path).start_of(1)


def test_a_roll_back_changes_what_the_next_training_begins_with(tmp_path):
    platform = Platform()
    for week in range(2):
        _living(tmp_path).advance(platform, now=7 * DAY * week)
        platform.finish()
    _living(tmp_path).advance(platform, now=8 * DAY)
    _living(tmp_path).roll_back(0)
    _living(tmp_path).advance(platform, now=14 * DAY)
    assert _living(tmp_path)._state["trainings"][2]["begun_with"] == 0
    with pytest.raises(ConfigurationError, match="training 7 has no release"):
        _living(tmp_path).roll_back(7)


def test_a_roll_back_outlives_the_release_of_a_training_that_was_under_way(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    _living(tmp_path).advance(platform, now=7 * DAY)
    _living(tmp_path).roll_back(0)
    for week in (2, 3):
        platform.finish()
        _living(tmp_path).advance(platform, now=7 * DAY * week)
    begun_with = [one["begun_with"] for one in _living(tmp_path)._state["trainings"]]
    assert begun_with == [None, 0, 0, 2], "training 2 does not begin with 1, and a roll back is of one training"


def test_a_withdrawn_version_begins_no_other(tmp_path):
    platform = Platform()
    for week in range(3):
        _living(tmp_path).advance(platform, now=7 * DAY * week)
        platform.finish()
    _living(tmp_path).advance(platform, now=15 * DAY)
    living = _living(tmp_path)
    assert living.withdraw(1, reason="ratings of bots") == (2,), "training 2 began with it"
    assert living.withdraw(1, reason="another word") == (2,)
    for use in (living.start_of, living.roll_back):
        with pytest.raises(ConfigurationError, match=r"withdrawn \(ratings of bots\) .*those that can: \[0, 2\]"):
            use(1)
    living.withdraw(2, reason="began with 1")
    _living(tmp_path).advance(platform, now=21 * DAY)
    assert _living(tmp_path)._state["trainings"][3]["begun_with"] == 0, "the last release that is left"
    with pytest.raises(ConfigurationError, match="training 3 has no release"):
        _living(tmp_path).withdraw(3, reason="early")
    with pytest.raises(ConfigurationError, match="say why"):
        _living(tmp_path).withdraw(0, reason=" ")


def test_where_all_versions_are_withdrawn_the_next_training_begins_as_the_first(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    _living(tmp_path).advance(platform, now=DAY)
    assert _living(tmp_path).withdraw(0, reason="ratings of bots") == ()
    _living(tmp_path).advance(platform, now=7 * DAY)
    assert list(platform.features.values()) == [None, None]


def test_two_versions_are_compared_on_halves_of_the_population(tmp_path):
    platform = Platform()
    for week in range(2):
        _living(tmp_path).advance(platform, now=7 * DAY * week)
        platform.finish()
    _living(tmp_path).advance(platform, now=8 * DAY)
    living = _living(tmp_path)
    task = odp.Evaluation(
        name="films-0-1",
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-5),
        cohort=odp.Cohort(minimum=100, goal=USERS),
        **living.compared(platform, 0, 1),
    )
    assert task.population == "films"
    found = odp.simulate(task, RATINGS, noise=False).results
    # The platform here gives one model for both: a half differs from the other by who is in it.
    first, second = (found.models()[name].metrics["loss"].value for name in ("a", "b"))
    assert 0.1 < first < 4.0
    assert second == pytest.approx(first, rel=0.3)
    assert found.models()["a"].users.value + found.models()["b"].users.value == pytest.approx(USERS, abs=0.1)
    with pytest.raises(ConfigurationError, match="training 2 has no release"):
        living.compared(platform, 0, 2)
    living._state["trainings"][1]["item_keys"] = list(reversed(KEYS))
    living._write()
    with pytest.raises(ConfigurationError, match="the same items"):
        living.compared(platform, 0, 1)
    living.withdraw(1, reason="worse")
    with pytest.raises(ConfigurationError, match="withdrawn"):
        living.compared(platform, 0, 1)


def test_the_command_submits_a_comparison_and_takes_no_step(tmp_path, monkeypatch):
    platform = Platform()
    for week in range(2):
        _living(tmp_path / "films").advance(platform, now=7 * DAY * week)
        platform.finish()
    _living(tmp_path / "films").advance(platform, now=8 * DAY)
    (tmp_path / "films.toml").write_text(render_task(_task()))
    (tmp_path / "items.txt").write_text("\n".join(KEYS))
    monkeypatch.setattr("odp.services.connection.connect", lambda *_, **__: contextlib.nullcontext(platform))
    common = [
        "task", "retrain", str(tmp_path / "films.toml"), "--folder", str(tmp_path / "films"), "--horizon", "4w",
        "--items", str(tmp_path / "items.txt"), "--lifetime-epsilon", "12",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*common, "--compare", "0,1", "--compare-epsilon", "2"])
    assert done.exit_code == 0, (done.output, done.exception)
    asked = list(platform.tasks.values())[-1]
    assert (asked.name, asked.privacy.epsilon, asked.population) == ("films-0-1", 2.0, "films")
    assert len(platform.tasks) == 3, "two trainings, and the comparison"
    assert "odp task results" in done.output
    for wrong in ("0", "0,0", "a,b", "0,1,2"):
        refused = CliRunner().invoke(app, [*common, "--compare", wrong])
        assert "two numbers of trainings" in str(refused.exception)
    refused = CliRunner().invoke(app, [*common, "--compare", "0,1", "--roll-back", "0"])
    assert "takes no step" in str(refused.exception)
    before, tasks = (tmp_path / "films" / "living.json").read_bytes(), len(platform.tasks)
    for wrong, message in (
        (("--compare", "0,1", "--compare-epsilon", "11"), "above their max_epsilon=10"),
        (("--compare", "0,1", "--compare-epsilon", "2", "--device-epsilon", "9"), "decline"),
        (("--compare", "0,1", "--compare-epsilon", "nan"), "epsilon=nan"),
        (("--compare-epsilon", "2"), "--compare-epsilon goes with --compare"),
        (("--reason", "why"), "--reason goes with --withdraw"),
        (("--withdraw", "1", "--reason", "why", "--roll-back", "1"), "another training than the withdrawn one"),
    ):
        refused = CliRunner().invoke(app, [*common, *wrong])
        assert message in str(refused.exception)
    assert (tmp_path / "films" / "living.json").read_bytes() == before
    assert len(platform.tasks) == tasks


def test_a_schedule_of_which_devices_would_decline_a_training_is_refused_when_it_is_made(tmp_path):
    beyond = _schedule(lifetime_epsilon=24.0)
    with pytest.raises(PrivacyError, match=r"decline training 3 of 4: ε of 30 days is above .*_30_days=20"):
        _living(tmp_path, schedule=beyond)
    assert not list(tmp_path.iterdir())
    limits = odp.living.DeviceLimits(max_total_epsilon=30.0, max_total_epsilon_30_days=30.0)
    assert _living(tmp_path, schedule=beyond, limits=limits).advance(Platform(), now=0.0).training == 0


def test_a_training_that_the_lifetime_budget_does_not_hold_never_begins(tmp_path, monkeypatch):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    # As of a release whose schedule gave the first training more than its share.
    whole = GaussianRelease("model", mu_for(epsilon=11.9, delta=1e-5), 1.0, 1)
    monkeypatch.setattr(LivingModel, "_spent", lambda self: Counter([whole]))
    with pytest.raises(BudgetExceeded, match=r"training 1 would bring ε to 13\.\d+, beyond lifetime_epsilon=12"):
        _living(tmp_path).advance(platform, now=7 * DAY)
    assert len(platform.tasks) == 1
    monkeypatch.undo()
    assert _living(tmp_path).advance(platform, now=7 * DAY).training == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"schedule": _schedule(lifetime_epsilon=13.0)}, StateError, "another living model"),
        ({"task": _task(population="others")}, StateError, "population"),
        ({"item_keys": KEYS[1:]}, ConfigurationError, "30 items"),
        ({"item_keys": (KEYS[0], *KEYS[:-1])}, ConfigurationError, "film 0"),
    ],
)
def test_what_does_not_fit_the_folder_or_the_task_is_refused(tmp_path, changes, error, message):
    _living(tmp_path).advance(Platform(), now=0.0)
    with pytest.raises(error, match=message):
        _living(tmp_path, **changes)


def test_two_programs_do_not_work_in_one_folder_at_once(tmp_path):
    platform = Platform()
    first, second = _living(tmp_path), _living(tmp_path)
    refused: list[str] = []
    submit = platform.submit

    def meanwhile(task: object) -> SimpleNamespace:
        for call in (lambda: second.advance(platform, now=0.0), lambda: second.roll_back(0)):
            with pytest.raises(StateError, match="another program works") as found:
                call()
            refused.append(str(found.value))
        return submit(task)

    platform.submit = meanwhile
    first.advance(platform, now=0.0)
    platform.submit = submit
    assert len(refused) == 2
    assert second.advance(platform, now=1.0).words == "training 0 goes on", "it reads what the other one left"
    assert len(platform.tasks) == 1


def test_damaged_state_is_refused_and_not_begun_anew(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    (tmp_path / "training-0.task").write_bytes(b"other")
    with pytest.raises(StateError, match="restore it from a backup"):
        _living(tmp_path).advance(platform, now=7 * DAY)
    (tmp_path / "living.json").write_text("{")
    with pytest.raises(StateError, match=r"living\.json"):
        _living(tmp_path)


def test_a_catalogue_gives_each_training_its_items_and_carries_over_what_stays(tmp_path):
    platform = Platform()
    first = odp.items.Catalogue.make("films", KEYS)
    second = first.change(add=["new film"], retire=["film 3", "film 4"])
    assert _living(tmp_path, item_keys=None, catalogue=first).advance(platform, now=1e9).training == 0
    platform.finish()
    found = _living(tmp_path, item_keys=None, catalogue=second).advance(platform, now=1e9 + 7 * DAY)
    assert (found.stage, found.training) == (Stage.TRAINING, 1)
    before, after = (task.model for task in platform.tasks.values())
    assert (before.items, before.catalogue.version) == (ITEMS, 1)
    assert (after.items, after.catalogue.version, after.catalogue.sha256) == (ITEMS - 1, 2, second.sha256)
    columns = list(platform.features.values())[1]
    assert columns is not None
    assert len(columns) == ITEMS - 1
    assert not columns[second.numbers["new film"]].any(), "a new item begins with the mean"
    assert columns[second.numbers["film 29"]].any()


def test_a_training_whose_version_was_withdrawn_before_it_arrived_is_given_up(tmp_path):
    platform = Platform()
    first = odp.items.Catalogue.make("films", KEYS)
    platform.dies = "before submit"
    with pytest.raises(ServiceError):
        _living(tmp_path, item_keys=None, catalogue=first).advance(platform, now=1e9)
    refusal = ServiceError("catalogue version 1 of population 'films' was withdrawn")
    refusal.code = grpc.StatusCode.INVALID_ARGUMENT

    def refuse(task: object) -> None:
        raise refusal

    healthy, platform.submit = platform.submit, refuse
    with pytest.raises(ServiceError, match="withdrawn"):  # this catalogue file does not know of it
        _living(tmp_path, item_keys=None, catalogue=first).advance(platform, now=1e9)
    second = first.change(withdraw=[1])
    found = _living(tmp_path, item_keys=None, catalogue=second).advance(platform, now=1e9 + DAY)
    assert (found.stage, found.training) == (Stage.WAITING, 0)
    platform.submit = healthy
    found = _living(tmp_path, item_keys=None, catalogue=second).advance(platform, now=1e9 + 7 * DAY)
    assert (found.stage, found.training) == (Stage.TRAINING, 1)
    assert [task.model.catalogue.version for task in platform.tasks.values()] == [2]


def test_items_come_from_keys_or_from_a_catalogue_that_is_usable(tmp_path):
    catalogue = odp.items.Catalogue.make("films", KEYS)
    for keys, version in ((None, None), (KEYS, catalogue)):
        with pytest.raises(ConfigurationError, match="Expected item_keys or catalogue"):
            _living(tmp_path, item_keys=keys, catalogue=version)
    with pytest.raises(ConfigurationError, match="Expected population='films' to be that of the catalogue, 'songs'"):
        _living(tmp_path, item_keys=None, catalogue=odp.items.Catalogue.make("songs", KEYS))


def test_a_stored_training_that_began_with_a_withdrawn_release_is_not_submitted(tmp_path):
    platform = Platform()
    _living(tmp_path).advance(platform, now=0.0)
    platform.finish()
    platform.dies = "before submit"
    with pytest.raises(ServiceError):
        _living(tmp_path).advance(platform, now=7 * DAY)
    assert _living(tmp_path).withdraw(0, reason="wrong items") == (1,)
    assert _living(tmp_path).advance(platform, now=8 * DAY).stage is Stage.WAITING
    assert len(platform.tasks) == 1
    assert _living(tmp_path).advance(platform, now=14 * DAY).stage is Stage.TRAINING
    assert list(platform.features.values())[1] is None, "the next one begins with nothing"


def _two_trainings(folder, **changed):
    platform = Platform()
    for week in range(2):
        _living(folder).advance(platform, now=7 * DAY * week)
        platform.finish()
    _living(folder).advance(platform, now=8 * DAY)
    return platform


def test_a_lost_or_old_state_never_begins_what_was_released_before(tmp_path):
    _living(tmp_path).advance(platform := Platform(), now=0.0)
    platform.finish()
    _living(tmp_path).advance(platform, now=DAY)
    old = (tmp_path / "living.json").read_bytes()
    _living(tmp_path).advance(platform, now=7 * DAY)
    platform.finish()
    _living(tmp_path).advance(platform, now=8 * DAY)
    (tmp_path / "living.json").write_bytes(old)
    with pytest.raises(StateError, match="training 1 was released, of which the state"):
        _living(tmp_path).advance(platform, now=14 * DAY)
    (tmp_path / "living.json").unlink()
    with pytest.raises(StateError, match=r"living.json is gone, and training-1.npz beside it"):
        _living(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"trainings": None}, {"trainings": [3]}, {"begin_with": "0"}, {"begin_with": 7}, {"began": "xx"},
        {"began": float("nan")}, {"definition_sha256": "zz"}, {"state": "other"}, {"columns": -1}, {"item_keys": [1]},
        {"begun_with": True}, {"task_sha256": "zz"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_state_is_refused_in_words(tmp_path, change):
    _two_trainings(tmp_path)
    state = json.loads((tmp_path / "living.json").read_text())
    target = state if set(change) & {"trainings", "begin_with"} else state["trainings"][0]
    target |= change
    (tmp_path / "living.json").write_text(json.dumps(state))
    with pytest.raises(StateError, match=r"living.json is damaged: .*restore the newest copy"):
        _living(tmp_path)


def test_times_and_numbers_that_are_none_are_refused(tmp_path):
    platform = _two_trainings(tmp_path)
    for now in (float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="now="):
            _living(tmp_path).advance(platform, now=now)
    for training in (1.5, True):
        with pytest.raises(ConfigurationError, match="training="):
            _living(tmp_path).roll_back(training)


@pytest.mark.parametrize("left", [0, 1])
def test_a_catalogue_of_which_nothing_is_left_does_not_end_a_model(tmp_path, left):
    platform = Platform()
    first = odp.items.Catalogue.make("films", KEYS)
    second = first.change_to([*KEYS[:left], *(f"song {place}" for place in range(ITEMS))])
    _living(tmp_path, item_keys=None, catalogue=first).advance(platform, now=0.0)
    platform.finish()
    _living(tmp_path, item_keys=None, catalogue=second).advance(platform, now=DAY)
    found = _living(tmp_path, item_keys=None, catalogue=second).advance(platform, now=7 * DAY)
    assert (found.stage, found.training) == (Stage.TRAINING, 1)
    assert "from nothing: the release before tells nothing of these items" in found.words
    assert list(platform.features.values())[1] is None


def _released_of_versions(folder, *versions):
    """A platform with one training of each version, all released; and the living model of the last one."""
    platform = Platform()
    for week, version in enumerate(versions):
        items = {"item_keys": KEYS} if version is None else {"item_keys": None, "catalogue": version}
        _living(folder, **items).advance(platform, now=7 * DAY * week)
        platform.finish()
        _living(folder, **items).advance(platform, now=7 * DAY * week + DAY)
    return platform, _living(folder, **items)


def test_the_command_compares_trainings_of_a_catalogue(tmp_path, monkeypatch):
    first = odp.items.Catalogue.make("films", KEYS)
    second = first.change(add=["new film"], retire=["film 3"])
    platform, _ = _released_of_versions(tmp_path / "films", first, second)
    (tmp_path / "films.toml").write_text(render_task(_task()))
    second.save(tmp_path / "films.catalogue")
    monkeypatch.setattr("odp.services.connection.connect", lambda *_, **__: contextlib.nullcontext(platform))
    command = [
        "task", "retrain", str(tmp_path / "films.toml"), "--folder", str(tmp_path / "films"), "--horizon", "4w",
        "--catalogue", str(tmp_path / "films.catalogue"), "--lifetime-epsilon", "12", "--compare", "0,1",
    ]  # fmt: skip
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, (done.output, done.exception)
    assert list(platform.tasks.values())[-1].rated_items.catalogue == second.to_proto()
    second.change(withdraw=[2]).save(tmp_path / "films.catalogue")
    refused = CliRunner().invoke(app, command)
    assert "catalogue version 2 of population 'films' was withdrawn" in str(refused.exception)
    first.save(tmp_path / "films.catalogue")
    assert "Expected the catalogue file with version 2" in str(CliRunner().invoke(app, command).exception)
    assert len(platform.tasks) == 3


@pytest.mark.parametrize("numbered", [False, True], ids=["of two versions", "by number before"])
def test_trainings_of_a_catalogue_are_compared_by_the_keys_of_the_later_version(tmp_path, numbered):
    first = odp.items.Catalogue.make("films", KEYS)
    versions = [first, first.change(add=["new film"], retire=["film 3"])]
    if numbered:
        versions = [None, odp.items.Catalogue.make("films", [*KEYS[:3], *KEYS[4:], "new film"])]
    platform, living = _released_of_versions(tmp_path, *versions)
    for order in ((0, 1), (1, 0)):
        asked = living.compared(platform, *order)
        assert asked["model"].catalogue == versions[1]
        tables = {
            number: vector[2:].reshape(ITEMS, -1)
            for number, vector in zip(order, (asked["of"], asked["against"]), strict=True)
        }
        rows = platform.model(living_status(platform, 0)).keyed.rows[:, 1:]
        np.testing.assert_array_equal(tables[1], rows)
        for number, key in enumerate(versions[1].keys):
            # As an item without ratings: no bias, no row, and the least trust.
            unknown = np.concatenate(([0.0, rows[:, 1].min()], np.zeros(len(rows[0]) - 2)))
            expected = unknown if key == "new film" else rows[KEYS.index(key)]
            np.testing.assert_array_equal(tables[0][number], expected)
    definition = odp.Evaluation(
        name="films-1-0", privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-5),
        cohort=odp.Cohort(minimum=100, goal=USERS), **asked,
    ).definition()  # fmt: skip
    assert definition.rated_items.catalogue == versions[1].to_proto()


def living_status(platform, place):
    return platform.status(list(platform.tasks)[place])


def test_a_comparison_needs_the_catalogue_that_is_named_and_not_withdrawn(tmp_path):
    first = odp.items.Catalogue.make("films", KEYS)
    second = first.change(add=["new film"], retire=["film 3"])
    platform, _ = _released_of_versions(tmp_path, first, second)
    for catalogue in (first, first.change(add=["other film"], retire=["film 3"])):
        with pytest.raises(
            ConfigurationError, match="Expected the catalogue file with version 2, which task 'films-1'"
        ):
            _living(tmp_path, item_keys=None, catalogue=catalogue).compared(platform, 0, 1)
    with pytest.raises(ConfigurationError, match="Expected the catalogue file with version 2"):
        _living(tmp_path).compared(platform, 0, 1)
    for withdrawn in (second.change(withdraw=[2]), second.change(add=["third film"], withdraw=[1, 2])):
        with pytest.raises(ConfigurationError, match="catalogue version 2 of population 'films' was withdrawn"):
            _living(tmp_path, item_keys=None, catalogue=withdrawn).compared(platform, 0, 1)
    later = second.change(add=["third film"], withdraw=[1])
    assert _living(tmp_path, item_keys=None, catalogue=later).compared(platform, 0, 1)["model"].catalogue == second


@pytest.mark.parametrize("name", ["training-1.npz", "training-1.task"])
def test_a_file_that_is_gone_is_named(tmp_path, name):
    platform = _two_trainings(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(StateError, match=rf"{name}.*"):
        _living(tmp_path).advance(platform, now=14 * DAY)


def test_a_comparison_knows_what_another_program_withdrew_since(tmp_path):
    platform = _two_trainings(tmp_path)
    living = _living(tmp_path)
    _living(tmp_path).withdraw(0, reason="ratings of bots")
    with pytest.raises(ConfigurationError, match=r"training 0 was withdrawn \(ratings of bots\)"):
        living.compared(platform, 0, 1)


def test_trainings_of_ratings_are_not_compared_by_seen_items(tmp_path):
    platform = _two_trainings(tmp_path)
    with pytest.raises(ConfigurationError, match="one range and centre of ratings"):
        _living(tmp_path, task=_seen_task()).compared(platform, 0, 1)


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.slow
def test_a_schedule_of_sampled_trainings_runs_to_its_end(tmp_path):
    """The share of a training is that of one in which every contribution counts: sampled ones are charged less."""
    cohort = odp.Cohort(
        minimum=100, goal=USERS, sampling="enclave_poisson", sampling_probability=0.5, most_contributions=300
    )
    platform, task = Platform(), _task(cohort=cohort)
    for week in range(4):
        _living(tmp_path, task=task).advance(platform, now=7 * DAY * week)
        platform.finish()
        found = _living(tmp_path, task=task).advance(platform, now=7 * DAY * week + DAY)
    assert found.stage is Stage.COMPLETE
    assert 8.0 < found.epsilon <= 12.0

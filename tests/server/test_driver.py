"""The driver against services over TLS: whole tasks, a crash at every call, refusals, and absences."""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.errors import PrivacyError, StateError
from odp.models.item_features import item_features_sha256
from odp.signed.release import noisy_tensors
from odp.signed.task import model_sha256, open_task
from odp.trust.enclave.verifier import verify_fresh
from odp.v1 import aggregator_pb2, common_pb2
from server import driver
from server.driver import PUBLISH_AGAIN_SECONDS
from server.storage import RoundState, TaskState
from server.storage.sqlite import open_sqlite
from server.waits import MOST_SECONDS, PAUSED
from tests.server.stepping import step_once

GOAL = 5


def attested_key(evidence: Any, values: Any) -> bytes:
    return verify_fresh(evidence, role="aggregator", reference_values=values, clock=time.time).signing_key


def outcome(world: Any, sha256: bytes) -> tuple[TaskState, str]:
    task = world.storage.task(sha256)
    return task.state, task.failure


def test_a_task_runs_from_its_first_version_to_a_published_last_one(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    world.run(world.driver())
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    assert sorted(world.distributor.models) == [(sha256, version) for version in range(4)]
    assert world.aggregator.drawn == [(sha256, round) for round in range(3)]
    rounds = world.storage.rounds(sha256)
    assert [(entry.round, entry.state, entry.contributions) for entry in rounds] == [
        (round, RoundState.APPLIED, GOAL) for round in range(3)
    ]
    events = [(entry.event, entry.round) for entry in world.storage.history(sha256)]
    steps = ("published", "round_opened", "round_released", "round_applied")
    per_round = [(event, round) for round in range(3) for event in steps]
    assert events == [("submitted", None), *per_round, ("published", 3), ("finished", None)]


def test_the_last_version_is_the_algorithm_applied_to_every_release(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    world.run(world.driver())
    server = algorithm_for(definition).server()
    state = server.start()
    for round in range(3):
        release = common_pb2.Release.FromString(world.storage.release(sha256, round).release)
        state = server.step(state, noisy_tensors(release))
    for table in server.broadcast(state).tables:
        np.testing.assert_array_equal(world.distributor.models[sha256, 3][table.name], table.rows)


def test_public_features_reach_the_estimates_and_survive_a_restart(world: Any, definition: Any) -> None:
    matrix = np.eye(12, 4, dtype="<f4")
    definition.model.item_features_width = 4
    definition.model.item_features_sha256 = item_features_sha256(matrix)
    sha256 = world.submit(definition, matrix.tobytes())
    world.aggregator.contributions = GOAL
    world.run(world.driver(storage=open_sqlite(world.path, clock=world.clock)))
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    server = algorithm_for(definition).server(item_features=matrix)
    state = server.start()
    for round in range(3):
        release = common_pb2.Release.FromString(world.storage.release(sha256, round).release)
        state = server.step(state, noisy_tensors(release))
    for table in server.broadcast(state).tables:
        np.testing.assert_array_equal(world.distributor.models[sha256, 3][table.name], table.rows)


def test_a_paused_task_ends_its_open_round_and_opens_the_next_one_when_it_is_resumed(
    world: Any, definition: Any
) -> None:
    sha256 = world.submit(definition)
    world.run(world.driver())
    assert [entry.state for entry in world.storage.rounds(sha256)] == [RoundState.OPEN]
    world.storage.set_paused(sha256, True)
    world.aggregator.contributions = GOAL
    paused = world.driver()
    world.run(paused)
    assert [entry.state for entry in world.storage.rounds(sha256)] == [RoundState.APPLIED]
    assert paused.waits_for(sha256) == PAUSED
    again = world.driver()  # as after a restart
    world.run(again)
    assert len(world.storage.rounds(sha256)) == 1
    world.storage.set_paused(sha256, False)
    world.run(again)
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    assert again.waits_for(sha256) is None


def test_a_task_is_verified_once_and_not_at_every_look(
    world: Any, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = []
    monkeypatch.setattr(driver, "open_task", lambda signed: verified.append(signed) or open_task(signed))
    world.submit(definition)
    polling = world.driver()
    world.run(polling)
    for _ in range(5):
        step_once(polling)
    world.aggregator.contributions = GOAL
    world.run(polling)
    assert len(verified) == 1


#: Dying around these is dying after the call before: nothing changes.
READS = (
    "tasks",
    "item_features",
    "newest_version",
    "round",
    "state_and_tables",
    "release",
    "open_rounds",
    "published_models",
)


class Crash(BaseException):
    """What kill -9 looks like from inside: nothing catches it."""


class Mortal:
    """Forwards to ``inner`` and dies before or after the call whose number it was given."""

    def __init__(self, inner: Any, countdown: list[int]) -> None:
        self._inner = inner
        self._countdown = countdown

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in READS:
            return method
        if name == "leases":
            return Mortal(method, self._countdown)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            result = method(*args, **kwargs)
            self._tick()
            return result

        return wrapper

    def _tick(self) -> None:
        self._countdown[0] -= 1
        if self._countdown[0] == 0:
            raise Crash


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.proof)])
def test_a_driver_that_dies_at_any_call_is_followed_by_one_that_ends_the_task_the_same_way(
    world: Any, definition: Any, every: int
) -> None:
    """Dies before and after every call that changes something, in the storage or at a service: one place per run.

    CI takes every seventh of these places, `make proof` all.
    """
    world.aggregator.contributions = GOAL
    definition.model.rank, definition.dpam.steps = 0, 0
    reference = world.submit(definition)
    world.run(world.driver())
    runs, crashed = 0, True
    while crashed:
        runs += every
        definition.name = f"films-{runs}"
        sha256 = world.submit(definition)
        countdown = [runs]
        mortal = {
            "storage": Mortal(open_sqlite(world.path, clock=world.clock), countdown),
            "distributor": Mortal(world.services.distributor_client, countdown),
            "aggregator": Mortal(world.services.aggregator_client, countdown),
            "board": world.board(),
        }
        try:
            world.run(world.driver(**mortal))
            crashed = False
        except Crash:
            world.run(world.driver())
        assert outcome(world, sha256) == (TaskState.FINISHED, "")
        applied = [entry.round for entry in world.storage.history(sha256) if entry.event == "round_applied"]
        assert applied == [0, 1]
        assert [round for task, round in world.aggregator.drawn if task == sha256] == [0, 1]
        for name, rows in world.distributor.models[reference, 2].items():
            np.testing.assert_array_equal(world.distributor.models[sha256, 2][name], rows)
    assert runs > 40


def test_a_version_is_published_in_chunks_of_one_mebibyte(world: Any, definition: Any) -> None:
    definition.model.items, definition.model.rank, definition.dpam.steps = 100_000, 0, 0
    definition.dpam.slices_per_device = 10
    sha256 = world.submit(definition)
    driver = world.driver()
    step_once(driver)
    step_once(driver)
    assert world.distributor.largest_chunk == 2**20
    assert world.distributor.models[sha256, 0]["items"].shape == (100_000, 3)


def test_a_round_stays_open_below_its_goal_until_its_time_is_up(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.contributions = 4
    world.run(driver)
    assert world.storage.round(sha256, 0).contributions == 4
    world.monotonic.now += 59.0
    assert not step_once(driver)
    assert not world.aggregator.drawn
    world.monotonic.now += 1.0
    assert step_once(driver)
    assert world.storage.round(sha256, 0).state is RoundState.RELEASED


def test_each_round_of_a_schedule_waits_for_its_own_goal(world: Any) -> None:
    definition = odp.Task(
        name="kinds", model=odp.Glm("multinomial", features=4, classes=3), population="films",
        data=odp.Examples({"x": odp.Tensor((4,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        training=odp.DPFedAvg(rounds=2, cohort_schedule=[(1, 3), (1, 5)]),
        cohort=odp.Cohort(minimum=3, goal=5, round_seconds=60),
    ).definition()  # fmt: skip
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.contributions = 3
    world.run(driver)
    assert world.storage.round(sha256, 0).state is RoundState.APPLIED
    world.aggregator.contributions = 4
    assert not step_once(driver)
    assert world.storage.round(sha256, 1).state is RoundState.OPEN
    assert "5 contributions, its goal" in driver.waits_for(sha256).reason
    world.aggregator.contributions = 5
    world.run(driver)
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_a_round_stays_open_below_its_minimum_however_long_it_takes(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.contributions = 2
    world.run(driver)
    world.monotonic.now += 1e6
    assert not step_once(driver)
    assert world.storage.round(sha256, 0).state is RoundState.OPEN
    world.aggregator.contributions = 3
    assert step_once(driver)
    assert world.storage.round(sha256, 0).state is RoundState.RELEASED


@pytest.mark.parametrize("jump", [-1e6, -30.0, 30.0, 1e6])
def test_r252_a_clock_that_is_set_neither_holds_a_round_open_nor_closes_it_early(
    world: Any, definition: Any, jump: float
) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.contributions = 4
    world.run(driver)
    world.clock.now += jump
    for _ in range(2):
        world.monotonic.now += 29.5
        assert not step_once(driver)
    world.monotonic.now += 1.0
    assert step_once(driver)
    assert world.storage.round(sha256, 0).state is RoundState.RELEASED


@pytest.mark.parametrize(("passed", "left"), [(-1e6, 60.0), (0.0, 60.0), (45.0, 15.0), (1e6, 0.0)])
def test_r252_after_a_restart_a_round_waits_for_what_is_left_and_never_longer_than_its_time(
    world: Any, definition: Any, passed: float, left: float
) -> None:
    """The monotonic clock begins anew with the boot: the time of day says how long the program was away."""
    sha256 = world.submit(definition)
    world.aggregator.contributions = 4
    world.run(world.driver())
    world.clock.now += passed
    world.monotonic.now = 3.0
    again = world.driver()
    if left:
        world.run(again)
        world.monotonic.now += left - 0.5
        assert not step_once(again)
        world.monotonic.now += 0.5
    world.run(again)
    assert world.storage.round(sha256, 0).state is RoundState.APPLIED


def test_a_round_that_lost_contributions_since_it_was_asked_about_stays_open(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    real = world.services.aggregator_client

    class LosesThem(Mortal):
        def close_round(self, *args: Any) -> Any:
            world.aggregator.contributions = 2
            return real.close_round(*args)

    driver = world.driver(aggregator=LosesThem(real, [0]))
    world.aggregator.contributions = GOAL
    world.run(driver)
    assert outcome(world, sha256) == (TaskState.ACTIVE, "")
    assert world.storage.round(sha256, 0).state is RoundState.OPEN
    assert "below the minimum cohort" in world.lines.text


def test_a_round_that_may_not_be_charged_fails_the_task_with_the_aggregators_line(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions, world.aggregator.refuses_to_close = GOAL, True
    world.run(world.driver())
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert "spent 7, asked 2, budget 8" in failure


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
@pytest.mark.parametrize("party", ["distributor", "aggregator"])
def test_a_service_that_is_away_costs_one_line_per_try_and_never_the_task(
    world: Any, definition: Any, party: str, code: grpc.StatusCode
) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.contributions = GOAL
    getattr(world, party).failures = [code] * 3
    for wait in (0.5, 1.0, 2.0):
        world.run(driver)
        before = world.lines.text.count("task_waits")
        world.monotonic.now += 0.99 * wait
        assert not step_once(driver)
        assert world.lines.text.count("task_waits") == before
        world.monotonic.now += 0.02 * wait
    world.run(driver)
    assert world.lines.text.count("task_waits") == 3
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_the_wait_is_short_again_after_a_success(world: Any, definition: Any) -> None:
    world.submit(definition)
    driver = world.driver()
    world.distributor.failures = [grpc.StatusCode.UNAVAILABLE] * 4
    for _ in range(4):
        world.run(driver)
        world.monotonic.now += 10.0
    world.run(driver)
    world.aggregator.failures = [grpc.StatusCode.UNAVAILABLE]
    world.run(driver)
    assert world.lines.text.splitlines()[-1].count("retry_seconds=0.5 failures=1") == 1


def test_the_wait_between_tries_grows_to_half_a_minute_and_no_further(world: Any, definition: Any) -> None:
    world.submit(definition)
    driver = world.driver()
    world.distributor.failures = [grpc.StatusCode.UNAVAILABLE] * 100
    for _ in range(100):
        world.run(driver)
        world.monotonic.now += 30.0
    assert "retry_seconds=30 failures=99" in world.lines.text


def test_one_task_that_waits_does_not_hold_up_another(world: Any, definition: Any) -> None:
    waiting = world.submit(definition)
    driver = world.driver()
    world.distributor.failures = [grpc.StatusCode.UNAVAILABLE]
    world.aggregator.contributions = GOAL
    world.run(driver)
    definition.name = "books"
    other = world.submit(definition)
    world.run(driver)
    assert outcome(world, waiting) == (TaskState.ACTIVE, "")
    assert outcome(world, other) == (TaskState.FINISHED, "")


def test_a_task_over_its_budget_fails_with_the_aggregators_line(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.over_budget = True
    world.run(world.driver())
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert "spent 7, asked 2, budget 8" in failure
    assert "\n" not in failure


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda release: setattr(release, "task_sha256", bytes(32)), "another task"),
        (lambda release: setattr(release, "round", 1), "of round 1"),
        (lambda release: setattr(release, "model_sha256", bytes(32)), "another model"),
        (lambda release: release.tensors.pop(), "tensors"),
        (lambda release: release.tensors.add(name="extra"), "tensors"),
        (lambda release: setattr(release.tensors[0], "name", "gram"), "tensors"),
        (lambda release: setattr(release.tensors[0], "integers", bytes(8)), "shape"),
        (lambda release: release.tensors[0].shape.append(1), "shape"),
        (lambda release: setattr(release.tensors[0], "step", 2.0 * release.tensors[0].step), "step"),
        (lambda release: setattr(release.tensors[0], "step", float("nan")), "step"),
    ],
)
def test_a_release_of_something_else_is_refused_and_not_applied(
    world: Any, definition: Any, change: Any, word: str
) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    world.aggregator.tamper = change
    world.run(world.driver())
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert word in failure
    assert world.storage.newest_version(sha256).version == 0
    assert world.storage.round(sha256, 0).release_bytes == 0


def test_a_release_that_the_attested_enclave_signed_is_applied(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    values = world.services.reference_values()
    client = world.services.aggregator_client
    world.run(world.driver(signing_key=lambda: attested_key(client.evidence, values)))
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_a_release_under_another_key_than_the_attested_one_is_refused(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    world.run(world.driver(signing_key=lambda: world.key.public))
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert "not signed by the attested aggregator" in failure


def test_evidence_that_is_not_accepted_keeps_the_round_waiting_for_better_reference_values(
    world: Any, definition: Any
) -> None:
    sha256 = world.submit(definition)
    world.aggregator.contributions = GOAL
    values = world.services.reference_values(image="sha384:" + "cd" * 48)
    client = world.services.aggregator_client
    world.run(world.driver(signing_key=lambda: attested_key(client.evidence, values)))
    assert outcome(world, sha256) == (TaskState.ACTIVE, "")
    assert world.storage.round(sha256, 0).state is RoundState.OPEN
    assert "wrong_image" in world.lines.text
    world.run(world.driver())
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    assert len(world.aggregator.drawn) == 3


def test_a_cancelled_task_is_ended_at_both_services_and_opens_no_further_round(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.run(driver)
    assert list(world.aggregator.opened) == [(sha256, 0)]
    world.storage.end_task(sha256, TaskState.CANCELLING)
    world.aggregator.contributions = GOAL
    world.run(driver)
    assert world.aggregator.abandoned == [sha256]
    assert world.aggregator.opened == {}
    assert world.distributor.models == {}
    assert world.aggregator.releases == {}
    assert outcome(world, sha256) == (TaskState.CANCELLED, "")
    assert world.board().model("viewers") is None


@pytest.mark.parametrize("away", ["aggregator", "distributor"])
def test_a_task_is_cancelled_only_once_both_services_have_ended_it(world: Any, definition: Any, away: str) -> None:
    sha256 = world.submit(definition)
    world.run(world.driver())
    world.storage.end_task(sha256, TaskState.CANCELLING)
    getattr(world, away).failures = [grpc.StatusCode.UNAVAILABLE] * 3
    driver = world.driver()
    for _ in range(3):
        world.run(driver)
        assert outcome(world, sha256) == (TaskState.CANCELLING, "")
        world.monotonic.now += 60.0
    world.run(world.driver())  # the server was started again meanwhile
    assert outcome(world, sha256) == (TaskState.CANCELLED, "")
    assert sha256 in world.aggregator.abandoned
    assert world.distributor.models == {}


def test_a_service_that_refuses_the_end_of_a_task_is_asked_again_and_not_at_once(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.run(world.driver())
    world.storage.end_task(sha256, TaskState.CANCELLING)
    world.distributor.failures = [grpc.StatusCode.PERMISSION_DENIED] * 2
    driver = world.driver()
    for _ in range(2):
        assert world.run(driver) == 0
        assert outcome(world, sha256) == (TaskState.CANCELLING, "")
        world.monotonic.now += 60.0
    world.run(driver)
    assert outcome(world, sha256) == (TaskState.CANCELLED, "")


def test_a_task_that_failed_is_ended_at_the_aggregator_and_keeps_its_models(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.run(world.driver())
    world.aggregator.contributions = GOAL
    world.aggregator.refuses_to_close = True
    world.run(world.driver())
    assert outcome(world, sha256)[0] is TaskState.FAILED
    assert world.aggregator.abandoned == [sha256]
    assert list(world.distributor.models) == [(sha256, 0)]


def test_a_cancellation_between_the_aggregators_answer_and_its_note_is_kept(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    real = world.services.aggregator_client

    class CancelsMeanwhile(Mortal):
        def open_round(self, *args: Any) -> Any:
            key = real.open_round(*args)
            world.storage.end_task(sha256, TaskState.CANCELLING)
            return key

    world.run(world.driver(aggregator=CancelsMeanwhile(real, [0])))
    assert outcome(world, sha256) == (TaskState.CANCELLED, "")
    assert world.storage.rounds(sha256) == []
    assert world.board().answer("viewers").WhichOneof("answer") == "retry"


def test_a_restart_publishes_again_what_the_distributor_lost(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    world.run(world.driver())
    world.distributor.models.clear()
    world.run(world.driver())
    assert list(world.distributor.models) == [(sha256, 0)]


def test_a_round_that_the_aggregator_lost_is_opened_again(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.run(driver)
    assert world.board().answer("viewers").assignment.round_key.hpke_key == world.aggregator.round_key
    world.aggregator.opened.clear()
    world.aggregator.round_key = bytes(32)
    world.run(driver)
    assert list(world.aggregator.opened) == [(sha256, 0)]
    assert "opened again" in world.lines.text
    assert world.board().answer("viewers").assignment.round_key.hpke_key == bytes(32)
    world.aggregator.contributions = GOAL
    world.monotonic.now += 1.0
    world.run(driver)
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_an_unforeseen_error_of_the_algorithm_is_logged_without_its_message_and_tried_again(
    world: Any, definition: Any
) -> None:
    sha256 = world.submit(definition)
    broken = [True]

    def algorithm(given: common_pb2.TaskDefinition) -> Any:
        if broken:
            raise RuntimeError("secret 4711")
        return algorithm_for(given)

    driver = world.driver(algorithm=algorithm)
    assert not step_once(driver)
    assert "step_failed" in world.lines.text
    assert "4711" not in world.lines.text
    broken.clear()
    world.monotonic.now += 1.0
    world.aggregator.contributions = GOAL
    world.run(driver)
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_the_board_follows_every_change_of_a_round(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    board = world.board()
    driver = world.driver(board=board)
    seen = []
    world.aggregator.contributions = GOAL
    while world.storage.task(sha256).state is TaskState.ACTIVE:
        step_once(driver)
        answer = board.answer("viewers")
        entry = answer.assignment.round if answer.HasField("assignment") else answer.retry.max_seconds
        if not seen or seen[-1] != (answer.WhichOneof("answer"), entry):
            seen.append((answer.WhichOneof("answer"), entry))
        if answer.HasField("assignment"):
            assert model_sha256(answer.assignment.model) == world.aggregator.opened[sha256, entry][1]
    # The next round opens a moment after one has closed.
    rounds = [pair for round in range(3) for pair in (("assignment", round), ("retry", 1))]
    assert seen == [("retry", 2), *rounds, ("retry", 60)]


def test_r285_a_distributor_that_lost_a_model_gets_it_again_while_the_server_runs(world: Any, definition: Any) -> None:
    """Its folder was restored from a backup: without the model, no device can take part, and the round never closes."""
    sha256 = world.submit(definition)
    driver = world.driver()
    driver.start()
    try:
        assert world.lines.wait_for("round_opened")
        world.distributor.models.clear()
        published, publish = threading.Event(), world.distributor._publish

        def publishes(parts: Any, context: Any) -> Any:
            reply = publish(parts, context)
            published.set()
            return reply

        world.distributor._publish = publishes
        world.monotonic.now += PUBLISH_AGAIN_SECONDS
        driver.wake()
        assert published.wait(30.0)
    finally:
        driver.stop()
    assert set(world.distributor.models) == {(sha256, 0)}


def test_r285_a_distributor_that_is_away_stops_no_round_where_models_are_published_again(
    world: Any, definition: Any
) -> None:
    world.submit(definition)
    driver = world.driver()
    world.run(driver)
    world.distributor.failures = [grpc.StatusCode.UNAVAILABLE]
    driver.upkeep.publish_again()
    assert "not_published_again" in world.lines.text
    world.aggregator.contributions = definition.cohort.goal
    assert step_once(driver)


def test_r381_a_server_whose_database_is_two_releases_old_says_what_is_missing(world: Any, definition: Any) -> None:
    """The aggregator keeps the newest release alone. One that is one release old gets it, and goes on."""
    world.submit(definition)
    world.aggregator.contributions = definition.cohort.goal
    driver = world.driver()
    while not world.aggregator.releases:
        step_once(driver)
    backup = world.path.with_name("backup")
    with sqlite3.connect(world.path) as live, sqlite3.connect(backup) as copy:
        live.backup(copy)
    while len(world.aggregator.releases) < 3:
        step_once(driver)
    real = world.aggregator._close_round

    def close_round(request: Any) -> Any:
        if aggregator_pb2.RoundOrder.FromString(request.order).round < 2:
            raise StateError("the release is not stored")
        return real(request)

    world.aggregator._close_round = close_round
    world.storage.close()
    backup.replace(world.path)
    for left in world.path.parent.glob(f"{world.path.name}-*"):
        left.unlink()
    world.storage = open_sqlite(world.path, clock=world.clock)
    driver = world.driver()
    world.run(driver)
    (sha256,) = [task.sha256 for task in world.storage.tasks()]
    reason = driver.waits_for(sha256).reason
    assert "round 1 and round 2 were released, and the aggregator keeps the newest release alone" in reason
    assert "restore its newest backup, or cancel the task" in reason
    # Not for ever: like any other wait for an operator.
    world.monotonic.now += MOST_SECONDS
    world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FAILED


@pytest.mark.parametrize("opened", [False, True])
def test_a_task_waits_while_the_aggregator_runs_on_a_folder_that_is_not_its_own(
    world: Any, definition: Any, opened: bool
) -> None:
    """An operator mistyped --state, or a disk was not mounted: that is mended, and the task goes on."""
    sha256 = world.submit(definition)
    world.aggregator.contributions = 3
    driver = world.driver(populations=world.populations())
    if opened:
        world.run(driver)
        assert world.aggregator.opened
    else:
        world.populations().require_owned(definition.population)
    real = world.aggregator.opened, world.aggregator.chains, world.aggregator._open_round

    def unfounded(request: Any) -> Any:
        raise PrivacyError("population 'viewers' is not founded here")

    world.aggregator.opened, world.aggregator.chains, world.aggregator._open_round = {}, {}, unfounded
    for _ in range(3):
        world.monotonic.now += 60
        world.run(driver)
    assert "knows nothing of population 'viewers', which was founded there" in driver.waits_for(sha256).reason
    world.aggregator.opened, world.aggregator.chains, world.aggregator._open_round = real
    world.aggregator.contributions = definition.cohort.goal
    for _ in range(40):
        world.monotonic.now += 60
        world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FINISHED


def test_a_round_that_a_known_population_is_refused_ends_the_task(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver(populations=world.populations())

    def refused(request: Any) -> Any:
        raise PrivacyError("the policy asks for more")

    world.aggregator._open_round = refused
    world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FAILED


def test_r382_a_round_says_that_the_certificate_of_the_aggregators_chip_ended(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.clock.now = time.time()
    driver.chip.look()
    world.run(driver)
    assert "its minimum" in driver.waits_for(sha256).reason
    world.clock.now += 8 * 365 * 86_400.0
    world.monotonic.now += 3601.0
    driver.chip.look()
    world.run(driver)
    assert "the certificate of the aggregator's chip ended at 20" in driver.waits_for(sha256).reason


def test_r382_a_server_that_runs_looks_at_the_chip_of_its_aggregator(world: Any, definition: Any) -> None:
    world.submit(definition)
    world.clock.now = time.time() + 8 * 365 * 86_400.0
    driver = world.driver()
    driver.start()
    try:
        until = time.monotonic() + 60.0
        while not driver.chip.trouble:
            assert time.monotonic() < until, "nobody looks"
            time.sleep(0.01)
    finally:
        driver.stop()

"""Examples that a device's own code makes before a contribution is computed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odp
from device_runtime.assignment import Model, Work, open_assignment
from device_runtime.examples import asks_for
from device_runtime.isolated import CallLimits
from device_runtime.participation import NoExamples, Outcome, Participant
from device_runtime.sdk import EXAMPLE, Device
from device_runtime.services import Traffic
from device_runtime.store import Store
from odp.errors import NotNow, PrivacyError

SERVICE = """
import odp.isolated as on

class Films(on.IsolatedService):
    def on_training_examples(self, training, stores):
        if stores.events(type="broken"):
            raise RuntimeError("secret-of-the-person")
        for event in stores.events(type="seen"):
            yield on.Example({"film": event.data["film"], "stars": 4.0})
"""


@pytest.fixture
def task(task: odp.Task) -> odp.Task:
    made = odp.Events(service="films", type=EXAMPLE, item="film", value="stars")
    return dataclasses.replace(task, data=odp.RatingsData(low=1, high=5, events=made))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    service = tmp_path / "films.py"
    service.write_text(SERVICE)
    with Device(
        tmp_path / "app", service=service, keyring=False, call_limits=CallLimits(seconds=30.0, processor_seconds=20)
    ) as device:
        yield device


def work_of(world: Any) -> Work:
    return open_assignment(world.server.assignment, population="people")


def take_part(world: Any, participant: Participant) -> Outcome:
    with world.store(0) as store:
        return participant.take_part(store, work_of(world), Traffic())


def _adds(store: Store, model: Model) -> None:
    store.data("films").replace_events(EXAMPLE, [{"film": 7, "stars": 2.0}], time=time.time())


def test_they_are_made_before_a_contribution_and_once_for_it(world: Any) -> None:
    world.fill([4])
    asked: list[str] = []

    def make(store: Store, model: Model) -> None:
        asked.append(model.terms.name)
        _adds(store, model)

    participant = dataclasses.replace(world.participant(), before_examples=make)
    assert take_part(world, participant) is Outcome.SENT
    assert take_part(world, participant) is Outcome.SETTLED
    (keys,) = world.distributor.keys
    assert set(keys.tolist()) == {7}
    assert asked == [work_of(world).model.terms.name]


def test_they_are_not_made_for_a_task_that_the_person_declines(world: Any) -> None:
    world.fill([4])

    def never(store: Store, model: Model) -> None:
        raise KeyboardInterrupt

    participant = dataclasses.replace(world.participant(), before_examples=never)
    with world.store(0) as store:
        store.change_person(lambda person: person.with_opt_out(None, time.time()))
    with pytest.raises((PrivacyError, NotNow)):
        take_part(world, participant)
    with world.store(0) as store:
        store.change_person(lambda person: person.without_opt_out(None))
    with pytest.raises(KeyboardInterrupt):
        take_part(world, participant)


@pytest.mark.processes
def test_the_service_of_a_device_makes_what_the_task_trains_on(world: Any, device: Device) -> None:
    world.fill([4])
    with world.store(0) as store:
        for film in (3, 9):
            store.data("films").add_event("seen", {"film": film}, time=time.time())
    assert device._own is not None
    participant = dataclasses.replace(world.participant(), before_examples=device._own.before_examples)
    assert take_part(world, participant) is Outcome.SENT
    (keys,) = world.distributor.keys
    assert set(keys.tolist()) == {3, 9}


@pytest.mark.processes
def test_where_the_service_fails_the_device_takes_no_part_in_the_round(world: Any, device: Device) -> None:
    world.fill([4])
    with world.store(0) as store:
        _adds(store, work_of(world).model)
        store.data("films").add_event("broken", {}, time=time.time())
    assert device._own is not None
    participant = dataclasses.replace(world.participant(), before_examples=device._own.before_examples)
    with pytest.raises(NoExamples, match="service 'films' made no examples for task") as caught:
        take_part(world, participant)
    assert "secret-of-the-person" not in str(caught.value)
    assert not world.aggregator.submits
    assert not world.distributor.sizes
    with world.store(0) as store:
        assert [one.outcome for one in store.assignments()] == ["declined"]
        assert not store.ledger()
        # Those that it made earlier stay.
        assert len(store.data("films").events(type=EXAMPLE)) == 1
    assert any("on_training_examples of the service failed" in line for line in device._notes.lines())


def test_a_task_asks_for_them_by_service_and_type(task: odp.Task) -> None:
    definition = task.definition()
    assert asks_for(definition, service="films", type=EXAMPLE)
    assert not asks_for(definition, service="music", type=EXAMPLE)
    plain = dataclasses.replace(task, data=odp.RatingsData(low=1, high=5)).definition()
    assert not asks_for(plain, service="films", type=EXAMPLE)


def test_a_question_of_statistics_asks_for_them_too() -> None:
    made = odp.Events(service="films", type=EXAMPLE, item="film")
    task = odp.Statistics(
        name="films-seen",
        queries={"films": odp.Histogram(bins=8, events=made), "ratings": odp.Histogram(bins=5)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=200),
    )
    assert asks_for(task.definition(), service="films", type=EXAMPLE)
    assert not asks_for(task.definition(), service="films", type="seen")

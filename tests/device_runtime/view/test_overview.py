from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Outcome
from device_runtime.tasks.assignment import open_assignment
from device_runtime.view.overview import explain, export, next_round, overview
from odp.errors import PrivacyError, Refusal, ServiceUnavailable


def take_part(world: Any, **changes: Any) -> Outcome:
    with world.store(0) as store:
        work = open_assignment(world.server.assignment, population="people")
        found: Outcome = world.participant(**changes).take_part(store, work, Traffic())
        return found


def unmet(world: Any, gate: Gate) -> dict[str, str]:
    with world.store(0) as store:
        (terms,) = store.tasks()
        found = explain(store, gate, task=(terms, next_round(store, terms)))
    return {one.name: one.read for one in found if not one.met}


def test_a_task_that_was_declined_is_explained_though_nothing_was_ever_sent(world: Any) -> None:
    world.fill([5])
    limits = Limits(min_cohort=2, max_epsilon=1.0)
    with pytest.raises(PrivacyError):
        take_part(world, limits=limits)
    assert "epsilon=8 is above max_epsilon=1" in unmet(world, Gate(limits=limits))["limits"]
    assert unmet(world, Gate(limits=Limits(min_cohort=2))) == {}
    with world.store(0) as store:
        assert overview(store, Gate(), now=0.0)["contributions"] == []


def test_without_a_task_a_device_would_train_where_it_would_in_one_that_it_knows(world: Any) -> None:
    world.fill([5])
    gate = Gate(limits=Limits(min_cohort=2))

    def told(population: str | None = None, limits: Limits = gate.limits) -> tuple[bool, str]:
        with world.store(0) as store:
            found = explain(store, dataclasses.replace(gate, limits=limits), population=population)
        (tasks,) = (one for one in found if one.name == "tasks")
        return tasks.met, tasks.read

    assert told() == (True, "no task is known yet")
    take_part(world)
    assert told() == (True, "films: yes")
    assert told("others") == (True, "no task is known yet")
    met, read = told(limits=Limits(min_cohort=2, max_epsilon=1.0))
    assert not met
    assert "films: " in read
    assert "max_epsilon=1" in read
    with world.store(0) as store:
        store.change_person(lambda person: person.with_opt_out("films", 2.0))
    assert told() == (False, "films: opted out of this task")


def test_the_round_that_is_explained_is_the_one_that_would_come_next(world: Any) -> None:
    world.fill([5])
    gate = Gate(limits=Limits(min_cohort=2))
    world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(world)
    with world.store(0) as store:
        (terms,) = store.tasks()
        assert next_round(store, terms) == 0  # it is still to be sent
        assert overview(store, gate, now=0.0)["contributions"][0]["state"] == "queued"
    take_part(world)
    with world.store(0) as store:
        assert next_round(store, terms) == 1
    assert unmet(world, gate) == {}
    with world.store(0) as store:
        store.change_person(lambda person: dataclasses.replace(person, paused=1.0).with_opt_out("films", 2.0))
    assert set(unmet(world, gate)) == {"pause", "opt-out"}


def test_a_refused_contribution_is_shown_and_not_charged(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = [f"refuse {Refusal.ROUND_CLOSED.value}"]
    take_part(world)
    with world.store(0) as store:
        found = overview(store, Gate(), now=0.0)
    (line,) = found["contributions"]
    assert (line["state"], line["refusal"], line["charged"]) == ("refused", "ROUND_CLOSED", False)
    assert found["spent"]["total"]["epsilon"] == line["so_far"]["epsilon"] == 0.0
    assert found["developers"] == []


def test_the_person_alone_is_told_that_a_contribution_was_empty(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ArithmeticError

    world.fill([5])
    with monkeypatch.context() as patch:
        patch.setattr(type(world.algorithm.client()), "contribute", fails)
        assert take_part(world) is Outcome.SENT
    world.close_round()
    assert take_part(world) is Outcome.SENT
    with world.store(0) as store:
        found = overview(store, Gate(), now=0.0)
        outcomes = [one["outcome"] for one in export(store, Gate(), now=0.0)["assignments"]]
    assert (found["empty_contributions"], outcomes) == (1, ["empty", "sent"])
    assert [line["charged"] for line in found["contributions"]] == [True, True]
    assert [line["state"] for line in found["contributions"]] == ["sent", "sent"]

"""Examples that a device's own code makes in its fixed time, before a contribution is computed."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixed_times import impatient_times, until_finished

import odp
from device_runtime.isolated import CallLimits
from device_runtime.network.services import Traffic
from device_runtime.round.examples import ROW_SECONDS, STORE_SECONDS, MadeExamples, most_asked
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.participation import Outcome, Participant
from device_runtime.sdk import EXAMPLE, Device, Environment, Isolation
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model, Work, open_assignment
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
        tmp_path / "app", service=service, environment=Environment(
            keyring=False, isolation=Isolation(limits=CallLimits(seconds=30.0, processor_seconds=20))
        ),
    ) as device:  # fmt: skip
        yield device


def work_of(world: Any) -> Work:
    return open_assignment(world.server.assignment, population="people")


def take_part(world: Any, participant: Participant) -> Outcome:
    with world.store(0) as store:
        return participant.take_part(store, work_of(world), Traffic())


def _adds(store: Store) -> None:
    store.data("films").replace_events(EXAMPLE, [{"film": 7, "stars": 2.0}], time=time.time())


class Maker:
    """Makes what a test likes; ``steps`` says what happened in which order."""

    def __init__(self, make: Callable[[], Sequence[Any]], keep: Callable[[Store], None] = _adds) -> None:
        self.steps: list[str] = []
        self._make, self._keep = make, keep

    def most_asked(self, model: Model) -> int:
        return most_asked(model.definition, service="films", type=EXAMPLE)

    def make(self, path: Path, model: Model) -> Sequence[Any]:
        self.steps.append("make")
        return self._make()

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        self.steps.append("keep")
        self._keep(store)


def with_code(world: Any, maker: Any, **fixed_times: Any) -> Participant:
    made = MadeExamples(maker=maker, code_seconds=6.0)
    return dataclasses.replace(world.participant(), made_examples=made, fixed_times=impatient_times(**fixed_times))


def test_they_are_made_before_a_contribution_and_once_for_it(world: Any) -> None:
    world.fill([4])
    maker = Maker(lambda: [1])
    participant = with_code(world, maker)
    assert take_part(world, participant) is Outcome.SENT
    assert take_part(world, participant) is Outcome.SETTLED
    (keys,) = world.distributor.keys
    assert set(keys.tolist()) == {7}
    assert maker.steps == ["make", "keep"]


def test_they_are_not_made_for_a_task_that_the_person_declines(world: Any) -> None:
    world.fill([4])
    maker = Maker(lambda: [1])
    participant = with_code(world, maker)
    with world.store(0) as store:
        store.change_person(lambda person: person.with_opt_out(None, time.time()))
    with pytest.raises((PrivacyError, NotNow)):
        take_part(world, participant)
    assert maker.steps == []


def fails() -> Sequence[Any]:
    raise MemoryError


def cannot_be_kept(store: Store) -> None:
    raise ValueError("nonsense")


@pytest.mark.parametrize(
    "maker", [Maker(lambda: [1]), Maker(fails), Maker(lambda: [1], cannot_be_kept)], ids=["makes", "fails", "nonsense"]
)
def test_the_device_goes_on_when_its_time_is_over_whatever_the_code_did(world: Any, maker: Maker) -> None:
    world.fill([4])
    with world.store(0) as store:
        _adds(store)
    now = [100.0]
    waited: list[tuple[float, int, int]] = []

    def wait(seconds: float, finished: threading.Event) -> None:
        until_finished(seconds, finished)
        waited.append((seconds, len(world.distributor.sizes), len(world.aggregator.submits)))
        now[0] += seconds

    assert take_part(world, with_code(world, maker, wait=wait, monotonic=lambda: now[0])) is Outcome.SENT
    of_code = 6.0 + STORE_SECONDS + ROW_SECONDS * 10_000
    assert waited[0] == (pytest.approx(of_code), 0, 0)
    assert [calls for _, *calls in waited[1:]] == [[0, 0], [1, 0], [1, 0]], "keys, the contribution, and the upload"
    (keys,) = world.distributor.keys
    assert set(keys.tolist()) == {7}


def test_code_that_does_not_end_is_left_behind_and_its_late_examples_with_it(world: Any) -> None:
    world.fill([4])
    release = threading.Event()
    maker = Maker(lambda: [release.wait(60)])

    def wait(seconds: float, finished: threading.Event) -> None:
        if seconds < 6:
            until_finished(seconds, finished)

    participant = with_code(world, maker, wait=wait)
    try:
        assert take_part(world, participant) is Outcome.SENT
    finally:
        release.set()
    assert maker.steps == ["make"]


def test_r349_rows_that_are_stored_too_late_are_rolled_back_and_time_is_kept(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing hangs, or there are more rows than the task may read: in real time, of which the code leaves little."""
    world.fill([4])
    with world.store(0) as store:
        _adds(store)
    task = work_of(world).model

    def hangs(store: Store) -> None:
        store.data("films").replace_events(EXAMPLE, [{"film": 1, "stars": 1.0}], time=time.time())
        time.sleep(STORE_SECONDS)

    for maker, kept in ((Maker(lambda: [1], hangs), [7.0]), (Maker(lambda: [1] * 90_000), [7.0])):
        stored: list[int] = []
        keep = maker.keep
        monkeypatch.setattr(
            maker, "keep", lambda store, made, keep=keep, stored=stored: (stored.append(len(made)), keep(store, made))
        )
        whole = 0.2 + STORE_SECONDS + ROW_SECONDS * 10_000
        began = time.monotonic()
        with world.store(0) as store:
            MadeExamples(maker=maker, code_seconds=0.2).make(store, task, FixedTimes(speed=lambda: 0.0))
            assert whole <= time.monotonic() - began < whole + 20
            assert [event.data["film"] for event in store.data("films").events(type=EXAMPLE)] == kept
        assert stored[0] <= 10_000


def test_a_task_that_reads_none_gives_the_code_no_time(world: Any, task: odp.Task) -> None:
    maker = Maker(fails)
    maker.most_asked = lambda model: 0  # type: ignore[method-assign]
    world.fill([4])
    waited: list[float] = []

    def wait(seconds: float, finished: threading.Event) -> None:
        until_finished(seconds, finished)
        waited.append(seconds)

    assert take_part(world, with_code(world, maker, wait=wait)) is Outcome.SENT
    assert maker.steps == []
    assert max(waited) < 6


@pytest.mark.processes
def test_the_service_of_a_device_makes_what_the_task_trains_on(world: Any, device: Device) -> None:
    world.fill([4])
    with own_store(device) as store:
        for film in (3, 9):
            store.data("films").add_event("seen", {"film": film}, time=time.time())
    made = MadeExamples(maker=device._service, code_seconds=60.0)
    with own_store(device) as store:
        made.make(store, work_of(world).model, impatient_times())
        found = [event.data for event in store.data("films").events(type=EXAMPLE)]
    assert found == [{"film": 3, "stars": 4.0}, {"film": 9, "stars": 4.0}]


@pytest.mark.processes
def test_where_the_service_fails_earlier_examples_stay_and_the_person_alone_is_told(world: Any, device: Device) -> None:
    with own_store(device) as store:
        _adds(store)
        store.data("films").add_event("broken", {}, time=time.time())
        MadeExamples(maker=device._service, code_seconds=60.0).make(store, work_of(world).model, impatient_times())
        assert [event.data for event in store.data("films").events(type=EXAMPLE)] == [{"film": 7, "stars": 2.0}]
    assert any("on_training_examples of the service failed" in line for line in device._notes.lines())
    assert "secret-of-the-person" not in "".join(device._notes.lines())


def own_store(device: Device) -> Store:
    """The store of the app's device, with its key."""
    return device._open()


def test_a_task_asks_for_them_by_service_and_type(task: odp.Task) -> None:
    definition = task.definition()
    assert most_asked(definition, service="films", type=EXAMPLE) == 10_000
    assert not most_asked(definition, service="music", type=EXAMPLE)
    plain = dataclasses.replace(task, data=odp.RatingsData(low=1, high=5)).definition()
    assert not most_asked(plain, service="films", type=EXAMPLE)


def test_a_question_of_statistics_asks_for_them_too() -> None:
    made = odp.Events(service="films", type=EXAMPLE, item="film")
    task = odp.Statistics(
        name="films-seen",
        queries={"films": odp.Histogram(bins=8, events=made), "ratings": odp.Histogram(bins=5)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=200),
    )
    assert most_asked(task.definition(), service="films", type=EXAMPLE)
    assert not most_asked(task.definition(), service="films", type="seen")

"""An app's own device takes part in a task beside a host of others, over TLS, with examples that its service makes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.world import POPULATION, World, small_task

import odp
from device_runtime.isolated import CallLimits
from device_runtime.person.limits import Limits
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.sdk import EXAMPLE, RECOMMENDED, Environment, Isolation
from device_runtime.store.store import Store, store_path
from odp.errors import ConfigurationError, ServiceUnavailable
from odp.services.connection import TaskHandle

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="services need Linux"),
]

OTHERS = 20
SERVICE = """
import odp.isolated as on

class Films(on.IsolatedService):
    def on_training_examples(self, training, stores):
        for event in stores.events(type="seen"):
            yield on.Example({"film": event.data["film"], "stars": 2.0 + len(training.task)})
"""


def until_finished(seconds: float, finished: threading.Event) -> None:
    """Instead of the whole fixed time of the service, which a test need not wait for."""
    assert finished.wait(60.0)


def test_its_service_makes_the_examples_of_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_runtime.host.program.FixedTimes", functools.partial(FixedTimes, wait=until_finished))
    (tmp_path / "films.py").write_text(SERVICE)
    others = odp.data.synthetic_movielens(n_users=OTHERS, n_items=12, ratings_per_user=5, seed=5)
    made = odp.Events(service="films", type=EXAMPLE, item="film", value="stars")
    task = dataclasses.replace(
        small_task(others, places=5, training=odp.DPAM(steps=0)),
        data=odp.RatingsData(low=1, high=5, events=made),
        cohort=odp.Cohort(minimum=20, goal=OTHERS + 1, round_seconds=600),
    )
    with contextlib.ExitStack() as stack:
        world = World(tmp_path / "world").start(stack)
        handle = world.connection.submit(task)
        device = stack.enter_context(
            odp.Device(
                tmp_path / "app", service=tmp_path / "films.py", limits=Limits(min_cohort=20),
                environment=Environment(
                    keyring=False, isolation=Isolation(limits=CallLimits(seconds=60.0, processor_seconds=20))
                ),
            )
        )  # fmt: skip
        device.record("seen", {"film": 3})
        device.train(POPULATION, server=world.server.address, ca=world.ca, reference_values=world.reference_values)
        world.finish(handle, world.devices(others))
        device.close()
        found = device.privacy()
        with Store.open(store_path(device.state, 0)) as store:
            (example,) = store.data("films").events(type=EXAMPLE)
    assert [(one["round"], one["state"], one["tables"]) for one in found["contributions"]] == [
        (0, "sent", ["events.films"]),
        (1, "sent", ["events.films"]),
    ]
    # It was told which task asked.
    assert example.data == {"film": 3, "stars": 2.0 + len(POPULATION)}


@contextlib.contextmanager
def _world_and_device(root: Path, **limits: Any) -> Iterator[tuple[World, odp.Device]]:
    """A device whose services are described by a folder, as `odp up` leaves it."""
    with contextlib.ExitStack() as stack:
        world = World(root / "world").start(stack)
        (world.root / "server" / "address").write_text(f"{world.server.address}\n")
        yield (
            world,
            stack.enter_context(
                odp.Device(root / "app", limits=odp.Limits(**limits), environment=Environment(keyring=False))
            ),
        )


def _recommended(device: odp.Device) -> list[list[float]]:
    """What the service would read."""
    with Store.open(store_path(device.state, 0)) as store:
        return json.loads(store.data(device.service).get(RECOMMENDED) or "[]")


def _wait_open(handle: TaskHandle) -> None:
    """Until the first round is open."""
    assert next(status for status in handle.watch(poll_seconds=0.05) if status.rounds).rounds


def test_learn_takes_turns_with_the_services_of_a_folder_and_tells_what_became_of_them(tmp_path: Path) -> None:
    others = odp.data.synthetic_movielens(n_users=OTHERS, n_items=12, ratings_per_user=5, seed=5)
    seen = odp.Events(service="app", type="seen", item="film", value="stars")
    task = dataclasses.replace(
        small_task(others, places=5, training=odp.DPAM(steps=0)),
        data=odp.RatingsData(low=1, high=5, events=seen),
        cohort=odp.Cohort(minimum=20, goal=OTHERS + 1, round_seconds=600),
    )
    with _world_and_device(tmp_path, min_cohort=20) as (world, device):
        device.record("seen", {"film": 3, "stars": 4})
        handle = world.connection.submit(task)
        _wait_open(handle)
        first = device.learn(POPULATION, services=world.root)
        assert [(one.task, one.round, one.epsilon) for one in first.contributions] == [(task.name, 1, 8.0)]
        assert str(first) == f"contributed to round 1 of task {task.name!r} (ε = 8, δ = 1e-05 for all of it)"
        again = device.learn(POPULATION, services=world.root)
        assert str(again) == f"did not contribute: round 1 of task {task.name!r} waits for others"
        running = world.devices(others)
        last = device.learn(POPULATION, services=world.root, wait=120.0)
        world.finish(handle, running)
        assert ([one.round for one in last.contributions], last.reason) == ([2], "")
        assert device.use_model(POPULATION, services=world.root, count=3) is None
        assert len(_recommended(device)) == 3
        nothing = device.learn(POPULATION, services=world.root)
        assert str(nothing) == f"did not contribute: no round of population {POPULATION!r} is open now"
        # The server said when to come back, and the device keeps to that.
        assert "asked to check in again" in device.learn(POPULATION, services=world.root).reason


def test_an_app_of_a_catalogue_shows_items_by_title_to_the_person_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = odp.data.synthetic_movielens(n_users=OTHERS, n_items=12, ratings_per_user=5, seed=5)
    keys = odp.datasets.catalogue_keys(others)
    catalogue = odp.items.Catalogue.make(POPULATION, keys[::-1])
    small = small_task(others, places=5, training=odp.DPAM(steps=0))
    task = dataclasses.replace(
        small, population=POPULATION, cohort=odp.Cohort(minimum=20, goal=OTHERS + 1, round_seconds=600),
        model=dataclasses.replace(small.model, catalogue=catalogue),
    )  # fmt: skip
    titles = tmp_path / "titles.csv"
    rows = [f'"{key}",The {place}th' for place, key in enumerate(keys) if place != 5]
    titles.write_text("\n".join(["item,title", "Unknown,Nothing", *rows]), encoding="utf-8")
    lines: list[str] = []
    with _world_and_device(tmp_path, min_cohort=20) as (world, numbered), odp.Device(
        tmp_path / "keyed", limits=odp.Limits(min_cohort=20),
        environment=Environment(keyring=False),
    ) as device:  # fmt: skip
        device.use_catalogue(catalogue)
        device.rate(keys[3], 5.0)
        numbered.rate(3, 5.0)
        world.connection.publish_catalogue(catalogue)
        handle = world.connection.submit(task)
        running = world.devices(others)
        learned = device.learn(POPULATION, services=world.root, turns=2, wait=120.0, progress=lines.append)
        world.finish(handle, running)
        assert [one.round for one in learned.contributions] == [1, 2]
        assert [line for line in lines if line.startswith("contributed")] == [
            f"contributed to round {round} of task {task.name!r}" for round in (1, 2)
        ]
        capsys.readouterr()
        device.recommend(POPULATION, services=world.root, count=12, titles=titles)
        note, *printed = capsys.readouterr().out.splitlines()
        assert note == "note: 1 items of the model have no title, and are called by their keys"
        with Store.open(store_path(device.state, 0)) as store:
            best = [key for key, _ in json.loads(store.data(device.service).get(RECOMMENDED) or "[]")]
        assert len(best) == 11
        assert keys[3] not in best
        shown = {f"The {place}th" if place != 5 else key: key for place, key in enumerate(keys)}
        assert [shown[line[5:].rsplit("  ", 1)[0].strip()] for line in printed[1:]] == best
        page = urllib.request.urlopen(device.show(), timeout=10).read().decode()
        assert "Recommended to you" in page
        assert page.index(html.escape(printed[1][5:].rsplit("  ", 1)[0].strip())) > 0
        device.recommend(POPULATION, services=world.root, titles=titles, why=True)
        reasons = [line for line in capsys.readouterr().out.splitlines() if line.startswith("     because of ")]
        assert reasons
        assert all(line.startswith("     because of The 3th (") for line in reasons)  # the only own rating
        assert "because of The 3th (" in urllib.request.urlopen(device.show(), timeout=10).read().decode()
        # Ratings by number are none of this model's, and the person hears of it.
        numbered.recommend(POPULATION, services=world.root)
        assert capsys.readouterr().out.startswith("note: 1 of your own ratings take no part: ")


def test_learn_declines_what_its_limits_forbid_and_names_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    others = odp.data.synthetic_movielens(n_users=OTHERS, n_items=12, ratings_per_user=5, seed=5)
    with _world_and_device(tmp_path, min_cohort=1000) as (world, device):
        _wait_open(world.connection.submit(small_task(others, places=5, training=odp.DPAM(steps=0))))
        declined = device.learn(POPULATION, services=world.root)
        assert declined.contributions == ()
        assert "the device declined: " in declined.reason
        assert "min_cohort" in declined.reason
        for wrong in ({"turns": 0}, {"wait": -1.0}):
            with pytest.raises(ConfigurationError, match=next(iter(wrong))):
                device.learn(POPULATION, services=world.root, **wrong)
        with pytest.raises(ConfigurationError, match="is no state folder of `odp up`"):
            device.learn(POPULATION, services=tmp_path / "elsewhere")
        world.server.stop()
        for call in (device.learn, device.use_model):
            with pytest.raises(ServiceUnavailable):
                call(POPULATION, services=world.root)
        assert _recommended(device) == []

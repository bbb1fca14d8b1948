"""An app's own device takes part in a task beside a host of others, over TLS, with examples that its service makes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from pathlib import Path

import pytest
from e2e.world import POPULATION, World, small_task

import odp
from device_runtime.isolated import CallLimits
from device_runtime.person.limits import Limits
from device_runtime.round.made_examples import MadeExamples
from device_runtime.sdk import EXAMPLE, Environment, Isolation
from device_runtime.store.store import Store, store_path

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
    monkeypatch.setattr("device_runtime.sdk.MadeExamples", functools.partial(MadeExamples, wait=until_finished))
    (tmp_path / "films.py").write_text(SERVICE)
    others = odp.synthetic_movielens(n_users=OTHERS, n_items=12, ratings_per_user=5, seed=5)
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
                isolation=Isolation(limits=CallLimits(seconds=60.0, processor_seconds=20)),
                environment=Environment(keyring=False),
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

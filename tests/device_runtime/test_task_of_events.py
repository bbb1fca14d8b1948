"""A task whose examples are made of events, from its signed definition to the bytes that the aggregator counts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from own_rows import own_rows

import odp
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.participation import Outcome
from device_runtime.tasks.assignment import Work, open_assignment
from odp.errors import PrivacyError
from odp.protocol.wire.model import Slices


@pytest.fixture
def task(task: odp.Task) -> odp.Task:
    played = odp.Events(service="music", type="play", item="track", value="stars", where=["seconds >= 30"])
    return replace(task, data=odp.RatingsData(low=1, high=5, events=played))


def work_of(world: Any) -> Work:
    return open_assignment(world.server.assignment, population="people")


def test_a_task_of_events_is_trained_on_them_within_the_persons_tables(world: Any) -> None:
    """The server changes what devices train on by another task, with nothing changed on the device."""
    world.fill([4])
    with world.store(0) as store:
        data = store.data("music")
        for track, stars, seconds in ((3, 1.0, 200), (9, 4.0, 40), (3, 7.0, 31), (5, 2.0, 5)):
            data.add_event("play", {"track": track, "stars": stars, "seconds": seconds}, time=time.time())
        store.set_limits(Limits(min_cohort=2, tables=("ratings",)))
    participant = world.participant()
    with world.store(0) as store, pytest.raises(PrivacyError, match=r"table='events\.music'"):
        participant.take_part(store, work_of(world), Traffic())
    with world.store(0) as store:
        assert [one.outcome for one in store.assignments()] == ["declined"]
        store.set_limits(Limits(min_cohort=2, tables=("events.music",)))
        assert participant.take_part(store, work_of(world), Traffic()) is Outcome.SENT
        assert [one.outcome for one in store.assignments()] == ["sent"]
        identity_ = store.identity()
    (keys,) = world.distributor.keys
    assert set(keys.tolist()) == {3, 9}
    client = world.algorithm.client()
    expected = own_rows(np.array([3, 9]), np.array([5.0, 4.0]))
    broadcast = world.distributor.broadcast
    slices = Slices(0, np.array([3, 9]), broadcast.keyed.rows[[3, 9]], broadcast.dense)
    payload, _ = client.contribute(slices, expected, round=0, seed=identity_.seed)
    (found,) = world.aggregator.counted.values()
    assert found.payload == payload

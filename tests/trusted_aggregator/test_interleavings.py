"""Random schedules of all that can happen to a round: never counted twice, charged twice, or released two ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odp.errors import PrivacyError, Refusal, StateError
from odp.privacy.ledger import Ledger
from odp.v1 import common_pb2
from trusted_aggregator import records as names
from trusted_aggregator.interface import Status
from trusted_aggregator.sealed_state import RoundNoise, Sealer

DEVICES = 6
MINIMUM = 3

STEP = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("submit unstored"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("replay"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("charge"), st.booleans()),  # whether the host stores it
    st.tuples(st.just("release"), st.booleans()),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("old state"), st.integers(0, 30)),
)


@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=30))
def test_no_schedule_counts_or_charges_twice_or_gives_two_releases(make_world, steps):
    world = make_world(minimum=MINIMUM)
    world.open()
    key = (world.task_sha256, 0)
    sealer = Sealer(world.identity.sealing_key)
    noise = RoundNoise.decode(
        sealer.open(names.noise_key(*key), world.records[names.noise_key(*key)]),
        world.algorithm.query(0).releases,
    )
    sealed = {device: world.sealed(device) for device in range(DEVICES)}
    history = [(dict(world.records), [])]
    released: set[bytes] = set()
    for step, argument in steps:
        state = world.core.round_state(*key)
        before = state.contributions
        if step in ("submit", "submit unstored", "replay"):
            again = sealed[argument] if step == "replay" else world.sealed(argument)
            if step == "submit unstored":
                refusal = world.core.submit(*key, again)
                if refusal is None:
                    world.restart()  # the host stops where it could not store what was accepted
            else:
                refusal = world.submit(again)
                after = world.core.round_state(*key).contributions
                assert after == before + (refusal is None)
            assert refusal in (None, Refusal.ALREADY_CONTRIBUTED, Refusal.ROUND_CLOSED)
        elif step == "charge":
            try:
                charged = world.charge()
            except PrivacyError:
                assert before < MINIMUM
                continue
            assert charged.contributions >= MINIMUM
            if argument:
                world.persist(charged.writes)
        elif step == "release":
            if state.status is Status.OPEN:
                with pytest.raises(PrivacyError):
                    world.release()
                continue
            if names.ledger_key(world.population) not in world.records:
                continue  # an honest host stores the charge first; the others are tested in test_crashes
            answer = world.release()
            released.add(answer.signed_release)
            if argument or state.status is Status.RELEASED:
                world.persist(answer.writes)
            else:
                world.restart()
        elif step == "open":
            world.open()
        elif step == "restart":
            world.restart()
        else:
            records, rows = history[argument % len(history)]
            try:
                world.restart(dict(records), {key: list(rows)})
            except StateError:
                world.restart()
            else:
                world.records, world.rows = dict(records), {key: list(rows)}
        history.append((dict(world.records), list(world.rows.get(key, []))))

    ledger = Ledger.decode(world.core.ledger(world.task_sha256)[0])
    ledger.verify()
    assert len(ledger.population_events) <= 1
    assert len(released) <= 1
    for signed in released:
        assert len(ledger.population_events) == 1
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed).release)
        # The exact sum of distinct devices: each gave 4 items, so it counts 4 times the grid's units or not at all.
        counts = np.frombuffer(release.tensors[0].integers, "<i8") - noise.arrays["counts"]
        total = world.algorithm.query(0).new_sum()
        total.add([world.payload(device) for device in range(DEVICES)])
        assert (counts <= total.totals()["counts"]).all()
        assert counts.sum() * release.tensors[0].step == 4 * release.contributions
        assert MINIMUM <= release.contributions <= DEVICES

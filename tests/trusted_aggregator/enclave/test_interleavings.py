"""Random schedules of all that can happen to a round: never counted twice, charged twice, or released two ways.

The host of these schedules is the attacker: it stores what it likes, says that it did when it did not, brings back any
old state, and hands in any sealed release that it ever saw.
"""

from __future__ import annotations

import contextlib
import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from odp.crypto import SigningKey
from odp.errors import ConfigurationError, OdpError, PrivacyError, Refusal, StateError
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import ReleaseState, entries_of
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.state.records import ledger_key, release_key

DEVICES = 6
MINIMUM = 3

STORED = st.booleans()
STEP = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("submit unstored"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("replay"), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("charge"), STORED),
    st.tuples(st.just("seal"), STORED),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("old state"), st.integers(0, 30)),
)
END = st.tuples(st.sampled_from(["abandon", "retire"]), STORED)


class Schedule:
    """One world, the host's memory of all that it saw, and what left the enclave."""

    def __init__(self, world):
        self.world = world
        self.key = (world.task_sha256, 0)
        world.open()
        self.noise = world.noise()
        self.sealed = {device: world.sealed(device) for device in range(DEVICES)}
        self.history = [(dict(world.records), [])]
        self.kept_releases = [b""]
        self.given: dict[str, bytes | None] = {}
        self.released: set[bytes] = set()
        self.ending = False  # the enclave was told to end the task since it started
        self.ended = False  # .. and that is in force
        self.locked_out = False

    def run(self, steps):
        for step, argument in steps:
            getattr(self, "_" + step.split()[0])(step, argument)
            if self.locked_out:
                return
            self.history.append((dict(self.world.records), list(self.world.rows.get(self.key, []))))

    def _submit(self, step, device):
        world, before = self.world, self._contributions()
        again = self.sealed[device] if step == "replay" else world.sealed(device)
        if step == "submit unstored":
            refusal = world.core.submit(*self.key, again)
            if refusal is None:
                self._restart("restart", 0)  # the host stops where it could not store what was accepted
        else:
            refusal = world.submit(again)
            assert self._contributions() == before + (refusal is None)
        closed = (None, Refusal.ALREADY_CONTRIBUTED, Refusal.ROUND_CLOSED)
        assert refusal in ((Refusal.TASK_ABANDONED,) if self.ending or self.ended else closed)

    _replay = _submit

    def _charge(self, step, stored):
        try:
            charged = self.world.charge()
        except PrivacyError:
            assert self._contributions() < MINIMUM or self.ending or self.ended
        except (ConfigurationError, StateError):
            assert self.ending or self.ended
        else:
            assert charged.contributions >= MINIMUM
            self._answered(charged.writes, stored)

    def _seal(self, step, stored):
        with contextlib.suppress(OdpError):
            self._answered(self.world.seal_release(), stored)

    def _answered(self, writes, stored):
        self.kept_releases += [record.data for record in writes if record.key == release_key(*self.key) and record.data]
        self.given.update({record.key: record.data for record in writes})
        if stored:
            self.world.persist(writes)

    def _commit(self, step, _):
        self.world.core.commit()
        self.ended |= self.ending

    def _release(self, step, which):
        order = self.world.order(0, b"odp/v1/close")[0]
        kept = self.kept_releases[which % len(self.kept_releases)]
        try:
            signed = self.world.core.release(order, stored=kept)
        except OdpError:
            return
        assert not self.ended
        self.released.add(signed)

    def _abandon(self, step, stored):
        try:
            self._answered(self.world.abandon(), stored)
        except StateError:
            return  # another change waits to be put in force
        self.ending = True

    def _retire(self, step, stored):
        try:
            self._answered(self.world.core.set_charter(self.world.other_owner(SigningKey.generate())), stored)
        except StateError:
            return
        except PrivacyError:
            assert self.ended or self.ending
            return
        self.ending = True

    def _open(self, step, _):
        try:
            self._answered(self.world.core.open_round(self.world.task, *self.world.order(0, b"odp/v1/open")), True)
        except OdpError:
            assert self.ending or self.ended or self._status() is Status.VOID

    def _restart(self, step, _):
        self._start(self.world.records, self.world.rows)

    def _old(self, step, place):
        records, rows = self.history[place % len(self.history)]
        try:
            self.world.restart(dict(records), {self.key: list(rows)})
        except StateError:
            self._restart("restart", 0)
        else:
            self.world.records, self.world.rows = dict(records), {self.key: list(rows)}
            self._started()

    def _start(self, records, rows):
        try:
            self.world.restart(dict(records), rows)
        except StateError:
            self.locked_out = True  # this host put in force what it never stored
        else:
            self._started()

    def _started(self):
        self.ending = self.world.core.state.holdings.is_ended(self.key[0])
        assert self.ending or not self.ended
        # A start puts in force what it starts from.
        self.ended |= self.ending

    def _status(self):
        state = self.world.core.round_state(*self.key)
        return None if state is None else state.status

    def _contributions(self):
        state = self.world.core.round_state(*self.key)
        return 0 if state is None else state.contributions

    def check(self):
        population = self.world.core.state.populations[self.world.population]
        asked = {record.key: record.data for record in population.writes(self.world.core.state.sealer)}
        stored, head = {**self.given, **self.world.found, **asked}, population.record.ledger.head
        lines = [stored[ledger_key(head.population, number)] for number in range(head.entries)]
        ledger = Ledger(head.population, tuple(entries_of(b"".join(lines))))
        assert ledger.state.head == head
        ledger.verify()
        charged = [entry for entry in ledger.entries if entry.state is ReleaseState.CHARGED]
        assert len(charged) <= 1
        assert len(self.released) <= 1
        for signed in self.released:
            message = common_pb2.SignedRelease.FromString(signed)
            (sealed,) = [entry for entry in ledger.entries if entry.state is ReleaseState.SEALED]
            assert sealed.release_sha256 == hashlib.sha256(message.release).digest()
            release = common_pb2.Release.FromString(message.release)
            # The exact sum of distinct devices: each gave 4 items, so it counts 4 times the grid's units or not at all.
            counts = np.frombuffer(release.tensors[0].integers, "<i8") - self.noise.arrays["counts"]
            total = self.world.algorithm.query(0).new_sum()
            total.add([self.world.payload(device) for device in range(DEVICES)])
            assert (counts <= total.totals()["counts"]).all()
            assert counts.sum() * release.tensors[0].step == 4 * release.contributions
            assert MINIMUM <= release.contributions <= DEVICES


COMMON = settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@COMMON
@given(steps=st.lists(STEP, max_size=30))
@pytest.mark.slow
def test_no_schedule_counts_or_charges_twice_or_gives_two_releases(make_world, steps):
    schedule = Schedule(make_world(minimum=MINIMUM))
    schedule.run(steps)
    schedule.check()


@COMMON
@given(before=st.lists(STEP, max_size=15), end=END, after=st.lists(st.one_of(STEP, END), max_size=15))
@pytest.mark.slow
def test_in_no_schedule_anything_is_taken_or_given_after_the_end_of_a_task(make_world, before, end, after):
    schedule = Schedule(make_world(minimum=MINIMUM))
    schedule.run([*before, end, *after])
    schedule.check()


def test_the_schedules_reach_what_they_are_about(make_world):
    """A release, an end before one, an end after one: the shortest schedules of each."""
    full = [("submit", device) for device in range(3)]
    close = [("charge", True), ("commit", 0), ("seal", True), ("commit", 0), ("release", 1)]
    released = Schedule(make_world(minimum=MINIMUM))
    released.run([*full, *close])
    released.check()
    assert len(released.released) == 1
    for end in ("abandon", "retire"):
        ended = Schedule(make_world(minimum=MINIMUM))
        ended.run([*full, ("charge", True), ("commit", 0), (end, True), ("commit", 0), ("old state", 3), *close])
        ended.check()
        assert ended.ended
        assert not ended.released
        with pytest.raises(StateError, match="rolled back"):
            ended.world.restart(*_as_state(ended, 0))


def _as_state(schedule, place):
    records, rows = schedule.history[place]
    return dict(records), {schedule.key: list(rows)}

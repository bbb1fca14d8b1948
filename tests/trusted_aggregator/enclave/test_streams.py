"""A stream of DP-FTRL in the enclave: exact, charged once, limited in participation, and alive through every death."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest
from stream_worlds import ROUNDS, SIZE, StreamWorld

from odp.crypto.refusals import refusal_holds
from odp.errors import ConfigurationError, PopulationFull, PrivacyError, Refusal, StateError
from odp.evaluation.noise import NoNoise
from odp.privacy.events import StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.state import records as names
from trusted_aggregator.state.sealed_state import Sealer

GROUPS = (range(3), range(3, 7))


@pytest.fixture
def make_stream(tmp_path_factory):
    numbers = itertools.count()

    def make(aggregation="enclave", **training):
        changes = {"training": {**StreamWorld.training, **training}, "aggregation": aggregation}
        kind = type("ChosenStreamWorld", (StreamWorld,), changes)
        platform = EmulatedPlatform.open(tmp_path_factory.mktemp("platform"))
        return kind(platform, f"people-{next(numbers)}", minimum=3, noise=NoNoise())

    return make


def expected(world, sums):
    """Row by row C G of the sums so far, in steps of the encoded grid."""
    encoder = world.algorithm.query(0).encoder()
    return [encoder.step(one) for one in sums]


def total(world, devices, round):
    return sum((world.vector(device, round) for device in devices), np.zeros(SIZE, dtype=np.int64))


@pytest.mark.parametrize("mechanism", ["banded", "tree", "blt"])
def test_every_release_is_a_row_of_the_matrix_form(make_stream, mechanism):
    world = make_stream(mechanism=mechanism)
    sums = [total(world, GROUPS[round % 2], round) for round in range(ROUNDS)]
    released = [world.run_round(round, GROUPS[round % 2]) for round in range(ROUNDS)]
    matrix = world.algorithm.stream().stream.matrix
    dense = matrix.matrix() * 2.0**matrix.bits
    assert np.abs(np.array(released) - dense @ np.array(sums)).max() <= matrix.rounding * 2.0**matrix.bits + 0.5
    np.testing.assert_array_equal(released, expected(world, sums))


def test_the_whole_stream_is_charged_before_its_first_release_and_no_later_one_costs(make_stream):
    world = make_stream()
    spent = []
    for round in range(ROUNDS):
        world.run_round(round, GROUPS[round % 2])
        spent.append(world.ledger().entries[-1].task_epsilon)
    entries = [entry for entry in world.ledger().entries if entry.events]
    charged = [event for entry in entries for event in entry.events]
    assert [type(event) for event in charged[:1]] == [StreamRelease]
    covered = [event for event in charged if isinstance(event, CoveredRelease)]
    assert {event.place for event in covered} == set(range(1, ROUNDS))
    assert len(set(spent)) == 1
    assert 7.9 < spent[0] <= 8.0
    world.ledger().verify()


class TestParticipation:
    def refusal(self, world, device, round):
        sealed = world.sealed(device, round)
        request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=round, sealed_contribution=sealed)
        (answer,) = world.core.submit_batch([wire.sealed_of(request)])
        if answer is None:
            world.rows.setdefault((world.task_sha256, round), []).append(sealed)
            return None
        held = refusal_holds(
            answer.signature, answer.refusal, signing_key=world.identity.signing.public, task_sha256=world.task_sha256,
            round=round, hpke_key=world.round_key(round), sealed=sealed, masked=b"",
        )  # fmt: skip
        return answer.refusal, held

    @pytest.mark.parametrize("restart", [False, True])
    def test_a_device_that_comes_back_too_early_is_refused_for_good_and_one_that_is_due_is_not(
        self, make_stream, restart
    ):
        world = make_stream(min_separation=3)
        world.run_round(0, [0, 1, 2])
        for round, others in ((1, [3, 4, 5]), (2, [6, 7, 8])):
            world.open(round)
            if restart:
                world.restart()
            for device in (0, 1, 2):
                assert self.refusal(world, device, round) == (Refusal.NOT_DUE, True)
            world.fill(others, round)
            if restart:
                world.restart()
            np.testing.assert_array_equal(
                world.finish_round(round),
                expected(world, [total(world, [3 * t, 3 * t + 1, 3 * t + 2], t) for t in range(round + 1)])[-1],
            )
        world.open(3)
        assert self.refusal(world, 0, 3) is None
        assert self.refusal(world, 3, 3) == (Refusal.NOT_DUE, True)

    def test_a_device_takes_part_no_more_often_than_the_charge_assumes(self, make_stream):
        world = make_stream(min_separation=1, max_participations=2)
        world.run_round(0, [0, 1, 2])
        world.run_round(1, [0, 1, 2, 3])
        world.open(2)
        assert [self.refusal(world, device, 2) for device in (0, 3)] == [(Refusal.NOT_DUE, True), None]

    def test_who_was_refused_or_in_a_round_that_was_not_released_may_come(self, make_stream):
        world = make_stream(min_separation=3)
        world.open(0)
        assert world.submit(world.sealed(0, payload=b"short")) is Refusal.MALFORMED
        world.fill([0, 1, 2])
        world.finish_round(0)
        world.open(1)
        assert self.refusal(world, 0, 1) == (Refusal.NOT_DUE, True)


STEPS = ("opened", "filled", "charge stored", "charge in force", "release made", "release stored", "release in force")


@pytest.mark.parametrize("mechanism", ["banded", "tree", "blt"])
@pytest.mark.parametrize("killed", STEPS)
@pytest.mark.slow
def test_a_stream_goes_on_after_a_death_at_any_step_of_every_round(make_stream, mechanism, killed):
    world = make_stream(mechanism=mechanism, rounds=4)
    sums = [total(world, GROUPS[round % 2], round) for round in range(4)]

    def step(name):
        if name == killed:
            world.restart()
            world.persist(world.restored_writes)

    released = []
    for round in range(4):
        world.open(round)
        step("opened")
        world.fill(GROUPS[round % 2], round)
        step("filled")
        world.persist(world.charge(round).writes)
        step("charge stored")
        world.core.commit()
        step("charge in force")
        made = world.seal_release(round)
        if killed == "release made":
            world.restart()
            made = world.seal_release(round)
        world.persist(made)
        step("release stored")
        world.core.commit()
        world.rows.clear()
        step("release in force")
        signed = world.release(round)
        world.learn(signed)
        released.append(world.integers(signed))
    np.testing.assert_array_equal(released, expected(world, sums))
    assert world.charges() == 4
    assert len({entry.task_epsilon for entry in world.ledger().entries}) == 1
    assert not [key for key in world.records if key.startswith((names.STREAM_PREFIX, names.PARTICIPATION_PREFIX))]


class TestLostState:
    def between(self, world):
        """After two rounds; what the host had after the first one."""
        world.run_round(0, GROUPS[0])
        before = dict(world.records)
        world.run_round(1, GROUPS[1])
        return before

    @pytest.mark.parametrize("prefix", [names.STREAM_PREFIX, names.PARTICIPATION_PREFIX])
    def test_a_stream_without_its_state_ends_by_name_and_what_was_charged_stays(self, make_stream, prefix):
        world = make_stream()
        self.between(world)
        world.records = {key: data for key, data in world.records.items() if not key.startswith(prefix)}
        world.restart()
        if prefix == names.PARTICIPATION_PREFIX:
            with pytest.raises(PrivacyError, match=r"stream of task 'stream' ended before round 2.*lost"):
                world.open(2)
            return
        world.open(2)
        world.fill(GROUPS[0], 2)
        world.settle(world.charge(2).writes)
        with pytest.raises(StateError, match=r"past sums of the stream .* are not stored"):
            world.seal_release(2)
        world.persist(world.core.give_up(world.task_sha256, 2))
        assert world.core.round_state(world.task_sha256, 2).status is Status.VOID
        assert world.charges() == 3

    def test_older_sums_and_participations_are_refused(self, make_stream):
        """The slot of the state before is erased, and the ledger names another release."""
        world = make_stream()
        before = self.between(world)
        kept = {key: data for key, data in world.records.items() if not key.startswith("participation/")}
        old = {key: data for key, data in before.items() if key.startswith(("participation/", "stream/"))}
        world.records = {**kept, **old}
        world.restart()
        with pytest.raises(PrivacyError, match="ended before round 2"):
            world.open(2)

    def test_old_sums_under_the_name_of_new_ones_are_refused(self, make_stream):
        world = make_stream()
        world.run_round(0, GROUPS[0])
        (old,) = [data for key, data in world.records.items() if key.startswith("stream/")]
        world.run_round(1, GROUPS[1])
        world.open(2)
        world.fill(GROUPS[0], 2)
        world.settle(world.charge(2).writes)
        world.records[names.stream_key(world.task_sha256, 2)] = old
        with pytest.raises(StateError, match="sealed record"):
            world.seal_release(2)

    def test_the_state_of_a_copy_that_was_not_in_force_is_refused(self, make_stream):
        """Two copies release one round: only that whose record is stored can read the state that it made."""
        world = make_stream()
        world.open(0)
        world.fill(GROUPS[0])
        world.settle(world.charge().writes)
        state = dict(world.records), {key: list(rows) for key, rows in world.rows.items()}
        lost = {record.key: record.data for record in world.seal_release()}
        world.restart(*state)
        world.settle(world.seal_release())
        world.learn(world.release())
        key = names.participation_key(world.task_sha256, 1)
        with pytest.raises(StateError, match="sealed record"):
            world.restart({**world.records, key: lost[key]})
        key = names.stream_key(world.task_sha256, 1)
        world.records[key] = lost[key]
        world.open(1)
        world.fill(GROUPS[1], 1)
        world.settle(world.charge(1).writes)
        with pytest.raises(StateError, match="sealed record"):
            world.seal_release(1)

    def test_a_state_after_another_release_than_the_one_in_force_is_no_state(self, make_stream, monkeypatch):
        """Even where it can be read: the ledger names the release that the state has to follow."""
        world = make_stream()
        world.run_round(0, GROUPS[0])
        position = world.core.state.streams._positions[world.task_sha256]
        world.core.state.streams._positions[world.task_sha256] = dataclasses.replace(position, release_sha256=bytes(32))
        with pytest.raises(PrivacyError, match="ended before round 1"):
            world.open(1)
        world.core.state.streams._positions[world.task_sha256] = position
        opened = Sealer.open

        def another(sealer, key, data):
            plaintext = opened(sealer, key, data)
            return bytes(32) + plaintext[32:] if key.startswith(names.PARTICIPATION_PREFIX) else plaintext

        monkeypatch.setattr(Sealer, "open", another)
        world.restart()
        with pytest.raises(PrivacyError, match="ended before round 1"):
            world.open(1)

    def test_what_no_later_round_needs_cannot_be_read_even_from_old_copies(self, make_stream):
        world = make_stream()
        slots, created = world.identity.guest.slots, {}
        create = type(slots).create

        def noted(self, name):
            created[name] = create(self, name)
            return created[name]

        type(slots).create, original = noted, create
        try:
            for round in range(ROUNDS):
                world.run_round(round, GROUPS[round % 2])
                live = [name for name in created if world.identity.guest.slots.read(name) is not None]
                assert len(live) == (1 if round < ROUNDS - 1 else 0)
        finally:
            type(slots).create = original

    def test_the_end_of_a_task_erases_its_stream(self, make_stream):
        world = make_stream()
        self.between(world)
        world.settle(world.abandon())
        assert not [key for key in world.records if key.startswith(("stream/", "participation/"))]
        for turn in range(2):
            name = hashlib.sha256(b"odp stream %d " % turn + world.task_sha256).hexdigest()
            assert world.identity.guest.slots.read(name) is None


def test_a_population_has_few_streams_at_once(make_stream):
    world = make_stream()
    for name in ("first", "second", "third"):
        world.adopt(world.sign(world.definition(minimum=3, epsilon=0.5, name=name)))
        if name == "third":
            with pytest.raises(PopulationFull, match="2 streams under way"):
                world.open(0)
        else:
            world.open(0)


def test_a_stream_that_would_keep_too_much_is_refused_when_it_begins(make_stream, monkeypatch):
    monkeypatch.setattr("trusted_aggregator.enclave.opening.LARGEST_STREAM_BYTES", 1000)
    world = make_stream()
    with pytest.raises(ConfigurationError, match=r"past sums between its rounds.*fewer bands"):
        world.open(0)

from __future__ import annotations

import struct

import numpy as np
import pytest

from odp.algorithms.dpam.query import Accumulator, ObliviousAccumulator
from odp.algorithms.release import round_charges
from odp.crypto import SignatureError, domains, seal, verify
from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, Refusal
from odp.evaluation.noise import NoNoise
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger_events import charged
from odp.privacy.ledger_state import LedgerHead
from odp.signed.task import task_sha256
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.state import records as names


def _integers(signed_release):
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed_release).release)
    return {tensor.name: np.frombuffer(tensor.integers, "<i8").reshape(tensor.shape) for tensor in release.tensors}


def _exact(world, devices, round):
    total = world.algorithm.query(round).new_sum()
    total.add([world.payload(device, round) for device in devices])
    return total.totals()


def test_all_rounds_of_a_task_release_the_exact_sums_plus_the_noise_drawn_at_the_opening(make_world):
    world = make_world()
    devices = range(120)
    spent = []
    for number in range(3):
        world.open(number)
        query = world.algorithm.query(number)
        noise = world.noise(number)
        world.fill(devices, number)
        signed = world.close(number)

        exact = _exact(world, devices, number)
        integers = _integers(signed)
        assert set(integers) == {release.name for release in query.releases}
        for name, values in integers.items():
            np.testing.assert_array_equal(values, exact[name] + noise.arrays[name])
            assert np.any(noise.arrays[name])
        message = common_pb2.SignedRelease.FromString(signed)
        verify(world.identity.signing.public, message.signature, domains.RELEASE, message.release)
        release = world.learn(signed)
        assert (release.task_sha256, release.round, release.model_sha256) == (
            world.task_sha256,
            number,
            world.model(number),
        )
        assert release.contributions == 120
        assert [
            (charge.name, charge.sensitivity, charge.noise_std, charge.coordinates) for charge in release.charges
        ] == [
            (declared.name, declared.sensitivity, declared.noise_std, declared.coordinates)
            for declared in query.releases
        ]
        spent.append(release.epsilon_spent)
        assert release.epsilon_remaining == pytest.approx(8.0 - release.epsilon_spent)
    assert spent == sorted(set(spent))
    # The plan uses its whole budget and no more.
    assert spent[-1] <= 8.0
    assert spent[-1] == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(("accumulation", "kind"), [("oblivious", ObliviousAccumulator), ("direct", Accumulator)])
def test_without_noise_a_release_is_the_sum_however_the_policy_wants_it_made(make_world, accumulation, kind):
    policy = EnclavePolicy(role="aggregator", minimum_cohort=3, accumulation=accumulation)
    world = make_world(minimum=3, policy=policy, noise=NoNoise())
    for number in range(3):
        world.open(number)
        world.fill(range(5), number)
        world.settle(world.charge(number).writes)
        world.held(number).noisy_sums(world.noise(number))
        assert type(world.held(number)._sum) is kind
        signed = world.finish(number)
        for name, integers in _integers(signed).items():
            np.testing.assert_array_equal(integers, _exact(world, range(5), number)[name])
        world.learn(signed)


def test_sums_are_oblivious_unless_the_policy_says_otherwise():
    assert EnclavePolicy(role="aggregator").accumulation == "oblivious"


def test_more_contributions_than_one_block_are_summed_once_each(make_world, monkeypatch):
    monkeypatch.setattr("trusted_aggregator.modes.enclave.enclave_half.BLOCK", 4)
    world = make_world(minimum=3, noise=NoNoise())
    world.open()
    world.fill(range(11))
    np.testing.assert_array_equal(_integers(world.close())["counts"], _exact(world, range(11), 0)["counts"])


def test_the_ledger_is_signed_and_holds_one_charge_per_round(small):
    small.fill(range(4))
    small.close()
    head, signature = small.core.ledger(small.task_sha256)
    verify(small.identity.signing.public, signature, domains.LEDGER, head)
    ledger = small.ledger()
    assert ledger.state.head == LedgerHead.decode(head)
    ledger.verify()
    declared = small.algorithm.query(0).releases[0]
    assert ledger.population_events == (
        GaussianRelease(name="counts", sensitivity=declared.sensitivity, noise_std=declared.noise_std, coordinates=12),
    )
    assert ledger.entries[0].contributions == ledger.entries[0].population_size == 4
    assert [entry.state.name for entry in ledger.entries] == ["CHARGED", "SEALED"]
    assert small.core.ledger(bytes(32)) is None


def two_tasks(make_world, *, epsilon):
    """A world of a task of ε = 8, and another one of the same enclave and population, of 9, with a task "songs"."""
    policy = EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=9.0, population_delta=1e-6)
    first, second = make_world(minimum=3, policy=policy), make_world(minimum=3)
    second.population, second.developer = first.population, first.developer
    second.core, second.records, second.policy, second.identity = (
        first.core,
        first.records,
        first.policy,
        first.identity,
    )
    second.adopt(second.sign(second.definition(minimum=3, epsilon=epsilon, name="songs")))
    return first, second


def release(world, number):
    """The whole round, opened unless it is round 0 that is open."""
    if number or world.core.round_state(world.task_sha256, 0) is None:
        world.open(number)
    world.fill(range(3), number)
    world.learn(world.close(number))


def charges_of_plan(world):
    return [event for number in range(3) for event in charged(round_charges(world.algorithm.query(number), None))]


class TestRefusals:
    def test_unknown_task_and_round(self, small):
        assert small.core.submit(bytes(32), 0, small.sealed(1)) is Refusal.WRONG_TASK
        assert small.core.submit(b"", 0, small.sealed(1)) is Refusal.WRONG_TASK
        assert small.core.submit(small.task_sha256, 1, small.sealed(1)) is Refusal.WRONG_ROUND

    @pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: s + b"\0", lambda s: b"", lambda s: bytes(len(s))])
    def test_a_changed_length_or_a_changed_byte_is_malformed(self, small, change):
        assert small.submit(change(small.sealed(1))) is Refusal.MALFORMED
        sealed = bytearray(small.sealed(1))
        sealed[40] ^= 1
        assert small.submit(bytes(sealed)) is Refusal.MALFORMED

    def test_a_contribution_sealed_for_another_round_model_or_policy_does_not_open(self, small):
        plaintext = small.contribution(1).SerializeToString()
        for info in (
            domains.contribution_info(small.task_sha256, 1, small.model(0), small.policy.sha256),
            domains.contribution_info(small.task_sha256, 0, bytes(32), small.policy.sha256),
            domains.contribution_info(bytes(32), 0, small.model(0), small.policy.sha256),
            domains.contribution_info(small.task_sha256, 0, small.model(0), bytes(32)),
        ):
            assert small.submit(seal(small.round_key(), plaintext, info)) is Refusal.MALFORMED

    def test_the_fields_inside_must_name_this_task_round_and_model(self, small):
        assert small.submit(small.sealed(1, task_sha256=bytes(32))) is Refusal.WRONG_TASK
        assert small.submit(small.sealed(1, model_sha256=bytes(32))) is Refusal.WRONG_MODEL
        # A round other than 0 takes two bytes more: the payload is cut so that the length is right.
        other = small.contribution(1, round=1, payload=small.payload(1)[:-2]).SerializeToString()
        assert small.submit(small.seal(other)) is Refusal.MALFORMED

    def test_another_round_of_the_same_length_inside(self, make_world):
        world = make_world(minimum=3)
        world.open()
        world.fill(range(3))
        world.learn(world.close())
        world.open(1)
        assert world.submit(world.sealed(1, 1, round=2), 1) is Refusal.WRONG_ROUND

    @pytest.mark.parametrize(
        ("field", "length"), [("contribution_id", 31), ("contribution_id", 0), ("pseudonym", 33), ("payload", 15)]
    )
    def test_a_field_of_another_length_is_malformed_whatever_the_rest(self, small, field, length):
        assert small.submit(small.sealed(1, **{field: bytes(length)})) is Refusal.MALFORMED
        # Also where another field makes up for the length.
        contribution = small.contribution(1, **{field: bytes(length)})
        missing = len(small.contribution(1).SerializeToString()) - contribution.ByteSize()
        contribution.pseudonym += bytes(max(missing, 0))
        assert small.submit(small.seal(contribution.SerializeToString())) is Refusal.MALFORMED

    def test_unknown_fields_and_repeated_fields_are_malformed(self, small):
        good = small.contribution(1).SerializeToString()
        assert small.submit(small.seal(good + b"\x38\x01")) is Refusal.MALFORMED
        assert small.submit(small.seal(good + good)) is Refusal.MALFORMED
        cut = small.contribution(1, payload=small.payload(1)[:-2]).SerializeToString() + b"\x38\x01"
        assert len(cut) == len(good)
        assert small.submit(small.seal(cut)) is Refusal.MALFORMED
        assert small.submit(small.seal(bytes(len(good)))) is Refusal.MALFORMED

    def test_what_breaks_the_declared_sensitivity_is_out_of_bounds(self, small):
        for items in ([3, 3, 4, 5], [3, 4, 5, 12]):
            payload = struct.pack("<4I", *items)
            assert small.submit(small.sealed(1, payload=payload)) is Refusal.OUT_OF_BOUNDS
        assert small.core.round_state(small.task_sha256, 0).contributions == 0

    def test_a_replay_and_a_retry_of_one_device_count_once(self, small):
        first = small.sealed(1)
        assert small.submit(first) is None
        assert small.submit(first) is Refusal.ALREADY_CONTRIBUTED
        assert small.submit(small.sealed(1)) is Refusal.ALREADY_CONTRIBUTED
        assert small.submit(small.sealed(1, payload=small.payload(2))) is Refusal.ALREADY_CONTRIBUTED
        assert small.core.round_state(small.task_sha256, 0).contributions == 1

    def test_one_pseudonym_contributes_once_under_any_id(self, small):
        assert small.submit(small.sealed(1)) is None
        assert small.submit(small.sealed(1, contribution_id=bytes(32))) is Refusal.ALREADY_CONTRIBUTED
        assert small.submit(small.sealed(2, contribution_id=small.contribution(1).contribution_id)) is (
            Refusal.ALREADY_CONTRIBUTED
        )

    def test_a_refused_contribution_does_not_use_up_the_id(self, small):
        assert small.submit(small.sealed(1, payload=struct.pack("<4I", 3, 3, 4, 5))) is Refusal.OUT_OF_BOUNDS
        assert small.submit(small.sealed(1)) is None

    def test_a_charged_and_a_released_round_are_closed(self, small):
        small.fill(range(3))
        small.settle(small.charge().writes)
        assert small.submit(small.sealed(7)) is Refusal.ROUND_CLOSED
        small.persist(small.seal_release())
        assert small.submit(small.sealed(7)) is Refusal.ROUND_CLOSED
        small.core.commit()
        for _ in range(2):
            assert small.submit(small.sealed(7)) is Refusal.ROUND_CLOSED
            assert small.submit(small.sealed(1)) is Refusal.ROUND_CLOSED
            small.restart()


class TestOpening:
    def test_opening_again_draws_no_second_noise(self, make_world, counting_noise):
        world = make_world(minimum=3, noise=counting_noise)
        world.open()
        drawn = counting_noise.calls
        before = dict(world.records)
        world.open()
        assert counting_noise.calls == drawn > 0
        assert world.records == before

    def test_another_model_for_an_open_round_is_refused(self, small):
        with pytest.raises(PrivacyError, match="another model"):
            small.open(model_sha256=bytes(32))

    def test_a_released_round_is_not_opened_again_for_any_model(self, small):
        small.fill(range(3))
        signed = small.close()
        for model in (small.model(0), bytes(32)):
            assert small.core.open_round(small.task, *small.order(0, domains.OPEN, model_sha256=model)) == ()
            assert small.submit(small.sealed(7)) is Refusal.ROUND_CLOSED
        assert small.release() == signed

    def test_task_and_orders_need_the_developers_signature(self, small):
        order, signature = small.order(0, domains.OPEN)
        with pytest.raises(SignatureError):
            small.core.open_round(small.task, order, small.order(0, domains.CLOSE)[1])
        forged = common_pb2.SignedTask(definition=small.task.definition, signature=bytes(64))
        with pytest.raises(SignatureError):
            small.core.open_round(forged, order, signature)
        small.fill(range(3))
        with pytest.raises(SignatureError):
            small.core.charge(order, signature)
        assert small.core.round_state(small.task_sha256, 0).status is Status.OPEN

    def test_an_order_of_another_task_is_refused(self, small):
        with pytest.raises(ConfigurationError, match="another task"):
            small.open(task_sha256=bytes(32))

    def test_rounds_come_in_sequence(self, make_world):
        world = make_world(minimum=3)
        world.broadcasts[1] = world.broadcasts[2] = world.broadcasts[3] = world.broadcasts[0]
        with pytest.raises(PrivacyError, match="before round 0"):
            world.open(1)
        world.open()
        with pytest.raises(PrivacyError, match="before round 0"):
            world.open(1)
        with pytest.raises(ConfigurationError, match="from 0 to 2"):
            world.open(3)
        world.fill(range(3))
        world.settle(world.charge().writes)
        with pytest.raises(PrivacyError, match="before round 0"):
            world.open(1)

    def test_a_minimum_below_the_policys_is_refused(self, make_world):
        world = make_world(minimum=5, policy=EnclavePolicy(role="aggregator", minimum_cohort=6))
        with pytest.raises(PrivacyError, match="at least 6"):
            world.open()
        assert list(world.records) == [names.population_key(world.population)]

    def test_a_plan_beyond_the_tasks_budget_is_refused_before_anything_is_drawn(self, make_world, counting_noise):
        def half_of_the_noise(definition):
            definition.dpam.gram_noise /= 2

        world = make_world(minimum=3, edit=half_of_the_noise, noise=counting_noise)
        with pytest.raises(BudgetExceeded, match="all its 3 rounds"):
            world.open()
        assert counting_noise.calls == 0
        assert world.core.round_states() == []

    def test_a_plan_beyond_the_populations_budget_is_refused(self, make_world):
        policy = EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=7.9, population_delta=1e-6)
        with pytest.raises(BudgetExceeded, match="population"):
            make_world(minimum=3, policy=policy).open()

    def test_tasks_of_one_population_share_its_budget(self, make_world):
        world = make_world(
            minimum=3,
            policy=EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=9.0, population_delta=1e-6),
        )
        world.open()
        world.fill(range(3))
        world.close()
        other = make_world(minimum=3)
        other.population, other.developer = world.population, world.developer
        task = other.sign(other.definition(minimum=3, epsilon=8.99))
        other.task, other.task_sha256 = task, task_sha256(task)
        with pytest.raises(BudgetExceeded, match="population"):
            world.core.open_round(task, *other.order(0, domains.OPEN))

    @pytest.mark.parametrize("released", [0, 1, 3])
    def test_a_task_does_not_begin_with_what_one_under_way_still_needs(self, make_world, released):
        first, second = two_tasks(make_world, epsilon=7.0)
        first.open()
        for number in range(released):
            release(first, number)
        with pytest.raises(BudgetExceeded, match="'songs' with all its 3 rounds was not started") as refused:
            second.open()
        assert ("with what its tasks under way will spend" in str(refused.value)) == (released < 3)
        second.adopt(second.sign(second.definition(minimum=3, epsilon=2.0, name="few")))
        second.open()
        for number in range(released, 3):
            release(first, number)

    def test_a_task_that_was_forgotten_comes_back_where_it_takes_nothing_from_others(self, make_world):
        first, second = two_tasks(make_world, epsilon=7.0)
        release(first, 0)
        first.settle(first.core.forget(first.task_sha256))
        second.open()
        with pytest.raises(BudgetExceeded, match="with what its tasks under way will spend"):
            first.open(1)
        for number in range(3):
            release(second, number)

    def test_an_ended_task_promises_nothing(self, make_world):
        first, second = two_tasks(make_world, epsilon=7.0)
        first.open()
        first.settle(first.abandon())
        second.open()
        assert second.core.round_state(second.task_sha256, 0).status is Status.OPEN

    def test_a_task_whose_charged_round_is_lost_promises_nothing(self, make_world):
        first, second = two_tasks(make_world, epsilon=5.0)
        first.open()
        first.fill(range(3))
        first.settle(first.charge().writes)
        first.restart({key: data for key, data in first.records.items() if not key.startswith(names.ROUND_PREFIX)})
        second.core, second.records = first.core, first.records
        second.open()
        assert second.core.round_state(second.task_sha256, 0).status is Status.OPEN

    def test_the_rounds_of_tasks_under_way_fit_into_one_ledger(self, make_world, monkeypatch):
        monkeypatch.setattr("trusted_aggregator.state.population.MOST_CHARGES", 5)
        first, second = two_tasks(make_world, epsilon=2.0)
        first.open()
        with pytest.raises(PrivacyError, match="has charged 0 rounds, and has 6 to come"):
            second.open()
        for number in range(3):
            release(first, number)

    def test_the_events_of_tasks_under_way_count_among_those_of_their_population(self, make_world, monkeypatch):
        first, second = two_tasks(make_world, epsilon=2.0)
        first.open()
        different = {event for query in (first, second) for event in charges_of_plan(query)}
        monkeypatch.setattr("trusted_aggregator.state.population.MOST_EVENTS", len(different) - 1)
        with pytest.raises(PrivacyError, match=f"would be charged for {len(different)} different events"):
            second.open()

    def test_a_release_that_no_message_holds_is_refused_before_it_is_charged(self, make_world, monkeypatch):
        monkeypatch.setattr("odp.algorithms.release.LARGEST_ATTACHED_BYTES", 12 * 5 * 8 - 1)
        with pytest.raises(ConfigurationError, match="a model of items is released in one message"):
            make_world(minimum=3).open()

    def test_no_task_grows_the_log_that_evidence_carries(self, make_world):
        world = make_world(minimum=3)
        before = world.identity.evidence(bytes(32)).event_log
        world.open()
        world.fill(range(3))
        world.close()
        assert world.identity.evidence(bytes(32)).event_log == before

    def test_an_enclave_of_another_role_is_no_aggregator(self, make_world):
        world = make_world(minimum=3)
        policy = EnclavePolicy(role="distributor").to_bytes()
        guest = world.platform.launch(image_digest="sha384:" + "1" * 96, policy=policy, name="distributor")
        identity, _ = EnclaveIdentity.restore_or_create(guest=guest, sealed=None)
        with pytest.raises(ConfigurationError, match="role"):
            AggregatorCore(EnclaveState(identity))


class TestClosing:
    def test_below_the_minimum_the_round_stays_open_and_uncharged(self, small):
        small.fill(range(2))
        with pytest.raises(PrivacyError, match="at least 3"):
            small.charge()
        assert small.core.round_state(small.task_sha256, 0).status is Status.OPEN
        assert small.charges() == 0
        assert small.submit(small.sealed(2)) is None
        small.close()
        assert small.charges() == 1

    def test_the_minimum_is_hard_and_the_goal_is_the_servers_alone(self, make_world):
        def goal(definition):
            definition.cohort.goal = 50

        world = make_world(minimum=3, edit=goal)
        world.open()
        world.fill(range(2))
        with pytest.raises(PrivacyError, match="at least 3"):
            world.charge()
        world.fill([2, 3])
        world.close()
        assert world.charges() == 1
        assert world.ledger().entries[0].contributions == 4

    @pytest.mark.parametrize(("population", "task", "most"), [(0.2, 1e-6, 4), (1e-3, 1e-2, 99)])
    def test_a_round_takes_no_more_contributions_than_can_be_charged(self, make_world, population, task, most):
        policy = EnclavePolicy(role="aggregator", minimum_cohort=1, population_delta=population)

        def delta(definition):
            definition.privacy.delta = task

        world = make_world(minimum=1, policy=policy, edit=delta)
        world.open()
        # 5 * 0.2 is 1: a fifth contribution could be published outright within the guarantee.
        sealed = [world.sealed(device) for device in range(most + 2)]
        assert [world.submit(one) for one in sealed] == [None] * most + [Refusal.ROUND_CLOSED] * 2
        # A device that is counted is told so, and not that it came too late.
        assert world.submit(sealed[0]) is Refusal.ALREADY_CONTRIBUTED
        world.restart()
        assert world.submit(sealed[-1]) is Refusal.ROUND_CLOSED
        world.close()
        assert world.ledger().entries[0].contributions == most

    def test_a_goal_that_could_not_be_charged_is_refused_before_the_round_opens(self, make_world, counting_noise):
        policy = EnclavePolicy(role="aggregator", minimum_cohort=3, population_delta=0.2)

        def goal(definition):
            definition.cohort.goal = 5

        world = make_world(minimum=3, policy=policy, edit=goal, noise=counting_noise)
        with pytest.raises(PrivacyError, match="too large for n_users=5"):
            world.open()
        assert counting_noise.calls == 0

    def test_a_release_without_a_charge_is_refused(self, small):
        small.fill(range(3))
        with pytest.raises(PrivacyError, match="needs a charge first"):
            small.seal_release()
        with pytest.raises(PrivacyError, match="no release in force"):
            small.release()

    def test_a_budget_that_was_used_up_meanwhile_leaves_the_round_open_and_uncharged(self, make_world, monkeypatch):
        # As where an enclave before this one opened both: it did not count what tasks under way would spend.
        monkeypatch.setattr("trusted_aggregator.enclave.opening._promised", lambda *_, **__: [])
        policy = EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=8.0, population_delta=1e-6)
        first, second = make_world(minimum=3, policy=policy), make_world(minimum=3, policy=policy)
        second.population = first.population
        second.developer = first.developer
        second.core, second.identity, second.policy = first.core, first.identity, first.policy
        second.task = second.sign(second.definition(minimum=3, epsilon=7.0, name="songs"))
        second.task_sha256 = task_sha256(second.task)
        # Both fit while nothing is spent; the first then spends all of it.
        first.open()
        second.open()
        for number in range(3):
            if number:
                first.open(number)
            first.fill(range(3), number)
            first.learn(first.close(number))
        second.fill(range(3))
        with pytest.raises(BudgetExceeded, match="population"):
            second.charge()
        assert second.core.round_state(second.task_sha256, 0).status is Status.OPEN
        assert second.submit(second.sealed(9)) is None
        assert first.charges() == 3

    def test_an_order_of_a_round_that_is_not_open_is_refused(self, make_world):
        with pytest.raises(ConfigurationError, match="not open here"):
            make_world(minimum=3).charge()

    def test_a_release_is_the_same_bytes_for_ever(self, small):
        small.fill(range(3))
        signed = small.close()
        assert small.close() == signed
        small.restart()
        assert small.close() == signed
        assert small.charges() == 1

    def test_after_the_release_contributions_and_noise_are_gone(self, small):
        small.fill(range(3))
        held = small.held()
        assert names.noise_key(small.task_sha256, 0) in small.records
        small.close()
        assert names.noise_key(small.task_sha256, 0) not in small.records
        assert names.round_key(small.task_sha256, 0) not in small.records
        assert (held.contributions, held._waiting, held._sum) == (0, [], None)
        assert small.core.state.find_round(small.task_sha256, 0) is Refusal.ROUND_CLOSED
        assert small.core.round_state(small.task_sha256, 0).contributions == 3

    def test_a_long_order_is_refused(self, small):
        with pytest.raises(ConfigurationError, match="at most 256 bytes"):
            small.core.charge(bytes(300), bytes(64))
        with pytest.raises(ConfigurationError, match="at most 256 bytes"):
            small.core.seal_release(bytes(300))
        with pytest.raises(ConfigurationError, match="at most 256 bytes"):
            small.core.release(bytes(300), stored=b"")


def test_no_record_that_the_host_keeps_shows_a_payload_an_id_or_the_noise(small):
    small.fill(range(3))
    noise = small.noise().arrays["counts"].tobytes()
    everything = list(small.records.values())
    small.settle(small.charge().writes)
    everything += small.records.values()
    small.settle(small.seal_release())
    everything += small.records.values()
    kept = b"".join(everything + small.rows[small.task_sha256, 0])
    for device in range(3):
        contribution = small.contribution(device)
        assert contribution.payload not in kept
        assert contribution.contribution_id not in kept
    assert noise not in kept

"""The enclave's secret draw: who counts, how often, and that nothing about it can be seen, repeated or chosen."""

from __future__ import annotations

import dataclasses
import hmac
import itertools
import os
import sys

import numpy as np
import pytest
from algorithms.tracing import tracing
from scipy import stats

from odp.algorithms.dpam import codec, query as dpam_query
from odp.algorithms.factorization import codec as shared_codec, query as shared_query
from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, Refusal, StateError
from odp.evaluation.noise import NoNoise
from odp.numerics import sorting_network as network
from odp.privacy import composition
from odp.privacy.accounting import epsilon
from odp.privacy.events import SampledRound, Sampling
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.modes.enclave import enclave_half as rounds, sampling
from trusted_aggregator.modes.enclave.sampling import Draw
from trusted_aggregator.rounds.enclave_half import new_record
from trusted_aggregator.state import records as names
from trusted_aggregator.state.sealed_state import Sealer

HALF = Sampling(0.5, 1000, 600)
DIRECT = EnclavePolicy(role="aggregator", minimum_cohort=3, accumulation="direct")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarse grid of the accountant; its accuracy is another test's matter."""
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)


def ids(count: int) -> list[bytes]:
    """Of devices: what the enclave gets is as good as random, and distinct."""
    return [bytes([1]) * 24 + number.to_bytes(8, "big") for number in range(count)]


def drawn(seed: bytes, sampling: Sampling, names: list[bytes]) -> set[bytes]:
    """Whose payloads a draw counts, its cap included."""
    draw = Draw(seed, sampling, empty=b"none")
    counted = [{b"many": True, b"none": False}[draw.counted(name, b"many")] for name in names]
    kept = draw.within_cap({"all": np.array(counted, dtype=np.int64)})["all"]
    return {name for name, one in zip(names, kept, strict=True) if one}


class TestDraw:
    @pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
    def test_each_contribution_is_drawn_with_the_tasks_probability(self, probability):
        """Exact binomial test on 40,000 coins of 20 fixed seeds; false alarm 1e-6."""
        names = ids(2000)
        hits = sum(len(drawn(bytes([s]) * 32, Sampling(probability, 2000, 2000), names)) for s in range(20))
        assert stats.binomtest(hits, 40_000, probability).pvalue > 1e-6
        # The same test rejects coins that come up in four of five cases only.
        assert stats.binomtest(int(0.8 * 40_000 * probability), 40_000, probability).pvalue < 1e-4

    def test_two_contributions_are_drawn_independently_and_so_are_two_rounds(self):
        """Chi-square of the 2 x 2 tables over 4,000 seeds from a fixed generator; false alarm 1e-6 each."""
        random = np.random.default_rng(3)
        first, second = ids(2)
        seeds = [random.bytes(32) for _ in range(4000)]
        coins = np.array([[name in drawn(seed, HALF, [first, second]) for name in (first, second)] for seed in seeds])
        for table in (coins, np.stack((coins[:-1, 0], coins[1:, 0]), axis=1)):
            counts = np.histogram2d(table[:, 0], table[:, 1], bins=2)[0]
            assert stats.chi2_contingency(counts).pvalue > 1e-6

    def test_order_and_repetition_do_not_change_the_draw(self):
        names = ids(300)
        reference = drawn(bytes(32), HALF, names)
        assert drawn(bytes(32), HALF, names[::-1]) == reference
        assert drawn(bytes([1]) * 32, HALF, names) != reference

    def test_of_more_than_the_cap_none_counts_whoever_came_first(self):
        names, seed = ids(300), bytes(32)
        count = len(drawn(seed, HALF, names))
        assert 100 < count < 200
        assert len(drawn(seed, Sampling(0.5, 1000, count), names)) == count
        for order in (names, names[::-1]):
            assert drawn(seed, Sampling(0.5, 1000, count - 1), order) == set()

    def test_a_coin_is_never_luckier_than_its_charge(self):
        from fractions import Fraction

        for probability in (1e-9, 0.1, 0.3, np.nextafter(1.0, 0.0)):
            draw = Draw(bytes(32), Sampling(float(probability), 10, 10), empty=b"")
            assert 0 < draw._threshold <= Fraction(float(probability)) * 2**256 < draw._threshold + 1


def sampled(probability: float, most: int, cap: int):
    def edit(definition: common_pb2.TaskDefinition) -> None:
        definition.cohort.enclave_poisson.probability = probability
        definition.cohort.enclave_poisson.most_contributions = most
        definition.cohort.enclave_poisson.cap = cap

    return edit


@pytest.fixture
def half(make_world):
    """An open round of a task that counts every other contribution; the noise is that of full participation."""
    world = make_world(minimum=3, edit=sampled(0.5, 100, 98))
    world.open()
    return world


def _integers(signed_release):
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed_release).release)
    return {tensor.name: np.frombuffer(tensor.integers, "<i8").reshape(tensor.shape) for tensor in release.tensors}


def _expected(world, devices, sampling):
    """The exact sums over the devices that the sealed seed draws."""
    by_id = {world.contribution(device).contribution_id: device for device in devices}
    kept = drawn(world.held().record.draw_seed, sampling, list(by_id))
    total = world.algorithm.query(0).new_sum()
    total.add([world.payload(by_id[name]) for name in kept])
    return total.totals(), len(kept)


class TestRound:
    def test_the_release_is_the_sum_over_the_sealed_draw_plus_the_sealed_noise(self, half):
        half.fill(range(40))
        exact, count = _expected(half, range(40), Sampling(0.5, 100, 98))
        noise = half.noise().arrays["counts"]
        assert 5 < count < 35
        np.testing.assert_array_equal(_integers(half.close())["counts"], exact["counts"] + noise)

    def test_all_releases_of_a_round_are_one_joint_event_and_the_release_lists_each(self, half):
        for number in range(3):
            half.open(number)
            half.fill(range(4), number)
            release = half.learn(half.close(number))
            ledger = half.ledger()
            (event,) = ledger.entries[2 * number].events
            declared = half.algorithm.query(number).releases
            assert isinstance(event, SampledRound)
            assert event.sampling == Sampling(0.5, 100, 98)
            assert [one.name for one in event.releases] == [one.name for one in declared]
            assert event.joint_mu**2 == pytest.approx(sum((d.sensitivity / d.noise_std) ** 2 for d in declared))
            assert [charge.name for charge in release.charges] == [one.name for one in declared]
            assert release.contributions == 4  # uploads, not the draw
            assert release.epsilon_spent == epsilon(ledger.population_events, delta=1e-6)
        ledger.verify()
        # Sampled, the same noise costs less than the budget that it was made for.
        assert release.epsilon_spent < 7.5

    def test_a_round_whose_draw_is_empty_is_released_all_the_same(self, make_world):
        world = make_world(minimum=3, edit=sampled(1e-9, 100, 5), noise=NoNoise())
        world.open()
        world.fill(range(3))
        signed = world.close()
        assert not _integers(signed)["counts"].any()
        assert world.charges() == 1

    def test_a_drawn_and_an_undrawn_contribution_get_one_answer_and_count_as_uploads(self, half):
        for device in range(30):
            assert half.submit(half.sealed(device)) is None
            assert half.submit(half.sealed(device)) is Refusal.ALREADY_CONTRIBUTED
        assert half.core.round_state(half.task_sha256, 0).contributions == 30

    def test_the_minimum_is_of_uploads_whatever_the_draw(self, make_world):
        world = make_world(minimum=5, edit=sampled(1e-9, 100, 5))
        world.open()
        world.fill(range(5))
        assert world.charge().contributions == 5

    def test_an_enclave_that_does_not_hide_what_it_sums_opens_no_sampled_round(self, make_world):
        world = make_world(minimum=3, policy=DIRECT, edit=sampled(0.5, 100, 98))
        with pytest.raises(PrivacyError, match="reveals which contributions count"):
            world.open()
        assert list(world.records) == [names.population_key(world.population)]
        make_world(minimum=3, policy=DIRECT).open()

    def test_beyond_the_declared_bound_nothing_is_accepted(self, make_world):
        world = make_world(minimum=3, edit=sampled(0.5, 4, 4))
        world.open()
        world.fill(range(4))
        assert world.submit(world.sealed(4)) is Refusal.ROUND_CLOSED
        assert world.core.round_state(world.task_sha256, 0).contributions == 4
        world.close()

    def test_a_round_that_drew_more_than_the_cap_releases_noise_alone(self, make_world, monkeypatch):
        """Three or more of 30 are drawn, but for a probability of 5e-7."""
        # Such a cap cannot be charged, which is another test's matter.
        monkeypatch.setattr("odp.privacy.accounting.epsilon", lambda events, **_: 1.0)
        world = make_world(minimum=3, edit=sampled(0.5, 100, 2), noise=NoNoise())
        world.open()
        world.fill(range(30))
        assert not _integers(world.close())["counts"].any()
        assert world.charges() == 1

    def test_a_cap_that_may_bite_cannot_be_charged(self, make_world):
        with pytest.raises(PrivacyError, match="raise the cap"):
            make_world(minimum=3, edit=sampled(0.5, 100, 60)).open()

    @pytest.mark.parametrize(("probability", "most", "cap"), [(0.0, 9, 9), (1.0, 9, 9), (0.5, 0, 0), (0.5, 9, 10)])
    def test_terms_out_of_range_are_no_task(self, make_world, probability, most, cap):
        with pytest.raises(ConfigurationError):
            make_world(minimum=3, edit=sampled(probability, most, cap))

    def test_noise_for_a_sampled_task_does_not_pay_for_full_participation(self, make_world):
        def less_noise(definition):
            definition.dpam.count_noise_std /= 1.2

        with pytest.raises(BudgetExceeded):
            make_world(minimum=3, edit=less_noise).open()
        make_world(
            minimum=3, edit=lambda definition: (less_noise(definition), sampled(0.5, 100, 98)(definition))
        ).open()


class TestCrash:
    def test_the_release_has_the_same_bytes_after_a_kill_at_any_step_in_any_order(self, half):
        half.fill(range(30))
        rows = half.rows[half.task_sha256, 0]
        before = half.held().record.draw_seed
        half.restart(rows={(half.task_sha256, 0): rows[::-1]})
        assert half.held().record.draw_seed == before
        half.settle(half.charge().writes)
        key = names.release_key(half.task_sha256, 0)

        def sealed():
            (release,) = [record.data for record in half.seal_release() if record.key == key]
            return Sealer(half.identity.sealing_key).open(key, release)

        reference = sealed()
        for order in (rows, rows[::-1], [*rows, *rows[:7]], rows[3:] + rows[:3]):
            half.restart(rows={(half.task_sha256, 0): order})
            assert sealed() == reference
        half.restart()
        half.close()
        half.restart(rows={})
        assert half.release() == reference
        assert half.charges() == 1

    def test_another_seed_under_the_charged_noise_does_not_open(self, make_world):
        """The host opens the round anew from older state, and swaps in what was sealed at the first opening."""
        world = make_world(minimum=3, edit=sampled(0.5, 100, 98))
        world.open()
        key = names.round_key(world.task_sha256, 0)
        first, first_seed = world.records[key], world.held().record.draw_seed
        population = names.population_key(world.population)
        world.restart({population: world.records[population]}, {})
        world.open()
        assert world.held().record.draw_seed != first_seed
        world.fill(range(6))
        world.settle(world.charge().writes)
        with pytest.raises(StateError, match="sealed record"):
            world.restart({**world.records, key: first})

    def test_the_seed_is_new_in_every_round_and_never_in_the_clear(self, half):
        half.fill(range(5))
        seeds = [half.held().record.draw_seed]
        half.learn(half.close())
        half.open(1)
        seeds.append(half.held(1).record.draw_seed)
        assert len(set(seeds)) == 2
        shown = b"".join(half.records.values())
        assert all(seed not in shown and seed.hex().encode() not in shown for seed in seeds)
        assert repr(half.held(1).record).find(seeds[1].hex()) < 0

    def test_rolled_back_state_gives_no_second_draw_of_a_released_round(self, half):

        half.fill(range(5))
        old = dict(half.records), {key: list(rows) for key, rows in half.rows.items()}
        half.close()
        with pytest.raises(StateError, match="rolled back"):
            half.restart(*old)

    def test_seeds_come_from_the_operating_system(self, make_world, monkeypatch):
        numbers = itertools.count()
        query = make_world(minimum=3).algorithm.query(0)
        monkeypatch.setattr(os, "urandom", lambda count: next(numbers).to_bytes(count, "big"))
        from odp.evaluation.noise import SeededNoise
        from odp.privacy.mechanisms import GaussianNoise
        from trusted_aggregator.modes.enclave.enclave_half import draw_round_noise

        started = next(numbers)
        noise = draw_round_noise(query, GaussianNoise(SeededNoise(1)))
        assert int.from_bytes(new_record(b"", noise).draw_seed, "big") > started


class TestTrace:
    """What whoever watches the enclave's operations and its memory learns of the draw: nothing."""

    DEVICES = 24

    def traced(self, world, round: int, seed: int, draw: int) -> tuple[int, int, list[object], list[object]]:
        """(contributions drawn, bytes held before the close, lines run, numpy operations) of a whole round.

        ``draw`` of the devices have coins that come up.
        """
        seed_bytes = bytes([seed]) * 32
        coins = sorted(
            int.from_bytes(hmac.digest(seed_bytes, world.contribution(device, round).contribution_id, "sha256"), "big")
            for device in range(self.DEVICES)
        )
        between = [0, *((low + high) // 2 for low, high in itertools.pairwise(coins)), 2**256]
        terms = Sampling(0.5, 100, self.DEVICES - 2)  # three quarters of the time, two more are a draw beyond the cap
        held, sealed, noise = self.held(world, round, seed_bytes, terms)
        held._draw._threshold = between[draw]
        lines: list[object] = []
        modules = (rounds, sampling, codec, shared_codec, dpam_query, network, shared_query)

        def line(frame, event, argument):
            if frame.f_code.co_filename in {module.__file__ for module in modules}:
                lines.append((frame.f_code.co_filename, frame.f_lineno))
            return line

        with tracing(sampling, codec, shared_codec, dpam_query, network, shared_query) as notes:
            sys.settrace(line)
            try:
                assert held.submit(sealed) == [None] * self.DEVICES
                size = memory_of(held)
                held.freeze()
                held._sum = held.query.new_sum(oblivious=True) if held._sum is None else held._sum
                held._add_waiting()
                totals = held._draw.within_cap(held._sum.totals())
            finally:
                sys.settrace(None)
            operations = list(notes)
        held.noisy_sums(noise)
        held.erase()
        return int(any(total.any() for total in totals.values())), size, lines, operations

    def held(self, world, round: int, seed: bytes, terms: Sampling):
        query = world.algorithm.query(round)
        noise = rounds.draw_round_noise(query, NoNoise())
        order, _ = world.order(round, b"odp/v1/open")
        record = dataclasses.replace(new_record(order, noise), draw_seed=seed)
        held = rounds.EnclaveRound(
            task_sha256=world.task_sha256, order=aggregator_pb2.RoundOrder.FromString(order), record=record,
            query=query, policy=world.policy, sampling=terms, most=10**6,
        )  # fmt: skip
        contributions = [world.contribution(device, round) for device in range(self.DEVICES)]
        return held, [world.seal(one.SerializeToString(), round, key=held.public_key) for one in contributions], noise

    @pytest.mark.parametrize("round", [0, 1, 2])
    def test_a_round_does_the_same_to_the_same_places_whoever_is_drawn(self, make_world, monkeypatch, round):
        """None, few, most and more than the cap: one sequence of lines, of operations and of sizes, one memory."""
        monkeypatch.setattr(rounds, "BLOCK", 5)  # so that sums are made before the close, too
        monkeypatch.setattr(shared_query, "_FEWEST_WORDS", 64)  # so that a round sorts more than once
        world = make_world(minimum=3)
        for number in range(round):
            world.open(number)
            world.fill(range(3), number)
            world.learn(world.close(number))
        self.traced(world, round, 1, 5)  # imports and caches
        draws = (0, 1, 7, self.DEVICES - 3, self.DEVICES)
        found = [self.traced(world, round, seed, draw) for seed, draw in enumerate(draws, start=1)]
        assert [counted for counted, *_ in found] == [0, 1, 1, 1, 0]  # the last one is beyond the cap
        _, size, lines, operations = found[0]
        assert len(lines) > 100
        assert len(operations) > 20
        for other in found[1:]:
            assert other[1:] == (size, lines, operations)


def memory_of(held: rounds.EnclaveRound) -> int:
    """Bytes of payloads that a round holds outside of its sums."""
    return sum(len(payload) for payload in held._waiting)


def test_the_ledger_names_every_number_of_the_draw(half):
    half.fill(range(3))
    half.close()
    (event,) = half.ledger().entries[0].to_json()["events"]
    assert event["mechanism"] == "truncated_poisson_gaussian"
    assert (event["sampling_probability"], event["population_bound"], event["cap"]) == (0.5, 100, 98)

"""The enclave's half of a round of SecAgg+: it takes an announcement, and no contribution."""

from __future__ import annotations

import pytest

from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from trusted_aggregator.boundary.interface import HostSum, SealedContribution

NAME = bytes(range(32))


@pytest.fixture
def world(make_statistics):
    made = make_statistics(40, aggregation="secagg+", minimum=20)
    made.open()
    return made


def test_a_contribution_is_refused_for_good_and_none_is_expected(world):
    key = world.task_sha256, 0
    assert world.core.sealed_bytes(*key) == world.core.host_part_bytes(*key) == 0
    sealed = world.sealed(1)
    assert world.core.submit(*key, sealed) is Refusal.MALFORMED
    (refused,) = world.core.submit_batch([SealedContribution(*key, sealed)])
    assert refused is not None
    assert refused.refusal is Refusal.MALFORMED
    assert refused.signature
    assert world.core.round_state(*key).contributions == 0


def test_a_round_has_the_contributions_that_were_announced_last_and_none_after_its_charge(world):
    key = world.task_sha256, 0
    world.core.announce(*key, 25, bytes(32))
    world.core.announce(*key, 30, NAME)
    charged = world.charge()
    assert charged.contributions == 30
    assert world.held().freeze() == (30, NAME)
    with pytest.raises(StateError, match="accepts no survivors now"):
        world.core.announce(*key, 31, NAME)


def test_an_enclave_that_starts_again_signs_a_sum_of_the_charged_survivors_and_no_other(world):
    """A host that starts it twice, or with an older session, names another set: the ledger has the first."""
    key, other = (world.task_sha256, 0), bytes(reversed(NAME))
    world.core.announce(*key, 30, NAME)
    world.settle(world.charge().writes)
    world.restart()
    assert world.core.round_state(*key).contributions == 30
    assert world.held().freeze() == (30, NAME)
    with pytest.raises(StateError, match="accepts no survivors now"):
        world.core.announce(*key, 31, other)
    numbers = bytes(8 * 40)
    with pytest.raises(PrivacyError, match="unmasked other clients than those that round 0 was charged for"):
        world.held()._noisy_sums(None, HostSum(numbers, other), None)
    assert set(world.held()._noisy_sums(None, HostSum(numbers, NAME), None))


def test_an_announcement_of_more_clients_than_the_round_takes_or_without_a_name_is_refused(world):
    key = world.task_sha256, 0
    with pytest.raises(ConfigurationError, match="clients"):
        world.core.announce(*key, 10**6, NAME)
    with pytest.raises(ConfigurationError, match="32 bytes"):
        world.core.announce(*key, 30, b"short")


def test_no_noise_is_drawn_for_it(make_statistics, counting_noise):
    world = make_statistics(40, aggregation="secagg+", minimum=20, noise=counting_noise)
    world.open()
    assert counting_noise.calls == 0


def test_a_round_of_contributions_takes_no_announcement_and_waits_for_no_sum(small):
    key = small.task_sha256, 0
    with pytest.raises(StateError, match="accepts no survivors now"):
        small.core.announce(*key, 3, NAME)
    small.fill(range(3))
    small.settle(small.charge().writes)
    with pytest.raises(StateError, match="does not wait for a sum of its host"):
        small.core.host_parts(*key, 0)

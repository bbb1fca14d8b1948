"""Which adjacency a charge is for: one of a closed set, named in every event, and only where the bound holds."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import signal

from odp.algorithms.release import charge_of, event_of
from odp.errors import PrivacyError
from odp.privacy import accounting
from odp.privacy.adjacency import Adjacency, of_list
from odp.privacy.events import (
    DistributedRelease,
    GaussianRelease,
    SampledRound,
    Sampling,
    adjacency_of,
    from_json,
    releases_of,
    scaled,
)
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget
from odp.v1 import common_pb2

ZERO_OUT, ADD_REMOVE = Adjacency.ZERO_OUT_USER, Adjacency.ADD_REMOVE_USER
GAUSSIAN = GaussianRelease("counts", 2.0, 6.0, 5)
SHARES = DistributedRelease("hours", 1.0, 5.0, 4, sharers=3, step=0.05, graph_delta=0.0)
SAMPLED = SampledRound((GAUSSIAN, GaussianRelease("sums", 1.0, 6.0, 5)), Sampling(0.1, 1000, 200))


@pytest.mark.parametrize("event", [GAUSSIAN, SAMPLED, SHARES])
def test_every_event_names_what_an_enclave_charges_wherever_it_is_written(event):
    assert event.adjacency is ZERO_OUT
    written = event.to_json()
    assert written["adjacency"] == "zero_out_user"
    assert all(release.to_json()["adjacency"] == "zero_out_user" for release in releases_of(event))
    assert from_json(json.loads(json.dumps(written))) == event
    assert scaled(event, 2.0).adjacency is ZERO_OUT
    for release in releases_of(event):
        assert charge_of(release).adjacency == common_pb2.ADJACENCY_ZERO_OUT_USER
        assert event_of(charge_of(release)) == release


@pytest.mark.parametrize("event", [GAUSSIAN, SAMPLED])
def test_sums_that_are_released_without_their_count_may_claim_add_remove(event):
    releases = tuple(dataclasses.replace(one, adjacency=ADD_REMOVE) for one in releases_of(event))
    other = releases[0] if event is GAUSSIAN else SampledRound(releases, event.sampling)
    assert other.adjacency is ADD_REMOVE
    assert from_json(other.to_json()) == other != event
    assert accounting.epsilon([other], delta=1e-5, interval=1e-3) == accounting.epsilon(
        [event], delta=1e-5, interval=1e-3
    )


def test_noise_in_shares_holds_for_zeroing_out_alone():
    for adjacency in (ADD_REMOVE, Adjacency.ANY_TWO_INPUTS, "replace_one"):
        with pytest.raises(PrivacyError, match="adjacency="):
            dataclasses.replace(SHARES, adjacency=adjacency)
        with pytest.raises(PrivacyError, match="adjacency="):
            from_json({**SHARES.to_json(), "adjacency": str(adjacency)})


def test_without_the_user_their_share_is_missing_and_the_charge_is_too_small():
    """Why shares cannot claim add/remove: the exact laws of the sum with the user, zeroed out, and absent."""
    step, sharers = SHARES.share_std, SHARES.sharers
    numbers = np.arange(-600, 601)
    share = np.exp(-(numbers**2) / (2.0 * step**2))
    share /= share.sum()

    def law(count: int, shift: int) -> np.ndarray:
        total = share
        for _ in range(count - 1):
            total = signal.fftconvolve(total, share)
        room = np.zeros(4 * len(numbers))
        start = len(room) // 2 - len(total) // 2 + shift
        room[start : start + len(total)] = np.maximum(total, 0.0)
        return room

    delta = 1e-6
    charged = accounting.epsilon([dataclasses.replace(SHARES, coordinates=1)], delta=delta)
    moved = round(SHARES.sensitivity / SHARES.step)
    mine, zeroed, absent = law(sharers, moved), law(sharers, 0), law(sharers - 1, 0)

    def needed(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.maximum(one - math.exp(charged) * other, 0.0).sum())

    assert max(needed(mine, zeroed), needed(zeroed, mine)) <= delta
    assert needed(mine, absent) > 10_000 * delta


def test_a_sampled_round_has_one_adjacency():
    mixed = (GAUSSIAN, dataclasses.replace(GAUSSIAN, name="other", adjacency=ADD_REMOVE))
    with pytest.raises(PrivacyError, match="need the same"):
        SampledRound(mixed, SAMPLED.sampling)
    with pytest.raises(PrivacyError, match="not that of its releases"):
        from_json({**SAMPLED.to_json(), "adjacency": "add_remove_user"})


def test_a_list_claims_the_weakest_adjacency_in_it():
    old = dataclasses.replace(GAUSSIAN, adjacency=ADD_REMOVE)
    assert adjacency_of([]) is adjacency_of([GAUSSIAN, old]) is adjacency_of([SHARES, SAMPLED]) is ZERO_OUT
    assert adjacency_of([old, old]) is ADD_REMOVE
    assert of_list([Adjacency.ANY_TWO_INPUTS, ZERO_OUT]) is ZERO_OUT
    assert {one.in_words for one in Adjacency} == {one.in_words for one in Adjacency if one.in_words.strip()}


def test_a_charge_without_an_adjacency_or_with_an_unknown_one_is_refused_by_name():
    written = charge_of(GAUSSIAN)
    for number in (0, 77):
        written.adjacency = number
        with pytest.raises(PrivacyError, match="charge 'counts' names no known adjacency"):
            event_of(written)


def test_a_ledger_of_an_earlier_version_is_read_as_what_it_was():
    """It named add_remove_user in every event: kept as such, and continued under what both claims imply."""
    budget = Budget(20.0, 1e-5)

    def charged(ledger: Ledger, round: int, event: GaussianRelease) -> Ledger:
        return ledger.charge(
            task_id="aa" * 32, round=round, events=[event], contributions=9, population_size=9,
            id_set_sha256=bytes(32), task_budget=budget, population_budget=budget,
        )  # fmt: skip

    old = Ledger.decode(charged(Ledger("films"), 0, dataclasses.replace(GAUSSIAN, adjacency=ADD_REMOVE)).encode())
    assert adjacency_of(old.population_events) is ADD_REMOVE
    continued = Ledger.decode(charged(old, 1, GAUSSIAN).encode())
    assert adjacency_of(continued.population_events) is ZERO_OUT
    continued.verify()

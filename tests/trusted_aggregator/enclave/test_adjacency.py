"""What an enclave's charges compare: a user with all data and the same user with none, both with all uploads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from odp.algorithms.release import charges_of
from odp.errors import PrivacyError
from odp.evaluation.noise import NoNoise
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import SampledRound, Sampling
from odp.v1 import common_pb2
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.state.records import population_key

VICTIM, DEVICES = 4, 9


def _claiming(adjacency: Adjacency, draw: Sampling | None):
    """Charges that say another adjacency than what an enclave's releases are about."""

    def charges(task, round):
        releases = tuple(dataclasses.replace(one, adjacency=adjacency) for one in charges_of(task.queries[round]))
        return releases if draw is None else (SampledRound(releases, draw),)

    return charges


@pytest.mark.parametrize("draw", [None, Sampling(0.5, 100, 98)])
def test_a_charge_for_another_adjacency_is_refused_before_anything_is_drawn(make_world, monkeypatch, draw):
    """The count of contributions leaves with every release: nobody is hidden who might not have uploaded."""
    world = make_world(minimum=3)
    monkeypatch.setattr(OpenedTask, "charges", _claiming(Adjacency.ADD_REMOVE_USER, draw))
    with pytest.raises(PrivacyError, match="adjacency='add_remove_user' of event 'counts' does not fit"):
        world.open()
    assert list(world.records) == [population_key(world.population)]
    assert world.core.ledger(world.task_sha256) is None


def test_a_charge_for_another_adjacency_is_refused_at_the_close_as_well(small, monkeypatch):
    small.fill(range(DEVICES))
    with monkeypatch.context() as planted:
        planted.setattr(OpenedTask, "charges", _claiming(Adjacency.ADD_REMOVE_USER, None))
        with pytest.raises(PrivacyError, match="does not fit"):
            small.charge()
    assert small.charges() == 0
    small.close()  # the round stayed open, and nothing was lost


def test_ledger_and_release_name_it(small):
    small.fill(range(DEVICES))
    release = small.learn(small.close())
    assert [charge.adjacency for charge in release.charges] == [common_pb2.ADJACENCY_ZERO_OUT_USER]
    entry = small.ledger().entries[0].to_json()
    assert [event["adjacency"] for event in entry["events"]] == ["zero_out_user"]


@pytest.mark.parametrize("round", [0, 1, 2])
def test_with_all_data_of_a_user_or_none_everything_but_the_sums_is_the_same(make_world, round):
    """Two enclaves, one transcript of uploads: counts, charges and epsilon are equal, and sums within the bound."""
    worlds = [make_world(minimum=3, noise=NoNoise()) for _ in range(2)]
    found = []
    for world, empty in zip(worlds, (False, True), strict=True):
        for number in range(round):
            world.open(number)
            world.fill(range(DEVICES), number)
            world.learn(world.close(number))
        world.open(round)
        query = world.algorithm.query(round)
        sealed = []
        for device in range(DEVICES):
            changes = {"payload": query.empty_payload} if empty and device == VICTIM else {}
            sealed.append(world.sealed(device, round, **changes))
            assert world.submit(sealed[-1], round) is None
        release = world.learn(world.close(round))
        sums = {tensor.name: np.frombuffer(tensor.integers, "<i8") * tensor.step for tensor in release.tensors}
        seen = [*map(len, sealed)], release.contributions, [*release.charges], release.epsilon_spent
        found.append((seen, sums, query))
    (seen, sums, query), (other_seen, other_sums, _) = found
    assert seen == other_seen
    for declared in query.releases:
        change = (sums[declared.name] - other_sums[declared.name]).reshape(declared.shape)
        scaled = change * declared.noise_std / declared.column_std
        assert 0.0 < float(np.sqrt((scaled**2).sum())) <= declared.sensitivity * (1.0 + 1e-9)

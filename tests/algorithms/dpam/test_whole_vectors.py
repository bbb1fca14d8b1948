"""Rounds of DPAM as one vector per device, for masks: the same integers everywhere, and the charge of the releases."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from own_rows import own_rows

import odp
from odp.algorithms.dense.grid import NUMBER
from odp.algorithms.dpam.query import query_of
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization import whole_vectors
from odp.algorithms.factorization.laid_out import tensors
from odp.algorithms.factorization.whole_vectors import RELEASE, whole_vector
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.numerics import sorting_network
from odp.protocol.aggregation import ENCLAVE, MASKED, SECAGG
from odp.protocol.wire.model import Slices

ITEMS, USERS = 24, 20
TRAININGS = {"gradient": (5, odp.DPAM(step="gradient", steps=2)), "biases": (2, odp.DPAM(steps=0))}


def task(kind: str, aggregation: str, **changes: object) -> odp.Task:
    rank, training = TRAININGS[kind]
    options = {"corrupt_fraction": 0.0} if aggregation == SECAGG else {}
    fields = {
        "name": "masked",
        "model": odp.MatrixFactorization(items=ITEMS, rank=rank),
        "data": odp.RatingsData(low=1, high=5),
        "privacy": odp.UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=6),
        "training": training,
        "cohort": odp.Cohort(minimum=USERS, goal=USERS, aggregation=aggregation, **options),
    }
    return odp.Task(**fields | changes)  # type: ignore[arg-type]


def people() -> Ratings:
    """Users with none to all of the items."""
    generator = np.random.default_rng(4)
    mask = generator.random((USERS, ITEMS)) < generator.choice([0.0, 0.1, 0.4, 1.0], USERS)[:, None]
    users, items = np.nonzero(mask)
    values = generator.uniform(1, 5, len(users))
    return Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=USERS, n_items=ITEMS)


@pytest.mark.parametrize("aggregation", [MASKED, SECAGG])
@pytest.mark.parametrize("kind", TRAININGS)
def test_devices_and_simulation_send_the_same_integers_which_stand_for_the_enclaves(
    kind: str, aggregation: str
) -> None:
    """Round by round, from the same model: a number of the sum is off by the users' rounding alone, one step each."""
    algorithm, plain = (algorithm_for(task(kind, mode).definition()) for mode in (aggregation, ENCLAVE))
    server, ratings, terms = algorithm.server(), people(), Terms.of(algorithm.definition)
    seeds = np.random.default_rng(9).integers(0, 2**64, USERS, dtype=np.uint64)
    client, state = algorithm.client(), server.start()
    for round in range(server.rounds):
        broadcast, query = server.broadcast(state), algorithm.query(round)
        simulated = algorithm.population().contribute(broadcast, ratings, round=round, seeds=seeds)[RELEASE]
        total = np.zeros(len(simulated), dtype=np.int64)
        for user, seed in enumerate(seeds.tolist()):
            items, values = ratings.user(user)
            data = own_rows(items.astype(np.int64), values.astype(np.float64))
            keys = client.keys(data, round=round, seed=seed)
            slices = Slices(round, keys, broadcast.keyed.rows[keys], broadcast.dense)
            payload = client.contribute(slices, data, round=round, seed=seed)[0]
            query.check(payload)
            assert len(payload) == query.payload_bytes == len(client.empty(round))
            total += np.frombuffer(payload, dtype=NUMBER)
        np.testing.assert_array_equal(total, simulated)

        opened = query_of(terms, round)
        vector = whole_vector(opened, algorithm.definition)
        assert vector is not None
        release = NoisyTensors(round, {RELEASE: total * query.releases[0].step}, USERS)
        sums = plain.population().contribute(broadcast, ratings, round=round, seeds=seeds)
        for part in opened.releases:
            rounding = USERS * vector.grid.step * np.broadcast_to(part.column_std, part.shape)
            exact = sums[part.name].reshape(part.shape) * part.step
            assert (np.abs(tensors(vector, release).tensors[part.name] - exact) <= rounding * (1 + 1e-9)).all()
        state = server.step(state, release)


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_device_lays_its_numbers_out_without_the_sorting_that_hides_those_of_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting takes seconds for a large catalogue, and what is late is empty."""
    algorithm, (items, values) = algorithm_for(task(kind, MASKED).definition()), people().user(1)
    broadcast = algorithm.server().broadcast(algorithm.server().start())
    monkeypatch.setattr(sorting_network, "sort", lambda *arrays: pytest.fail("sorted"))
    for round in range(2):
        slices = Slices(round, items.astype(np.int64), broadcast.keyed.rows[items], broadcast.dense)
        data = own_rows(items.astype(np.int64), values.astype(np.float64))
        payload = algorithm.client().contribute(slices, data, round=round, seed=7)[0]
        assert np.frombuffer(payload, dtype=NUMBER).any()


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_vector_costs_what_its_releases_cost_together(kind: str) -> None:
    masked, plain = (algorithm_for(task(kind, mode).definition()) for mode in (MASKED, ENCLAVE))
    for round in range(masked.server().rounds):
        (vector,), parts = masked.query(round).releases, plain.query(round).releases
        together = sum((part.sensitivity / part.noise_std) ** 2 for part in parts)
        assert (vector.sensitivity / vector.noise_std) ** 2 == pytest.approx(together, rel=1e-12)
        assert vector.coordinates == sum(part.coordinates for part in parts)


def test_what_masks_cannot_carry_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="step='gradient' or steps=0 with aggregation='masked'"):
        task("biases", MASKED, training=odp.DPAM(steps=1))
    with pytest.raises(ConfigurationError, match="epsilon to be finite with aggregation='masked'"):
        task("biases", MASKED, privacy=odp.UserLevelDP(epsilon=math.inf, delta=1e-6, max_items_per_user=6))
    with pytest.raises(ConfigurationError, match="of items: the enclave has to open its sparse contributions"):
        task("biases", MASKED, training=odp.DPSGD(rounds=2))
    monkeypatch.setattr(whole_vectors, "MOST_NUMBERS", ITEMS)
    with pytest.raises(ConfigurationError, match=r"at most 24 numbers of a contribution .* take fewer items"):
        task("gradient", SECAGG)


def test_the_server_refuses_another_release() -> None:
    server = algorithm_for(task("gradient", MASKED).definition()).server()
    state = server.start()
    with pytest.raises(ConfigurationError, match="release 'vector' of 25 numbers in round 0"):
        server.step(state, NoisyTensors(0, {"masses": np.zeros(ITEMS)}, USERS))


def test_masked_training_learns_what_the_enclave_learns() -> None:
    """Rounding is far below the noise: errors of three seeds differ by less than those of two seeds."""
    data = odp.data.synthetic_movielens(n_users=300, n_items=ITEMS, ratings_per_user=10)
    errors = {
        mode: [
            odp.simulate(
                dataclasses.replace(task("gradient", mode), cohort=odp.Cohort(minimum=300, goal=300, aggregation=mode)),
                data,
                seed=seed,
            ).metrics["test_rmse"]
            for seed in (1, 2)
        ]
        for mode in (ENCLAVE, MASKED)
    }
    assert abs(np.mean(errors[MASKED]) - np.mean(errors[ENCLAVE])) < 0.03

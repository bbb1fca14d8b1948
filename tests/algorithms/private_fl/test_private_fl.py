"""Private federated learning: private on the device, bounded in the enclave, the same on devices as in simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import odp
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.private_fl.algorithm import TaskAlgorithm
from odp.algorithms.private_fl.client import PrivateClient
from odp.algorithms.private_fl.report import Reports
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.evaluation.noise import SeededNoise
from odp.numerics.arrays import Float32Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.protocol.wire.model import Slices, TableValues
from odp.signed.task import check_definition
from odp.v1 import common_pb2

FEATURES = 7
MODEL = odp.Glm("logistic", FEATURES)
SIZE = MODEL.size


def task(**changes: object) -> odp.Task:
    given = {
        "name": "clicks",
        "model": MODEL,
        "data": odp.Examples({"x": odp.Tensor((FEATURES,), -1.0, 1.0)}, label="clicked"),
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "training": odp.PrivateFL(rounds=3, epochs=2, batch=4, participations=2),
        "cohort": odp.Cohort(minimum=2, goal=30),
    }
    return odp.Task(**{**given, **changes})  # type: ignore[arg-type]


def algorithm_of(**changes: object) -> TaskAlgorithm:
    found = algorithm_for(task(**changes).definition())
    assert isinstance(found, TaskAlgorithm)
    return found


def slices_of(value: float = 0.0) -> Slices:
    start = np.full((SIZE, 1), value, dtype=np.float32)
    return Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {PARAMETERS: start})


def rows_of(values: Float32Array, labels: object) -> LocalRows:
    labels = np.asarray(labels, dtype=np.float64)
    return LocalRows(np.arange(len(labels)), labels, {"x": values.reshape(len(labels), FEATURES)})


def query_of(algorithm: TaskAlgorithm) -> DenseQuery:
    query = algorithm.query(0)
    assert isinstance(query, DenseQuery)
    return query


NOTHING = rows_of(np.zeros((0, FEATURES), dtype=np.float32), [])
HELD = {
    "nothing": NOTHING,
    "no usable example": rows_of(np.full((2, FEATURES), np.nan, dtype=np.float32), [0.0, 7.0]),
    "one example": rows_of(np.ones((1, FEATURES), dtype=np.float32), [1.0]),
    "numbers beyond the range": rows_of(np.full((9, FEATURES), 1e30, dtype=np.float32), [1.0] * 9),
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("clip", [math.inf, 0.2])
def test_whatever_a_device_holds_it_sends_a_random_report_within_the_bound(held: str, clip: float) -> None:
    """Two reports of 8 random numbers of 20 bits are equal by chance with probability below 1e-40."""
    algorithm = algorithm_of(training=odp.PrivateFL(rounds=1, rate=1e3, clip=clip))
    client, query = algorithm.client(), query_of(algorithm)
    for value in (0.0, 1e30):
        with np.errstate(all="ignore"):
            sent = [
                client.contribute(slices_of(value), algorithm.data_of(HELD[held]), round=0, seed=1) for _ in range(2)
            ]
        assert sent[0] != sent[1]
        for payload, local in sent:
            query.check(payload)
            assert local == b""
            numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64) * query.grid.step
            assert 0.0 < np.linalg.norm(numbers) <= 1.0


def test_a_device_without_data_sends_what_an_update_of_zeros_would() -> None:
    """Equal bytes from equal randomness: nobody can tell the empty contribution from the report of a device."""
    algorithm = algorithm_of()

    def client() -> PrivateClient:
        return PrivateClient(algorithm.terms(), algorithm.reports(), RandomSource(SeededNoise(3)))

    empty = client().empty(0)
    without = client().contribute(slices_of(), algorithm.data_of(NOTHING), round=0, seed=0)[0]
    assert empty == without
    assert any(empty)


def test_the_enclave_refuses_a_report_that_is_longer_than_the_bound() -> None:
    algorithm = algorithm_of()
    query = query_of(algorithm)
    numbers = np.frombuffer(algorithm.client().empty(0), dtype="<i4").astype(np.float64)
    longest = query.grid.units / np.linalg.norm(numbers)
    query.check(np.trunc(numbers * longest).astype("<i4").tobytes())
    with pytest.raises(ContributionRefused) as caught:
        query.check(np.rint(numbers * longest * 1.001).astype("<i4").tobytes())
    assert caught.value.refusal is Refusal.OUT_OF_BOUNDS


def test_no_report_is_longer_than_the_longest_and_the_default_bound_shortens_none() -> None:
    algorithm = algorithm_of()
    reports = algorithm.reports()
    generator = np.random.default_rng(1)
    moved = generator.normal(size=(20_000, SIZE)) * generator.exponential(size=(20_000, 1))
    norms = np.linalg.norm(reports.randomized(moved, source=RandomSource(SeededNoise(1))), axis=1)
    assert norms.max() == pytest.approx(reports.longest, rel=1e-4)
    assert reports.longest < algorithm.terms().clip < 1.002 * reports.longest
    assert algorithm_of(training=odp.PrivateFL(rounds=1, clip=0.1)).terms().clip == 0.1


@pytest.mark.parametrize("norm", [0.0, 0.05, 0.5, 3.0])
def test_reports_have_the_expectation_and_the_square_that_are_stated(norm: float) -> None:
    """Within 5 standard errors of 9 numbers: a false alarm has probability below 1e-5. Longer updates are cut."""
    reports, count = algorithm_of().reports(), 60_000
    update = np.zeros(SIZE)
    update[:2] = 0.6 * norm, -0.8 * norm
    sent = reports.randomized(np.tile(update, (count, 1)), source=RandomSource(SeededNoise(7))).astype(np.float64)
    wanted = update * min(1.0, 0.5 / norm) if norm else update
    error = sent.std(axis=0) / math.sqrt(count)
    assert (np.abs(sent.mean(axis=0) - wanted) <= 5.0 * error).all()
    squares = np.square(sent).sum(axis=1)
    assert abs(squares.mean() - reports.mean_square(norm)) <= 5.0 * squares.std() / math.sqrt(count)


def test_both_layers_are_charged_as_asked() -> None:
    algorithm = algorithm_of(
        training=odp.PrivateFL(rounds=3, direction_epsilon=12.0, magnitude_epsilon=5.0, participations=2)
    )
    charge = algorithm.local_charge
    assert [name for name, _ in charge.parts] == ["direction", "magnitude"]
    assert [epsilon for _, epsilon in charge.parts] == pytest.approx([12.0, 5.0], rel=1e-6)
    assert charge.epsilon == pytest.approx(17.0, rel=1e-6)
    assert charge.lifetime == pytest.approx(2 * charge.epsilon, rel=1e-12)
    assert charge.to_json()["adjacency"] == "any_two_inputs"
    (release,) = algorithm.query(0).releases
    assert (release.sensitivity, release.name) == (1.0, RELEASE)


def test_clients_and_population_make_the_same_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the randomizers replaced by a function of the update, which shows what reaches them and what follows."""
    monkeypatch.setattr(Reports, "randomized", lambda self, moved, *, source: np.float32(0.3) - moved)
    algorithm, users = algorithm_of(), 20
    generator = np.random.default_rng(2)
    features = generator.uniform(-2, 2, (200, FEATURES)).astype(np.float32)
    targets = generator.integers(0, 2, 200).astype(np.float32)
    features[3, 2], targets[5] = np.nan, np.nan
    counts = generator.integers(0, 12, users)
    counts[0] = 0
    people = odp.data.UsersExamples(
        features, targets, generator.integers(0, 200, counts.sum()), np.concatenate(([0], np.cumsum(counts)))
    )
    seeds = generator.integers(0, 2**63, users).astype(np.uint64)
    start = (generator.normal(size=(SIZE, 1)) * 0.1).astype(np.float32)
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {PARAMETERS: start})
    client, query = algorithm.client(), algorithm.query(1)
    total = query.new_sum()
    for user in range(users):
        rows = people.rows[people.offsets[user] : people.offsets[user + 1]]
        own = algorithm.data_of(rows_of(features[rows], targets[rows]))
        payload = client.contribute(slices, own, round=1, seed=int(seeds[user]))[0]
        query.check(payload)
        total.add([payload])
    server = algorithm.server()
    broadcast = server.broadcast(server.start())
    broadcast = type(broadcast)(0, (TableValues(PARAMETERS, start, keyed=False),))
    simulated = algorithm.population().contribute(broadcast, people, round=1, seeds=seeds)[RELEASE]
    apart = (total.totals()[RELEASE] - simulated) * query.releases[0].step / users
    assert simulated.all()
    assert np.abs(apart).max() <= 1e-6


def test_a_simulation_learns_spends_its_budget_and_has_each_user_in_as_many_rounds_as_allowed() -> None:
    generator = np.random.default_rng(8)
    truth = np.array([1.0, -0.5, 0.0, 0.7, -1.0, 0.2, 0.4]) * 3.0
    features = generator.uniform(-1, 1, (24_000, FEATURES)).astype(np.float32)
    targets = (generator.uniform(size=24_000) < 1 / (1 + np.exp(-features @ truth))).astype(np.float32)
    users = odp.data.UsersExamples.of_users(features, targets, np.arange(24_000) % 3_000)
    asked = task(
        training=odp.PrivateFL(rounds=8, rate=0.5, epochs=4, server_rate=3.0, participations=2),
        cohort=odp.Cohort(minimum=100, goal=500),
    )
    run = odp.simulate(asked, odp.data.ExamplesSplit(train=users, test=users))
    assert 3.98 < run.epsilon <= 4.0
    assert run.metrics["test_accuracy"] > 0.75
    assert sum(one.contributions for one in run.rounds) == 2 * users.n_users
    assert all(600 < one.contributions < 900 for one in run.rounds)  # 3,000 users in 4 turns: 6 deviations are 143
    again = odp.simulate(asked, odp.data.ExamplesSplit(train=users, test=users))
    np.testing.assert_array_equal(again.model.dense[PARAMETERS], run.model.dense[PARAMETERS])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.private_fl.ClearField("report"), "Expected a report in PrivateFL"),
        (lambda d: d.private_fl.report.__setattr__("cap_height", 1.0), "cap_height=1.0"),
        (lambda d: d.private_fl.report.__setattr__("cap_height", math.nan), "cap_height=nan"),
        (lambda d: d.private_fl.report.__setattr__("cap_probability", 0.4), "cap_probability=0.4"),
        (lambda d: d.private_fl.report.__setattr__("largest_norm", 0.0), "largest_norm=0.0"),
        (lambda d: d.private_fl.report.__setattr__("levels", 0), "levels=0"),
        (lambda d: d.private_fl.report.__setattr__("magnitude_epsilon", 40.0), "epsilon=40.0"),
        (lambda d: d.private_fl.report.__setattr__("most_participations", 0), "most_participations=0"),
        (lambda d: d.private_fl.spread.__setattr__("weight", 0.1), "only its report is sent"),
        (lambda d: d.private_fl.blocks[0].dense.__setattr__("clip", 2.0), "clip"),
        (lambda d: d.fedavg.CopyFrom(d.private_fl), "only there"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task().definition()
    definition.developer_key = bytes(range(32))
    check_definition(definition)
    spoil(definition)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_quantile": 0.5}, "nothing about its update but its randomized report"),
        ({"diagnostics": True}, "nothing about its update but its randomized report"),
        ({"cohort_schedule": [(50, 10)]}, "cohort_schedule"),
        ({"direction_epsilon": 0.0}, "direction_epsilon=0.0"),
        ({"magnitude_epsilon": math.nan}, "magnitude_epsilon=nan"),
        ({"largest_norm": math.inf}, "largest_norm=inf"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": math.nan}, "clip=nan"),
        ({"participations": 51}, "participations=51"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        odp.PrivateFL(**change)  # type: ignore[arg-type]


def test_sampling_and_models_without_a_direction_are_refused() -> None:
    sampled = odp.Cohort(
        minimum=2, goal=30, sampling="enclave_poisson", sampling_probability=0.5, most_contributions=60
    )
    with pytest.raises(ConfigurationError, match="a device pays for its report, drawn or not"):
        task(cohort=sampled).definition()
    with pytest.raises(ConfigurationError, match="at least 2 parameters"):
        Reports.chosen(size=1, direction_epsilon=8.0, magnitude_epsilon=8.0, largest_norm=1.0, most=1)


@pytest.mark.parametrize("aggregation", ["masked", "secagg+"])
def test_ways_of_aggregation_without_an_enclave_that_sees_reports_take_the_same_payload(aggregation: str) -> None:
    algorithm = algorithm_of(cohort=odp.Cohort(minimum=20, goal=30, aggregation=aggregation))
    payload = algorithm.client().empty(0)
    algorithm.query(0).check(payload)
    assert len(payload) == 4 * SIZE


def test_few_bits_per_number_carry_a_report() -> None:
    algorithm = algorithm_of(training=odp.PrivateFL(rounds=1, upload_bits=16))
    payload = algorithm.client().empty(0)
    algorithm.query(0).check(payload)
    assert any(payload)

"""DP-FedAvg: bounded by removing a user, the same on devices as in simulation, charged as declared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges, sampling_of
from odp.algorithms.seam import LocalRows, NoisyTensors, SampledQuery
from odp.crypto.signing import SigningKey
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError, StateError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.models.glm.training import difference
from odp.numerics.arrays import Float32Array
from odp.privacy.accounting import epsilon
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.v1 import common_pb2

FEATURES, CLASSES, USERS = 12, 3, 20
EXAMPLES = Examples({"x": Tensor((3, 4), -2.0, 2.0, scale=0.5)}, label="kind")
MODEL = Glm("multinomial", FEATURES, CLASSES)


def definition_of(
    training: DPFedAvg | None = None, *, model: Glm = MODEL, data: Examples = EXAMPLES, cohort: Cohort | None = None
) -> common_pb2.TaskDefinition:
    privacy = UserLevelDP(epsilon=4, delta=1e-5)
    definition = common_pb2.TaskDefinition(
        name="digits",
        population="people",
        developer_key=SigningKey.generate().public,
        privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
        cohort=(cohort or Cohort(minimum=2, goal=USERS)).to_proto(privacy.delta),
    )
    model.write(definition)
    data.write(definition)
    (training or DPFedAvg(rounds=3, epochs=2, batch=4)).write(definition)
    return definition


def population_of(seed: int = 1, *, classes: int = CLASSES) -> UsersExamples:
    """Ragged users, some empty, with numbers out of range, not a number, and missing labels."""
    generator = np.random.default_rng(seed)
    features = (generator.normal(size=(200, FEATURES)) * 2.0).astype(np.float32)
    targets = generator.integers(0, classes, 200).astype(np.float32)
    features[3, 2], features[4, 1], targets[5:8] = np.nan, np.inf, np.nan
    counts = generator.integers(0, 20, USERS)
    counts[:2] = 0, 1
    rows = generator.integers(0, 200, counts.sum())
    rows[1:8] = np.arange(1, 8)
    return UsersExamples(features, targets, rows, np.concatenate(([0], np.cumsum(counts))))


def rows_of(users: UsersExamples, user: int) -> LocalRows:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    columns = {"x": users.features[rows].reshape(-1, 3, 4)}
    return LocalRows(np.arange(len(rows)), users.targets[rows].astype(np.float64), columns)


def slices_of(parameters: Float32Array, *, clip: float | None = None) -> Slices:
    dense = {PARAMETERS: parameters}
    if clip is not None:
        dense["clip"] = np.full((1, 1), clip, dtype=np.float32)
    return Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), dense)


NUMBERS = st.floats(width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.lists(NUMBERS, min_size=12, max_size=12), max_size=6),
    labels=st.lists(NUMBERS | st.sampled_from([0.0, 1.0, 2.0]), min_size=6, max_size=6),
    rate=st.sampled_from([0.1, 1e3, 1e30]),
    start=st.sampled_from([0.0, 1.0, 1e30]),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_device_moves_the_sum_by_one_clip_at_most_whatever_it_holds(
    values: list[list[float]], labels: list[float], rate: float, start: float, seed: int
) -> None:
    algorithm = algorithm_for(definition_of(DPFedAvg(rounds=1, rate=rate, clip=0.1)))
    features = np.array(values, dtype=np.float64).reshape(-1, 3, 4)
    rows = LocalRows(np.arange(len(values)), np.array(labels[: len(values)]), {"x": features})
    parameters = np.full((MODEL.size, 1), start, dtype=np.float32)
    with np.errstate(all="ignore"):
        payload, local = algorithm.client().contribute(
            slices_of(parameters), algorithm.data_of(rows), round=0, seed=seed
        )
    query = algorithm.query(0)
    assert isinstance(query, DenseQuery)
    query.check(payload)
    numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64) * query.grid.step
    assert local == b""
    assert np.linalg.norm(numbers) <= 1.0


@pytest.mark.parametrize("family", ["linear", "logistic", "multinomial", "poisson"])
def test_clients_and_population_make_the_same_mean(family: str) -> None:
    model = Glm(family, FEATURES, CLASSES if family == "multinomial" else 1)
    data = EXAMPLES if model.classes_range else Examples(dict(EXAMPLES.features), label_low=0.0, label_high=2.0)
    algorithm = algorithm_for(definition_of(model=model, data=data))
    people = population_of(classes=2 if family == "logistic" else CLASSES)
    generator = np.random.default_rng(3)
    seeds = generator.integers(0, 2**63, USERS).astype(np.uint64)
    start = (generator.normal(size=(model.size, 1)) * 0.1).astype(np.float32)
    client, query = algorithm.client(), algorithm.query(1)
    total = query.new_sum()
    for user in range(USERS):
        own = algorithm.data_of(rows_of(people, user))
        payload = client.contribute(slices_of(start), own, round=1, seed=int(seeds[user]))[0]
        query.check(payload)
        total.add([payload])
    server = algorithm.server()
    broadcast = server.broadcast(server.start())
    broadcast = type(broadcast)(0, (type(broadcast.tables[0])(PARAMETERS, start, keyed=False),))
    simulated = algorithm.population().contribute(broadcast, people, round=1, seeds=seeds)[RELEASE]
    assert simulated.any()
    apart = (total.totals()[RELEASE] - simulated) * query.releases[0].step / USERS
    assert np.abs(apart).max() <= 1e-6


def test_users_without_usable_examples_contribute_nothing() -> None:
    algorithm = algorithm_for(definition_of())
    start = slices_of(np.zeros((MODEL.size, 1), dtype=np.float32))
    empty = algorithm.client().empty(0)
    for rows in (
        LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0)),
        LocalRows(np.arange(2), np.zeros(2)),
        LocalRows(np.arange(2), np.zeros(2), {"x": np.zeros((2, 12))}),
        LocalRows(np.arange(2), np.zeros(2), {"x": np.full((2, 3, 4), np.nan)}),
        LocalRows(np.arange(2), np.array([3.0, 0.5]), {"x": np.zeros((2, 3, 4))}),
    ):
        assert algorithm.client().contribute(start, algorithm.data_of(rows), round=0, seed=1)[0] == empty
    algorithm.query(0).check(empty)


@pytest.mark.parametrize(
    "cohort",
    [
        Cohort(minimum=2, goal=USERS),
        Cohort(minimum=20, goal=USERS, aggregation="masked"),
        Cohort(minimum=20, goal=40, aggregation="secagg+"),
        Cohort(
            minimum=2, goal=USERS, sampling="enclave_poisson", sampling_probability=0.3, most_contributions=1000
        ),
    ],
    ids=["full", "masked", "secagg+", "poisson"],
)  # fmt: skip
@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.slow
def test_all_rounds_cost_the_budget_and_no_more(cohort: Cohort) -> None:
    training = DPFedAvg(rounds=5, noise_schedule=[(3, 2.0), (2, 1.0)])
    definition = definition_of(training, cohort=cohort)
    check_definition(definition)
    algorithm, sampling = algorithm_for(definition), sampling_of(definition, 0)
    events = [event for round in range(5) for event in round_charges(algorithm.query(round), sampling)]
    assert 3.98 < epsilon(events, delta=1e-5) <= 4.0
    planned = algorithm.planned_releases()
    assert [releases[0].noise_std for releases in planned] == [
        algorithm.query(round).releases[0].noise_std for round in range(5)
    ]
    assert planned[0][0].noise_std == pytest.approx(2.0 * planned[4][0].noise_std)
    assert all(releases[0].sensitivity == 1.0 for releases in planned)
    assert isinstance(algorithm.query(0), SampledQuery)


def test_the_server_divides_by_the_public_cohort_alone() -> None:
    algorithm = algorithm_for(definition_of(DPFedAvg(rounds=2, clip=0.5, server_rate=2.0, divisor=40.0)))
    server = algorithm.server()
    state = server.start()
    for contributions in (0, 7):
        tensors = {RELEASE: np.full(MODEL.size, 8.0)}
        state = server.step(state, NoisyTensors(int(contributions > 0), tensors, contributions))
    table = server.broadcast(state)
    np.testing.assert_allclose(table.dense[PARAMETERS], 2 * 2.0 * 0.5 * 8.0 / 40.0)
    assert table.version == 2
    with pytest.raises(ConfigurationError, match="round"):
        server.step(state, NoisyTensors(2, tensors, 1))
    with pytest.raises(StateError):
        server.broadcast(state[:-1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "yogi"])
def test_training_without_noise_learns(optimizer: str) -> None:
    generator = np.random.default_rng(7)
    truth = generator.normal(size=(CLASSES, FEATURES))
    features = generator.uniform(-2, 2, (600, FEATURES)).astype(np.float32)
    targets = (features @ truth.T).argmax(axis=1).astype(np.float32)
    people = UsersExamples(features, targets, np.arange(600), np.arange(0, 601, 30))
    rate = 1.0 if optimizer == "sgd" else 0.2
    algorithm = algorithm_for(
        definition_of(DPFedAvg(rounds=25, clip=1.0, rate=0.3, server=optimizer, server_rate=rate, server_momentum=0.5))
    )
    server, population = algorithm.server(), algorithm.population()
    state, seeds = server.start(), np.arange(USERS, dtype=np.uint64)
    for round in range(25):
        sums = population.contribute(server.broadcast(state), people, round=round, seeds=seeds)[RELEASE]
        tensors = {RELEASE: sums * algorithm.query(round).releases[0].step}
        state = server.step(state, NoisyTensors(round, tensors, USERS))
    vector = server.broadcast(state).dense[PARAMETERS][:, 0]
    predicted = MODEL.predictors(vector, features * np.float32(0.5)).argmax(axis=1)
    assert (predicted == targets).mean() > 0.85


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.glm.__setattr__("features", 13), "features=13"),
        (lambda d: d.glm.__setattr__("family", 9), "family"),
        (lambda d: d.ClearField("examples"), "examples"),
        (lambda d: d.examples.__setattr__("label_high", 5.0), "label"),
        (lambda d: d.examples.features[0].__setattr__("low", 9.0), "low"),
        (lambda d: d.examples.features.append(d.examples.features[0]), "distinct"),
        (lambda d: d.fedavg.__setattr__("clip", 0.0), "clip"),
        (lambda d: d.fedavg.__setattr__("cohort", 0.5), "cohort"),
        (lambda d: d.fedavg.local.__setattr__("batch", 0), "batch"),
        (lambda d: d.fedavg.server.__setattr__("kind", 0), "optimizer"),
        (lambda d: d.fedavg.server.__setattr__("adaptivity", 1.0), "adaptivity"),
        (lambda d: d.fedavg.ClearField("blocks"), "blocks"),
        (lambda d: d.fedavg.blocks[0].__setattr__("rounds", 0), "rounds"),
        (lambda d: d.fedavg.blocks[0].dense.__setattr__("clip", 2.0), "clip"),
        (lambda d: d.fedavg.blocks[0].dense.__setattr__("noise_std", 0.0), "noise_std"),
        (lambda d: d.model.__setattr__("items", 3), "Expected one model of task"),
        (lambda d: d.privacy.__setattr__("max_items_per_user", 3), "max_items_per_user"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = definition_of()
    spoil(definition)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds"), ({"clip": 0.0}, "clip"), ({"server": "adm"}, "did you mean 'adam'"),
        ({"clip_quantile": 2.0}, "clip_quantile"), ({"clip_rate": 0.0}, "clip_rate"),
        ({"noise_schedule": [(2, 1.0)]}, "noise_schedule"), ({"divisor": 0.0}, "divisor"), ({"rate": -1.0}, "rate"),
    ],
)  # fmt: skip
def test_a_training_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DPFedAvg(**change)  # type: ignore[arg-type]


def test_a_model_of_dense_parameters_of_wrong_shape_or_not_finite_is_refused() -> None:
    client = algorithm_for(definition_of()).client()
    client.check_model({PARAMETERS: np.zeros((MODEL.size, 1), dtype=np.float32)})
    for dense in (
        {},
        {PARAMETERS: np.zeros((MODEL.size + 1, 1), dtype=np.float32)},
        {PARAMETERS: np.full((MODEL.size, 1), np.nan, dtype=np.float32)},
    ):
        with pytest.raises(ConfigurationError):
            client.check_model(dense)


def test_an_adaptive_clip_norm_follows_its_quantile_and_is_charged_with_the_update() -> None:
    generator = np.random.default_rng(7)
    features = generator.uniform(-2, 2, (1200, FEATURES)).astype(np.float32)
    targets = generator.integers(0, CLASSES, 1200).astype(np.float32)
    users = 200
    people = UsersExamples.of_users(features, targets, np.arange(1200) % users)
    training = DPFedAvg(rounds=60, clip=5.0, clip_quantile=0.5, rate=0.3, server_rate=1e-6)
    definition = definition_of(training, cohort=Cohort(minimum=2, goal=users))
    check_definition(definition)
    algorithm = algorithm_for(definition)
    events = [event for round in range(60) for event in round_charges(algorithm.query(round), None)]
    assert 3.98 < epsilon(events, delta=1e-5) <= 4.0
    (release,) = algorithm.query(0).releases
    weight = definition.fedavg.adaptive_clip.weight
    assert release.shape == (MODEL.size + 1,)
    assert release.sensitivity >= np.hypot(1.0, weight / 2)
    assert release.sensitivity == pytest.approx(np.hypot(1.0, weight / 2))
    server, population = algorithm.server(), algorithm.population()
    state, seeds = server.start(), np.arange(users, dtype=np.uint64)
    assert float(server.broadcast(state).dense["clip"][0, 0]) == 5.0
    for round in range(60):
        broadcast = server.broadcast(state)
        sums = population.contribute(broadcast, people, round=round, seeds=seeds)[RELEASE]
        state = server.step(state, NoisyTensors(round, {RELEASE: sums * release.step}, users))
    clip = float(server.broadcast(state).dense["clip"][0, 0])
    start = server.broadcast(state).dense[PARAMETERS][:, 0]
    terms = algorithm.terms()  # type: ignore[attr-defined]
    norms = [
        np.linalg.norm(difference(MODEL, start, features[own] / 2, targets[own], terms.local, seed=user, round=60))
        for user in range(users)
        for own in [np.arange(user, 1200, users)]
    ]
    assert np.mean(np.array(norms) <= clip) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(StateError):
        server.broadcast(state[:-1])
    client = algorithm.client()
    for table in (np.zeros((1, 1)), np.full((1, 1), np.nan), np.ones((2, 1))):
        with pytest.raises(ConfigurationError):
            client.check_model({PARAMETERS: start[:, None], "clip": table.astype(np.float32)})
    payload, _ = client.contribute(
        slices_of(start[:, None], clip=clip), algorithm.data_of(rows_of(people, 3)), round=0, seed=3
    )
    algorithm.query(0).check(payload)
    assert client.empty(0) == bytes(len(payload))

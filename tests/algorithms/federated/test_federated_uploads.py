"""Federated training with few bits per number: the same on devices as in simulation, charged as declared."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges, sampling_of
from odp.algorithms.seam import LocalRows, NoisyTensors, SampledQuery
from odp.crypto.signing import SigningKey
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.privacy.accounting import epsilon
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.v1 import common_pb2

FEATURES, CLASSES, USERS = 40, 3, 20
MODEL = Glm("multinomial", FEATURES, CLASSES)
LONG = Glm("multinomial", FEATURES, 2_500)
POISSON = Cohort(
    minimum=2, goal=USERS, sampling="enclave_poisson", sampling_probability=0.3, most_contributions=1000
)  # fmt: skip


def definition_of(training: DPFedAvg, *, cohort: Cohort | None = None, model: Glm = MODEL) -> common_pb2.TaskDefinition:
    privacy = UserLevelDP(epsilon=4, delta=1e-5)
    definition = common_pb2.TaskDefinition(
        name="digits",
        population="people",
        developer_key=SigningKey.generate().public,
        privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
        cohort=(cohort or Cohort(minimum=2, goal=USERS)).to_proto(privacy.delta),
    )
    model.write(definition)
    Examples({"x": Tensor((model.features,), -2.0, 2.0)}, label="kind").write(definition)
    training.write(definition)
    return definition


def people() -> UsersExamples:
    generator = np.random.default_rng(1)
    features = (generator.normal(size=(200, FEATURES)) * 2.0).astype(np.float32)
    targets = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(axis=1).astype(np.float32)
    counts = generator.integers(0, 20, USERS)
    counts[:2] = 0, 1
    rows = generator.integers(0, 200, counts.sum())
    return UsersExamples(features, targets, rows, np.concatenate(([0], np.cumsum(counts))))


def rows_of(users: UsersExamples, user: int) -> LocalRows:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    return LocalRows(np.arange(len(rows)), users.targets[rows].astype(np.float64), {"x": users.features[rows]})


@pytest.mark.parametrize("upload_bits", [8, 11, 16])
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_clients_and_population_make_the_same_integers_and_the_server_reads_their_mean(
    upload_bits: int, quantile: float | None
) -> None:
    choices = {"rounds": 3, "epochs": 2, "rate": 0.3, "clip": 0.1, "clip_quantile": quantile}
    algorithm = algorithm_for(definition_of(DPFedAvg(**choices, upload_bits=upload_bits)))  # type: ignore[arg-type]
    plain = algorithm_for(definition_of(DPFedAvg(**choices)))  # type: ignore[arg-type]
    users, seeds = people(), np.random.default_rng(3).integers(0, 2**63, USERS).astype(np.uint64)
    server, client, query = algorithm.server(), algorithm.client(), algorithm.query(0)
    broadcast = server.broadcast(server.start())
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), broadcast.dense)
    assert query.payload_bytes == -(-(MODEL.size + (quantile is not None)) * upload_bits // 8)
    total = query.new_sum()
    for user in range(USERS):
        own = algorithm.data_of(rows_of(users, user))
        payload, local = client.contribute(slices, own, round=0, seed=int(seeds[user]))
        assert (payload == client.empty(0)) is (len(own["examples"].values) == 0)
        assert query.refusals([payload]) == [None]
        assert local == b""
        total.add([payload])
    sums = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    # Both train in float32, in another order: a number that lies at the edge of a step may fall on its other side.
    apart = np.abs(total.totals()[RELEASE] - sums)
    assert apart.max() <= 1
    assert np.mean(apart > 0) <= 0.1
    assert sums.any()

    exact = plain.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    states = []
    for one, integers in ((algorithm, sums), (plain, exact)):
        tensors = {RELEASE: integers * one.query(0).releases[0].step}
        states.append(one.server().broadcast(one.server().step(one.server().start(), NoisyTensors(0, tensors, USERS))))
    few, many = (state.dense[PARAMETERS][:, 0] for state in states)
    # Each of 20 users rounds each number by half a step at most in root mean square: six standard deviations.
    step = query.releases[0].step * 0.1 / USERS
    assert np.abs(few - many).max() <= 6.0 * 0.5 * step * np.sqrt(USERS) + 1e-6
    assert np.abs(many).max() > 1e-3


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.parametrize("cohort", [None, POISSON], ids=["full", "poisson"])
@pytest.mark.slow
def test_all_rounds_cost_the_budget_and_no_more(cohort: Cohort | None) -> None:
    training = DPFedAvg(rounds=5, noise_schedule=[(3, 2.0), (2, 1.0)], clip_quantile=0.5, upload_bits=10)
    definition = definition_of(training, cohort=cohort)
    check_definition(definition)
    algorithm, sampling = algorithm_for(definition), sampling_of(definition, 0)
    events = [event for round in range(5) for event in round_charges(algorithm.query(round), sampling)]
    assert 3.98 < epsilon(events, delta=1e-5) <= 4.0
    planned = algorithm.planned_releases()
    weight = definition.fedavg.adaptive_clip.weight
    for round, (release,) in enumerate(planned):
        query = algorithm.query(round)
        assert isinstance(query, SampledQuery)
        (declared,) = query.releases
        assert (declared.noise_std, declared.sensitivity, declared.step) == (
            release.noise_std, release.sensitivity, release.step,
        )  # fmt: skip
        assert release.shape == (MODEL.size + 1,)
        assert np.hypot(1.0, weight / 2) < release.sensitivity < 1.05 * np.hypot(1.0, weight / 2)
    assert planned[0][0].noise_std == pytest.approx(2.0 * planned[4][0].noise_std)


@pytest.mark.parametrize(("aggregation", "goal"), [("masked", USERS), ("secagg+", 40)])
def test_masked_contributions_of_few_bits_are_refused_by_name(aggregation: str, goal: int) -> None:
    cohort = Cohort(minimum=20, goal=goal, aggregation=aggregation)
    with pytest.raises(ConfigurationError, match=f"upload_bits=8 .*{aggregation[:6]}"):
        definition_of(DPFedAvg(rounds=1, upload_bits=8), cohort=cohort)
    definition = definition_of(DPFedAvg(rounds=1, upload_bits=8))
    definition.cohort.CopyFrom(definition_of(DPFedAvg(rounds=1), cohort=cohort).cohort)
    with pytest.raises(ConfigurationError, match=f"upload_bits=8 .*{aggregation[:6]}"):
        check_definition(definition)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("clip", 2.0, "clip"), ("upload_bits", 7, "upload_bits"), ("noise_multiplier", 0.0, "noise_multiplier"),
        ("noise_multiplier", 1e-9, "more bits"), ("maximum", 0, "maximum"),
    ],
)  # fmt: skip
def test_a_definition_out_of_its_bounds_is_refused(field: str, value: float, message: str) -> None:
    definition = definition_of(DPFedAvg(rounds=1, upload_bits=8))
    check_definition(definition)
    setattr(definition.fedavg.blocks[0].rotated, field, value)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


def test_a_block_is_either_dense_or_rotated() -> None:
    definition = definition_of(DPFedAvg(rounds=1, upload_bits=8))
    definition.fedavg.blocks[0].dense.CopyFrom(definition_of(DPFedAvg(rounds=1)).fedavg.blocks[0].dense)
    with pytest.raises(ConfigurationError, match="either dense or rotated"):
        check_definition(definition)
    definition.fedavg.blocks[0].ClearField("dense")
    check_definition(definition)
    definition.fedavg.blocks[0].ClearField("rotated")
    with pytest.raises(ConfigurationError, match="either dense or rotated"):
        check_definition(definition)


@pytest.mark.parametrize("upload_bits", [7, 17, 8.0, True])
def test_other_numbers_of_bits_are_refused(upload_bits: object) -> None:
    with pytest.raises(ConfigurationError, match="upload_bits"):
        DPFedAvg(rounds=1, upload_bits=upload_bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("upload_bits", [None, 8])
def test_a_task_of_many_rounds_holds_no_vector_for_each(upload_bits: int | None) -> None:
    algorithm = algorithm_for(definition_of(DPFedAvg(rounds=200, upload_bits=upload_bits), model=LONG))
    tracemalloc.start()
    try:
        queries = [algorithm.query(round) for round in range(200)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queries[199].releases[0].coordinates == LONG.size
    assert held < 8 * LONG.size


@pytest.mark.parametrize(
    ("bits", "mode", "most", "why"),
    [
        (8, "enclave", 2**25, "releases of at most 268,435,456 bytes"),
        (16, "enclave", 2**24, "contributions of at most 33,554,432 bytes, got .*; take a lower upload_bits"),
        (None, "enclave", 2**23, "contributions of at most 33,554,432 bytes, got .*; take a lower upload_bits"),
        (None, "masked", 2**23, "contributions of at most 33,554,432 bytes, got .*; take a smaller model"),
        (None, "secagg+", 31 * 2**17, r"aggregation='secagg\+' takes its sum in one message"),
    ],
)
def test_devices_take_a_model_up_to_what_can_travel_and_refuse_more_by_name(
    bits: int | None, mode: str, most: int, why: str
) -> None:
    def check(rows: int) -> None:
        cohort = Cohort(minimum=20, goal=24, aggregation=mode)
        model = Glm("multinomial", rows - 1, 2**10)
        training = DPFedAvg(rounds=1, upload_bits=bits, most_examples=4)
        check_definition(definition_of(training, model=model, cohort=cohort))

    check(most // 2**10)
    with pytest.raises(ConfigurationError, match=f"{why}.*odp.simulate"):
        check(most // 2**10 + 1)

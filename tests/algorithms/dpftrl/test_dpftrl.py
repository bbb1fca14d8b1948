"""DP-FTRL: one charge, the same integers everywhere, bounded by what one user may do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpftrl import query
from odp.algorithms.dpftrl.config import DPFTRL
from odp.algorithms.dpftrl.query import StreamedQuery
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of, round_charges
from odp.algorithms.seam import Algorithm, NoisyTensors, StreamQuery
from odp.crypto.secure_aggregation.masked import wrapped
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.privacy.accounting import epsilon
from odp.privacy.events import StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.protocol.terms import Cohort, UserLevelDP
from odp.tasks.task import Task
from odp.v1 import common_pb2

FEATURES, ROUNDS = 4, 8
MECHANISMS = ("banded", "tree", "blt")


def task(cohort: dict[str, Any] | None = None, **training: Any) -> Task:
    return Task(
        name="stream",
        model=Glm("linear", FEATURES),
        data=Examples({"x": Tensor((FEATURES,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0),
        privacy=UserLevelDP(epsilon=4, delta=1e-5),
        training=DPFTRL(**{"rounds": ROUNDS, "min_separation": 3, **training}),
        cohort=Cohort(**{"minimum": 5, "goal": 20, **(cohort or {})}),
    )


def algorithm(**changes: Any) -> Algorithm:
    return algorithm_for(task(**changes).definition())


def query_of(algorithm: Algorithm, round: int) -> StreamedQuery:
    query = algorithm.query(round)
    assert isinstance(query, StreamedQuery)
    assert isinstance(query, StreamQuery)
    return query


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("aggregation", ["enclave", "masked"])
def test_the_stream_spends_its_budget_once(mechanism: str, aggregation: str) -> None:
    if (mechanism, aggregation) == ("blt", "masked"):
        with pytest.raises(ConfigurationError, match="need an exact encoder"):
            algorithm(mechanism=mechanism, cohort={"aggregation": aggregation})
        return
    found = algorithm(mechanism=mechanism, cohort={"aggregation": aggregation})
    charged = [event for round in range(ROUNDS) for event in round_charges(found.query(round), None)]
    assert len(charged) == 1
    assert isinstance(charged[0], StreamRelease)
    assert 3.99 < epsilon(charged, delta=1e-5) <= 4.0
    for place in range(1, ROUNDS):
        (covered,) = charges_of(found.query(place))
        assert covered == CoveredRelease(charged[0], place)
    assert [one.releases[0].place for one in map(found.query, range(ROUNDS))] == list(range(ROUNDS))


@settings(max_examples=30)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    separation=st.integers(1, 4),
    first=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_user_of_k_rounds_b_apart_moves_all_releases_by_no_more_than_the_charge(
    mechanism: str, separation: int, first: int, seed: int
) -> None:
    """Record and replay with hostile vectors: the encoded integers differ by at most the sensitivity, in L2."""
    found = algorithm(mechanism=mechanism, min_separation=separation)
    query, random = query_of(found, 0), np.random.default_rng(seed)
    units = query.grid.units
    others = random.integers(-units, units, (ROUNDS, query.grid.size)) * 3
    own = np.zeros_like(others)
    direction = random.normal(size=query.grid.size) if seed % 2 else np.eye(query.grid.size)[0]
    vector = np.trunc(direction / np.linalg.norm(direction) * units).astype(np.int64)
    query.check(vector.astype("<i4").tobytes())
    own[first % ROUNDS :: separation] = vector
    with_user, without = query.encoder(), query.encoder()
    moved = sum(
        float(np.square((with_user.step(row + mine) - without.step(row)).astype(np.float64)).sum())
        for row, mine in zip(others, own, strict=True)
    )
    release = query.releases[0]
    assert math.sqrt(moved) * release.step <= release.sensitivity


@settings(max_examples=20)
@given(mechanism=st.sampled_from(["banded", "tree"]), seed=st.integers(0, 2**32 - 1))
def test_sums_modulo_2_32_give_the_release_modulo_2_32_whatever_devices_add(mechanism: str, seed: int) -> None:
    """With masks, a hostile device can shift a sum to the edge of the ring: nothing jumps there."""
    found = algorithm(mechanism=mechanism, cohort={"aggregation": "masked"})
    query, random = query_of(found, 0), np.random.default_rng(seed)
    hostile = random.integers(-(2**31), 2**31, (ROUNDS, query.grid.size))
    hostile[:, 0] = 2**31 - 1
    honest = random.integers(-100, 100, hostile.shape)
    ring = query.encoder(wrapped=True)
    matrix = found.stream().stream.matrix  # type: ignore[attr-defined]
    coefficients = (matrix.matrix() * 2.0**matrix.bits).astype(np.int64).astype(object)
    truth = coefficients @ (hostile.astype(object) + honest)
    for round in range(ROUNDS):
        released = wrapped(ring.step(wrapped(hostile[round] + honest[round])))
        np.testing.assert_array_equal((released - truth[round]) % 2**32, 0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_noise_the_server_steps_by_the_sums_of_the_rounds(mechanism: str) -> None:
    found = algorithm(mechanism=mechanism, server_rate=0.5, clip=2.0)
    query, server, random = query_of(found, 0), found.server(), np.random.default_rng(1)
    sums = random.integers(-query.grid.units, query.grid.units, (ROUNDS, query.grid.size))
    state, encoder = server.start(), query.encoder()
    for round, total in enumerate(sums):
        tensors = {RELEASE: encoder.step(total).astype(np.float64) * query.releases[0].step}
        state = server.step(state, NoisyTensors(round, tensors, 5))
        expected = sums[: round + 1].sum(axis=0) * query.grid.step * 0.5 * 2.0 / 20
        np.testing.assert_allclose(server.broadcast(state).dense[PARAMETERS][:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_quantile": 0.5}, "no clip_quantile"),
        ({"noise_schedule": [(4, 1.0), (4, 2.0)]}, "no noise_schedule"),
        ({"upload_bits": 8}, "no upload_bits"),
        ({"mechanism": "tree", "bands": 3}, "no bands=3"),
        ({"mechanism": "trees"}, "mechanism"),
        ({"min_separation": 9}, "min_separation"),
        ({"max_participations": 0}, "max_participations"),
        ({"cohort": {"aggregation": "secagg+", "minimum": 20}}, "whose noise the enclave draws"),
        (
            {"cohort": {"sampling": "enclave_poisson", "sampling_probability": 0.5, "most_contributions": 50}},
            "no sampling",
        ),
    ],
)
def test_what_a_stream_cannot_have_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        task(**changes)


def _rising(definition: common_pb2.TaskDefinition) -> None:
    definition.dpftrl.stream.banded.coefficients[1] = definition.dpftrl.stream.banded.coefficients[0] + 1


def _without_matrix(definition: common_pb2.TaskDefinition) -> None:
    definition.dpftrl.stream.ClearField("banded")


def _without_stream(definition: common_pb2.TaskDefinition) -> None:
    definition.dpftrl.ClearField("stream")


def _too_many_bands(definition: common_pb2.TaskDefinition) -> None:
    definition.dpftrl.stream.banded.coefficients.extend([0] * ROUNDS)


def _two_blocks(definition: common_pb2.TaskDefinition) -> None:
    definition.dpftrl.blocks.append(definition.dpftrl.blocks[0])


def _of_another_training(definition: common_pb2.TaskDefinition) -> None:
    definition.fedavg.CopyFrom(definition.dpftrl)


@pytest.mark.parametrize(
    "edit", [_rising, _without_matrix, _without_stream, _too_many_bands, _two_blocks, _of_another_training]
)
def test_a_changed_definition_is_refused(edit: Any) -> None:
    definition = task().definition()
    edit(definition)
    with pytest.raises(ConfigurationError):
        algorithm_for(definition).check()


def test_a_larger_separation_costs_less_noise() -> None:
    noise = [algorithm(min_separation=apart).query(0).releases[0].noise_std for apart in (1, 2, 4)]
    assert noise == sorted(noise, reverse=True)
    assert noise[0] > 1.5 * noise[-1]


@pytest.mark.parametrize(
    ("training", "vectors"),
    [
        ({"bands": 128, "min_separation": 128, "rounds": 200}, 127),
        ({"mechanism": "tree", "rounds": 1024, "min_separation": 512}, 11),
        ({"mechanism": "blt", "buffers": 8, "rounds": 16}, 8),
    ],
)
def test_past_sums_beyond_the_memory_of_an_enclave_are_refused_by_every_party(
    monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], vectors: int
) -> None:
    size = FEATURES + 1
    monkeypatch.setattr(query, "MOST_STATE_BYTES", 8 * vectors * size)
    definition = task(**training).definition()
    monkeypatch.setattr(query, "MOST_STATE_BYTES", 8 * vectors * size - 1)
    with pytest.raises(ConfigurationError, match=rf"{8 * vectors * size}: {vectors} vectors of {size} numbers"):
        task(**training)
    query._stream.cache_clear()
    with pytest.raises(ConfigurationError, match="past sums of a stream"):
        algorithm_for(definition).check()

"""What a host learns from lengths, counts and memory accesses: nothing about a device's items (R4, R41, R44, M1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from own_rows import own_rows

from odp.algorithms.dpam import codec as ratings_codec, query as ratings_query
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.dpsgd.config import DPSGD
from odp.algorithms.factorization import codec as shared_codec, query as shared_query
from odp.algorithms.implicit import codec as implicit_codec, query as implicit_query
from odp.algorithms.implicit.config import ImplicitData, ImplicitDPAM
from odp.algorithms.item_gradients import codec as gradient_codec, query as gradient_query
from odp.algorithms.registry import Algorithm, algorithm_for
from odp.models.matrix_factorization import MatrixFactorization
from odp.numerics import sorting_network as network
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.tasks.task import Task
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2
from trusted_aggregator.modes.enclave.enclave_half import contribution_bytes

Make = Callable[..., Any]
ITEMS, PLACES = 60, 8
MODULES = (
    ratings_codec, implicit_codec, gradient_codec, shared_codec,
    ratings_query, implicit_query, gradient_query, shared_query, network,
)  # fmt: skip

KINDS = {
    "ratings": (RatingsData(low=1, high=5), DPAM(steps=1)),
    "implicit": (ImplicitData(), ImplicitDPAM(steps=1, head_items=ITEMS)),
    "ratings by gradients": (RatingsData(low=1, high=5), DPSGD(rounds=2)),
    "implicit by gradients": (ImplicitData(), DPSGD(rounds=2)),
}

#: devices that an observer would like to tell apart
DEVICES = {
    "no items": np.arange(0),
    "one item": np.array([3]),
    "as many as places": np.arange(PLACES),
    "the last items": np.arange(ITEMS - PLACES, ITEMS),
    "more than places": np.arange(0, ITEMS, 2),
    "all items": np.arange(ITEMS),
}


def _algorithm(kind: str) -> Algorithm:
    data, training = KINDS[kind]
    return algorithm_for(
        Task(
            name="films",
            model=MatrixFactorization(items=ITEMS, rank=2),
            data=data,
            privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=PLACES),
            training=training,
            cohort=Cohort(minimum=3, goal=3),
        ).definition()
    )


def _payload(algorithm: Algorithm, kind: str, round: int, items: np.ndarray) -> bytes:
    generator = np.random.default_rng(len(items))
    data = own_rows(items.astype(np.int64), generator.uniform(1, 5, len(items)))
    client = algorithm.client()
    keys = client.keys(data, round=round, seed=5)
    width = {name: columns for name, _, columns, _ in algorithm.tables}
    rows = generator.uniform(0.2, 1.0, (len(keys), width["items"])).astype(np.float32)
    dense = {name: _dense(algorithm, name) for name in width if name != "items"}
    return client.contribute(Slices(round, keys, rows, dense), data, round=round, seed=5)[0]


def _dense(algorithm: Algorithm, table: str) -> np.ndarray:
    rows, columns = next((rows, columns) for name, rows, columns, _ in algorithm.tables if name == table)
    return (np.eye(rows) if rows == columns else np.ones((rows, columns))).astype(np.float32)


def _rounds() -> list[tuple[str, int]]:
    return [(kind, number) for kind in KINDS for number in range(len(_algorithm(kind).planned_releases()))]


@pytest.mark.parametrize(("kind", "round"), _rounds())
def test_r4_the_contributions_of_a_round_have_one_length(kind: str, round: int) -> None:
    algorithm = _algorithm(kind)
    payloads = {name: _payload(algorithm, kind, round, items) for name, items in DEVICES.items()}
    query = algorithm.query(round)
    assert {len(payload) for payload in payloads.values()} == {query.payload_bytes}
    assert len(set(payloads.values())) > 3
    filled = bytes(32)
    sizes = {
        aggregator_pb2.Contribution(
            task_sha256=filled, round=round, model_sha256=filled, contribution_id=filled, pseudonym=filled,
            payload=payload,
        ).ByteSize()
        for payload in payloads.values()
    }  # fmt: skip
    assert sizes == {contribution_bytes(round, query.payload_bytes)}


@pytest.mark.parametrize(("kind", "round"), _rounds())
def test_r41_checking_any_two_accepted_contributions_touches_the_same_places(kind: str, round: int) -> None:
    algorithm = _algorithm(kind)
    query = algorithm.query(round)

    def trace(items: np.ndarray) -> list[Any]:
        payload = _payload(algorithm, kind, round, items)
        with tracing(*MODULES) as notes:
            query.check(payload)
        # Numbers that are compared and not told; what the comparisons say is in the trace, as operations.
        return [note for note in notes if note[0] != "leaves"]  # type: ignore[index]

    traces = [trace(items) for items in DEVICES.values()]
    assert len(traces[0]) > 10
    assert all(one == traces[0] for one in traces)


def test_r41_a_check_that_looks_only_at_used_places_would_be_noticed() -> None:
    def trace(weights: np.ndarray) -> list[object]:
        with tracing() as notes:
            array = traced(weights)
            array[array > 0].max(initial=0)
        return notes

    assert trace(np.array([1, 0, 2])) != trace(np.array([1, 1, 2]))


def test_r41_a_policy_that_gives_access_patterns_away_is_another_policy() -> None:
    strict, direct = (EnclavePolicy(role="aggregator", accumulation=way) for way in ("oblivious", "direct"))
    assert EnclavePolicy(role="aggregator") == strict
    assert strict.sha256 != direct.sha256
    scanning, gathering = (EnclavePolicy(role="distributor", select=way) for way in ("oblivious", "direct"))
    assert EnclavePolicy(role="distributor") == scanning
    assert scanning.sha256 != gathering.sha256


def test_m1_of_an_open_round_only_the_number_of_uploads_can_be_asked() -> None:
    assert [field.name for field in aggregator_pb2.GetRoundResponse.DESCRIPTOR.fields] == ["contributions", "released"]
    # A refusal's signature is over what its sender knows (R177).
    assert [field.name for field in aggregator_pb2.SubmitResponse.DESCRIPTOR.fields] == ["refusal", "signature"]


def test_m1_the_number_is_that_of_uploads_whatever_they_hold(small: Any) -> None:
    empty = np.full(4, 2**32 - 1, dtype="<u4").tobytes()
    for device in range(5):
        assert small.submit(small.sealed(device, payload=empty)) is None
        assert small.core.round_state(small.task_sha256, 0).contributions == device + 1

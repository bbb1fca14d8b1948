"""What devices make of a model that a hostile server made: they refuse it alike, or compute with any data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

import odp
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import Algorithm, algorithm_for
from odp.algorithms.seam import LocalData
from odp.errors import ConfigurationError
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

ITEMS = 24
DPAM, IMPLICIT = "dpam", "implicit"
ANY_FLOAT = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf")]),
)


def definition_of(kind: str) -> common_pb2.TaskDefinition:
    data, training = {
        DPAM: (odp.RatingsData(low=1, high=5), odp.DPAM(steps=1)),
        IMPLICIT: (odp.ImplicitData(), odp.ImplicitDPAM(steps=1)),
    }[kind]
    return odp.Task(
        name="films", model=odp.MatrixFactorization(items=ITEMS, rank=3), data=data, training=training,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
    ).definition()  # fmt: skip


TASKS: dict[str, Algorithm] = {kind: algorithm_for(definition_of(kind)) for kind in (DPAM, IMPLICIT)}
DENSE = {
    DPAM: {"globals": np.array([[0.5, 2.0]], dtype=np.float32)},
    IMPLICIT: {},
}
LAST = {DPAM: 2, IMPLICIT: 1}
WIDTH = {DPAM: 6, IMPLICIT: 4}


@st.composite
def devices(draw: st.DrawFn) -> LocalData:
    items = draw(st.lists(st.integers(-3, ITEMS + 3), unique=True, max_size=30).map(sorted))
    values = draw(st.lists(st.floats(), min_size=len(items), max_size=len(items)))
    return own_rows(np.array(items, dtype=np.int64), np.array(values, dtype=np.float64))


@st.composite
def rows(draw: st.DrawFn, kind: str) -> np.ndarray:
    given_rows = draw(st.lists(st.lists(ANY_FLOAT, min_size=WIDTH[kind], max_size=WIDTH[kind]), min_size=1, max_size=3))
    return np.resize(np.array(given_rows, dtype=np.float32), (ITEMS, WIDTH[kind]))


@pytest.mark.parametrize("kind", [DPAM, IMPLICIT])
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_rows_and_data_are_the_enclave_accepts_what_a_device_computes(kind: str, data: st.DataObject) -> None:
    algorithm, round = TASKS[kind], LAST[kind]
    own, made, seed = data.draw(devices()), data.draw(rows(kind)), data.draw(st.integers(0, 2**64 - 1))
    client = algorithm.client()
    keys = client.keys(own, round=round, seed=seed)
    slices = Slices(round, keys, made[keys], DENSE[kind])
    payload, local = client.contribute(slices, own, round=round, seed=seed)
    algorithm.query(round).check(payload)
    assert np.isfinite(np.frombuffer(local, "<f8")).all()
    assert np.isfinite(client.predict(slices, own, keys)).all()


@pytest.mark.parametrize("kind", [DPAM, IMPLICIT])
def test_the_worst_rows_that_bounds_allow_give_a_finite_row_and_an_accepted_contribution(kind: str) -> None:
    """4,096 items of rank 64 with one and the same row at the bounds, and of ratings the least ridge: near singular."""
    definition = definition_of(kind)
    definition.model.items = definition.dpam.slices_per_device = definition.privacy.max_items_per_user = 4096
    definition.model.rank = 64
    if kind == DPAM:
        definition.dpam.user_ridge, definition.dpam.user_bias_ridge = 1e-3, 1e-3
    client = algorithm_for(definition).client()
    made = np.full((4096, (3 if kind == DPAM else 1) + 64), 1e30, dtype=np.float32)
    dense = {
        DPAM: {"globals": np.array([[1e-3 * (4 / 4.5) ** 2, 1e-3]], dtype=np.float32)},
        IMPLICIT: {},
    }[kind]
    own = own_rows(np.arange(4096), np.full(4096, 5.0))
    payload, local = client.contribute(Slices(LAST[kind], own[ROWS].items, made, dense), own, round=LAST[kind], seed=1)
    algorithm_for(definition).query(LAST[kind]).check(payload)
    assert np.isfinite(np.frombuffer(local, "<f8")).all()


@pytest.mark.parametrize(
    "ridges", [(0.0, 2.0), (0.5, 0.0), (1e-6, 2.0), (-1.0, 2.0), (np.nan, 2.0), (np.inf, 2.0), (0.5, 1e38)]
)
def test_ridges_that_could_make_a_solve_fail_are_refused(ridges: tuple[float, float]) -> None:
    client = TASKS[DPAM].client()
    client.check_model(DENSE[DPAM])
    with pytest.raises(ConfigurationError, match=r"the model cannot be trained on: Expected .*_ridge="):
        client.check_model({"globals": np.array([ridges], dtype=np.float32)})


TINY: list[tuple[str, dict[str, Any]]] = [
    (DPAM, {"user_ridge": 1e-9}), (DPAM, {"user_bias_ridge": 1e-12}), (DPAM, {"row_clip": 1e300}),
    (DPAM, {"bias_target_clip": 1e-300}), (DPAM, {"count_noise_std": 1e-320}), (DPAM, {"centre": 1e300}),
    (IMPLICIT, {"user_ridge": 1.0}), (IMPLICIT, {"target_noise": 1e-320}), (IMPLICIT, {"row_clip": 1e200}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), TINY)
def test_a_definition_whose_numbers_could_make_a_solve_fail_is_refused(kind: str, changes: dict[str, Any]) -> None:
    definition = definition_of(kind)
    for name, value in changes.items():
        setattr(definition.dpam, name, value)
    with pytest.raises(ConfigurationError, match="Expected"):
        algorithm_for(definition).check()


@pytest.mark.parametrize(("low", "high"), [(-1e300, 1e300), (0.0, 1e-300), (5.0, 1.0), (0.0, float("inf"))])
def test_a_range_of_values_that_no_solve_can_work_with_is_refused(low: float, high: float) -> None:
    definition = definition_of(DPAM)
    definition.data.low, definition.data.high = low, high
    with pytest.raises(ConfigurationError):
        algorithm_for(definition).check()


def statistics() -> Algorithm:
    return algorithm_for(
        odp.Statistics(
            name="films",
            queries={"films": odp.Histogram(bins=4), "stars": odp.Mean(low=1, high=5)},
            privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        ).definition()
    )


@pytest.mark.parametrize(("algorithm", "rounds"), [(TASKS[DPAM], 3), (TASKS[IMPLICIT], 2), (statistics(), 1)])
def test_the_empty_contribution_is_accepted_and_zero_in_every_sum(algorithm: Algorithm, rounds: int) -> None:
    for round in range(rounds):
        query, total = algorithm.query(round), algorithm.query(round).new_sum()
        payload = algorithm.client().empty(round)
        assert len(payload) == query.payload_bytes
        assert query.refusals([payload]) == [None]
        total.add([payload, payload])
        assert total.count == 2
        assert all(not summed.any() for summed in total.totals().values())

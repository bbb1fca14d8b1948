"""Why an item: what own values add to a prediction, beside the prediction itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

import odp
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.implicit.client import ImplicitClient
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.seam import LocalRows
from odp.models.reasons import Reasons
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS = 60
EVERY = np.arange(ITEMS)
GLOBALS = {"globals": np.array([[0.5, 2.0]], dtype=np.float32)}


def model(rank: int, version: int) -> Slices:
    rows = np.random.default_rng(3).normal(size=(ITEMS, 3 + rank)).astype(np.float32)
    rows[:, 2] = np.linspace(0.0, 1.0, ITEMS)
    return Slices(version, EVERY, rows, GLOBALS)


@pytest.mark.parametrize("kernel", [0.0, 0.4])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("begins", [False, True])
def test_a_prediction_is_its_items_part_and_what_own_values_add(
    define: Define, kernel: float, version: int, begins: bool
) -> None:
    client: Any = DpamClient(define(items=ITEMS, rank=4, places=8, kernel_variance=kernel))
    if begins:
        client = client.beginning(np.array([0.3, 0.5, -1.0, 0.2, 0.1]))
    slices = model(4, version)

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def holds(drawn: st.DataObject) -> None:
        own_items = drawn.draw(st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=20, unique=True))
        values = drawn.draw(st.lists(st.floats(1, 5), min_size=len(own_items), max_size=len(own_items)))
        data, nothing = (
            own_rows(np.array(own_items), np.array(values)),
            own_rows(np.zeros(0, dtype=np.int64), np.zeros(0)),
        )
        reasons = client.reasons(slices, data, EVERY)
        assert sorted(reasons.items.tolist()) == sorted(own_items)
        explained = client.predict(slices, nothing, EVERY) + reasons.added.sum(axis=1)
        np.testing.assert_allclose(explained, client.predict(slices, data, EVERY), rtol=1e-7, atol=1e-7)

    holds()


def test_a_value_as_expected_adds_nothing_and_one_that_moves_changes_the_prediction_by_what_it_adds(
    define: Define,
) -> None:
    client, slices = DpamClient(define(items=ITEMS, rank=3, places=8)), model(3, 2)
    rng = np.random.default_rng(4)
    own_items, values = np.array([5, 9, 31, 44]), rng.uniform(1, 5, 4)
    data = own_rows(own_items, values)
    added = client.reasons(slices, data, EVERY).added
    nothing = own_rows(np.zeros(0, dtype=np.int64), np.zeros(0))
    expected = client.predict(slices, nothing, own_items)
    for place in range(4):
        changed = values.copy()
        changed[place] = np.clip(expected[place], 1, 5)
        share = (values[place] - changed[place]) / (values[place] - expected[place])
        other = client.predict(slices, own_rows(own_items, changed), EVERY)
        np.testing.assert_allclose(
            client.predict(slices, data, EVERY) - other, share * added[:, place], rtol=1e-6, atol=1e-7
        )


def test_scores_of_implicit_feedback_are_what_own_items_add() -> None:
    task = odp.Task(
        name="seen", model=odp.MatrixFactorization(items=ITEMS, rank=4), data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20), training=odp.ImplicitDPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    )  # fmt: skip
    client, width = ImplicitClient(task.definition()), Terms.of(task.definition()).width
    rows = np.abs(np.random.default_rng(5).normal(size=(ITEMS, width))).astype(np.float32)
    slices = Slices(2, EVERY, rows, {})
    data = {ROWS: LocalRows(np.array([3, 8, 41]), np.ones(3))}
    reasons = client.reasons(slices, data, EVERY)
    assert reasons.items.tolist() == [3, 8, 41]
    np.testing.assert_allclose(reasons.added.sum(axis=1), client.predict(slices, data, EVERY))
    nothing = {ROWS: LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0))}
    assert client.reasons(slices, nothing, EVERY).added.shape == (ITEMS, 0)


def test_the_largest_come_first_whichever_way_they_move_and_those_that_add_nothing_are_left_out() -> None:
    reasons = Reasons(np.array([7, 2, 9, 4]), np.array([[0.1, -0.5, 0.0, 0.3], [0.0, 0.0, 0.0, 0.0]]))
    assert reasons.most(3) == [[(2, -0.5), (4, 0.3), (7, 0.1)], []]
    assert reasons.most(1) == [[(2, -0.5)], []]

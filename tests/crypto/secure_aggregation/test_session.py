"""Whole sessions: the exact sum of who stayed, whoever leaves and whenever; or no sum at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.secure_aggregation.client import State
from odp.crypto.secure_aggregation.server import TooFew


@settings(deadline=None, max_examples=25)
@given(
    clients=st.integers(4, 14),
    seed=st.integers(0, 2**32 - 1),
    lying=st.booleans(),
    bits=st.sampled_from([32, 64]),
    length=st.integers(1, 40),
)
def test_the_sum_is_exact(make_round: Any, clients: int, seed: int, lying: bool, bits: int, length: int) -> None:
    run = make_round(
        clients, seed=seed, lying_server=lying, bits=bits, length=length, corrupt=0.0, dropout=0.2, bound=2**20
    )
    assert np.array_equal(run.sum(), run.vectors.sum(axis=0))
    assert all(client.state is State.DONE for client in run.clients)


@pytest.mark.parametrize("step", ["share", "masked", "agree", "unmask"])
@pytest.mark.parametrize("percent", [0, 10, 30])
@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.slow
def test_clients_that_drop_out_at_a_step_leave_the_sum_of_those_whose_vector_came(
    make_round: Any, step: str, percent: int, lying: bool
) -> None:
    clients = 20
    gone = set(np.random.default_rng(7).permutation(clients)[: clients * percent // 100].tolist())
    run = make_round(clients, gone={step: gone}, lying_server=lying, corrupt=0.05, dropout=0.3)
    total = run.sum()
    counted = [number for number in range(clients) if step in ("agree", "unmask") or number not in gone]
    assert np.array_equal(total, run.vectors[counted].sum(axis=0))
    assert run.server.survivors == len(counted)


def test_clients_that_drop_out_at_every_step_at_once(make_round: Any) -> None:
    gone = {"advertise": {0, 1}, "share": {3, 4}, "masked": {5, 6, 7}, "agree": {8}, "unmask": {9, 10}}
    run = make_round(32, gone=gone, corrupt=0.05, dropout=0.3)
    total = run.sum()
    assert np.array_equal(total, np.delete(run.vectors, [3, 4, 5, 6, 7], axis=0).sum(axis=0))


def test_a_sparse_graph_is_used_where_it_is_enough(make_round: Any) -> None:
    run = make_round(40, corrupt=0.0, dropout=0.05, gone={"masked": {3}, "agree": {11}})
    total = run.sum()
    assert run.server.session.parameters.neighbours < 10
    assert np.array_equal(total, np.delete(run.vectors, [3], axis=0).sum(axis=0))


def test_a_reveal_that_is_missing_ends_the_attempt(make_round: Any) -> None:
    run = make_round(6, gone={"reveal": {2}}).until("reveal")
    with pytest.raises(TooFew, match="1 clients did not reveal; start the next attempt"):
        run.reveal()


@pytest.mark.parametrize("step", ["advertise", "share", "masked", "agree"])
def test_fewer_clients_than_the_minimum_give_no_sum(make_round: Any, step: str) -> None:
    run = make_round(6, minimum=5, gone={step: {1, 2}}, corrupt=0.0, dropout=0.3).until(step)
    with pytest.raises(TooFew, match="nothing was learned"):
        getattr(run, step)()


def test_fewer_shares_than_the_threshold_give_no_sum(make_round: Any) -> None:
    run = make_round(10, corrupt=0.1, dropout=0.2, gone={"unmask": {0, 1, 2, 3, 4, 5, 6}})
    with pytest.raises(TooFew, match="fewer than the threshold"):
        run.sum()


def test_a_masked_vector_looks_uniform_and_shows_no_trace_of_zeros(make_round: Any) -> None:
    """Chi-square over 256 byte values of 40,000 masked zeros, 255 degrees; false alarm about 1e-6 (limit 375)."""
    run = make_round(5, length=40_000, corrupt=0.0, dropout=0.2).until("masked")
    masked = run.clients[0].mask(run.inboxes[0], np.zeros(40_000, dtype=np.int64)).vector
    counts = np.bincount(np.frombuffer(masked, dtype=np.uint8), minlength=256)
    expected = len(masked) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 375

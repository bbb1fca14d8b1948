"""One device: what it asks for, sends, keeps and predicts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from own_rows import own_rows

from odp.algorithms.dpam import codec
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization.slices import ROWS, hash_order
from odp.crypto.keyed_hash import round_hashes
from odp.errors import DataError
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

GLOBALS = {"globals": np.array([[0.5, 2.0]], dtype=np.float32)}


def whole_model(items: int, rank: int, version: int) -> Slices:
    rows = np.random.default_rng(3).normal(size=(items, 3 + rank)).astype(np.float32)
    rows[:, 2] = 1.0
    return Slices(version, np.arange(items), rows, GLOBALS)


@pytest.mark.parametrize("round", [0, 1, 2])
def test_keys_are_capped_ascending_and_hold_every_contributed_item(define: Define, round: int) -> None:
    definition = define(items=200, places=8, slices_per_device=20)
    client, data = DpamClient(definition), own_rows(np.arange(0, 200, 2), np.full(100, 4.0))
    keys = client.keys(data, round=round, seed=11)
    assert len(keys) == 20
    assert (np.diff(keys) > 0).all()
    assert np.isin(keys, client.items(data)).all()
    payload, _ = client.contribute(whole_model(200, 2, round), data, round=round, seed=11)
    sent = codec.decode(Terms.of(definition), round, [payload])
    assert np.isin(sent.items[sent.weights > 0], keys).all()


def test_a_device_with_few_items_asks_for_exactly_those(define: Define) -> None:
    client = DpamClient(define(items=200, places=8, slices_per_device=20))
    data = own_rows(np.array([3, 9, 150]), np.array([1.0, 2.0, 5.0]))
    assert client.keys(data, round=1, seed=5).tolist() == [3, 9, 150]


def test_the_chosen_items_change_with_the_round_and_are_uniform() -> None:
    """Each of 20 items is among the first 5 of 4,000 devices 1,000 times, std 27: 6 std fail once in 2.5e7 runs."""
    items = np.arange(20)
    chosen = np.concatenate([hash_order(seed, 2, items)[:5] for seed in range(4000)])
    assert np.abs(np.bincount(chosen, minlength=20) - 1000).max() < 6 * 27.4
    assert hash_order(1, 1, items).tolist() != hash_order(1, 2, items).tolist()


def test_the_hash_of_a_device_never_collides() -> None:
    assert len(np.unique(round_hashes(np.array([7], dtype=np.uint64), 3, np.arange(100_000)))) == 100_000


def test_local_parameters_minimise_the_ridge_loss(define: Define) -> None:
    definition = define(items=50, rank=3, places=8)
    client, slices = DpamClient(definition), whole_model(50, 3, 2)
    generator = np.random.default_rng(1)
    data = own_rows(np.arange(0, 50, 3), generator.uniform(1, 5, 17))
    _, local = client.contribute(slices, data, round=2, seed=1)
    parameters = np.frombuffer(local, dtype="<f8")
    assert parameters.shape == (4,)

    rows = slices.rows[data[ROWS].items].astype(np.float64)
    features = np.concatenate((np.ones((17, 1)), rows[:, 3:]), axis=1)

    def loss(point: np.ndarray) -> float:
        residual = data[ROWS].values - 3.5 - rows[:, 1] - features @ point
        return float((residual**2).sum() + 2.0 * point[0] ** 2 + 0.5 * (point[1:] ** 2).sum())

    for direction in np.concatenate((np.eye(4), -np.eye(4))):
        assert loss(parameters) < loss(parameters + 1e-3 * direction)


def test_items_without_a_slice_take_no_part(define: Define) -> None:
    definition = define(items=50, rank=2, places=8)
    client, slices = DpamClient(definition), whole_model(50, 2, 2)
    data = own_rows(np.array([1, 4, 30]), np.array([2.0, 5.0, 1.0]))
    some = Slices(2, slices.keys[:10], slices.rows[:10], slices.dense)
    fewer = own_rows(data[ROWS].items[:2], data[ROWS].values[:2])
    assert client.contribute(some, data, round=2, seed=9) == client.contribute(slices, fewer, round=2, seed=9)


def test_a_device_without_data_sends_padding_of_the_declared_length(define: Define) -> None:
    definition = define(items=50, rank=2, places=8)
    client, empty = DpamClient(definition), own_rows(np.zeros(0, dtype=np.int64), np.zeros(0))
    assert len(client.keys(empty, round=2, seed=1)) == 0
    nothing = Slices(2, np.zeros(0, dtype=np.int64), np.zeros((0, 5), dtype=np.float32), GLOBALS)
    payload, _ = client.contribute(nothing, empty, round=2, seed=1)
    sent = codec.decode(Terms.of(definition), 2, [payload])
    assert len(payload) == codec.layout(Terms.of(definition), 2).itemsize
    assert not sent.weights.any()
    assert not sent.rows.any()


def test_predicting_an_item_without_a_slice_is_an_error(define: Define) -> None:
    client, slices = DpamClient(define(items=50)), whole_model(50, 2, 2)
    data = own_rows(np.array([1]), np.array([3.0]))
    some = Slices(2, slices.keys[:10], slices.rows[:10], slices.dense)
    with pytest.raises(DataError, match="1 of 2 have none"):
        client.predict(some, data, np.array([3, 30]))


def test_what_a_task_cannot_use_is_left_out_or_clamped(define: Define) -> None:
    client, slices = DpamClient(define(items=50)), whole_model(50, 2, 2)
    usable = own_rows(np.array([1, 2, 3]), np.array([3.0, 1.0, 5.0]))
    given = own_rows(np.array([-1, 1, 2, 3, 4, 5, 50]), np.array([3.0, 3.0, -7.0, 99.0, np.nan, -np.inf, 3.0]))
    assert client.keys(given, round=2, seed=1).tolist() == [1, 2, 3]
    assert client.contribute(slices, given, round=2, seed=1) == client.contribute(slices, usable, round=2, seed=1)


def test_the_device_side_imports_no_server_code_and_no_heavy_library() -> None:
    program = (
        "import sys, odp.algorithms.dpam.client\n"
        "bad = {'scipy', 'numba', 'dp_accounting', 'mpmath', 'odp.algorithms.dpam.server',"
        " 'odp.algorithms.dpam.population', 'odp.algorithms.dpam.query', 'odp.privacy.accounting'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

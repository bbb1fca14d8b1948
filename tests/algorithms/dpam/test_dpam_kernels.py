"""Machine code computes what numpy computes, and neither blocks nor threads change a single bit of a sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpam import estimation, features
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.factorization.slices import hash_order
from odp.datasets.ratings import Ratings
from odp.numerics import parallel
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.v1 import common_pb2

numba = pytest.importorskip("numba")
kernels = pytest.importorskip("odp.algorithms.dpam.kernels", reason="needs numba")
item_kernels = pytest.importorskip("odp.algorithms.dpam.item_kernels")
tiles = pytest.importorskip("odp.numerics.tiles")

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS = 60, 50


def some_ratings(seed: int) -> Ratings:
    """Users with none to all items, the busiest above every bound of the tasks here."""
    generator = np.random.default_rng(seed)
    mask = generator.random((USERS, ITEMS)) < generator.choice([0.0, 0.05, 0.3, 1.0], USERS)[:, None]
    users, items = np.nonzero(mask)
    values = generator.uniform(1, 5, len(users))
    return Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=USERS, n_items=ITEMS)


def some_broadcast(version: int, rank: int, seed: int) -> ModelVersion:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(ITEMS, 3 + rank))
    rows[:, 0] = generator.uniform(-3, 90, ITEMS)
    rows[:, 2] = generator.uniform(0.2, 1, ITEMS)
    globals_ = np.array([[0.7, 2.0]], dtype=np.float32)
    return ModelVersion(
        version, (TableValues("items", rows.astype(np.float32), True), TableValues("globals", globals_, False))
    )


def positive_matrices(seed: int, count: int, width: int) -> np.ndarray:
    factors = np.random.default_rng(seed).normal(size=(count, width, width + 3))
    return np.asarray(factors @ factors.transpose(0, 2, 1))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 3),
    rank=st.sampled_from([1, 2, 7, 8, 17]),
    weighting=st.sampled_from(["adaptive", "uniform"]),
)
def test_machine_code_and_numpy_make_the_same_sums(
    define: Define, seed: int, round: int, rank: int, weighting: str
) -> None:
    """Equal integers: only a tie to some 13 digits could round differently; one in 10^9 runs of this test has one."""
    definition = define(items=ITEMS, rank=rank, places=9, slices_per_device=20, weighting=weighting)
    ratings, broadcast = some_ratings(seed), some_broadcast(round, rank, seed + 1)
    seeds = np.random.default_rng(seed + 2).integers(0, 2**64, USERS, dtype=np.uint64)
    compiled = DpamPopulation(definition).contribute(broadcast, ratings, round=round, seeds=seeds)
    plain = DpamPopulation(definition, compiled=False).contribute(broadcast, ratings, round=round, seeds=seeds)
    assert set(compiled) == set(plain)
    for name, total in compiled.items():
        np.testing.assert_array_equal(total, plain[name])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("round", [0, 1, 2])
def test_sums_depend_on_neither_blocks_nor_threads(define: Define, compiled: bool, round: int) -> None:
    definition = define(items=ITEMS, rank=5, places=9, slices_per_device=20)
    ratings, broadcast = some_ratings(1), some_broadcast(round, 5, 2)
    seeds = np.random.default_rng(3).integers(0, 2**64, USERS, dtype=np.uint64)
    told: list[int] = []
    wanted = DpamPopulation(definition, compiled=compiled, threads=1).contribute(
        broadcast, ratings, round=round, seeds=seeds, progress=told.append
    )
    assert told[-1] == USERS
    for threads, block in ((2, 2**22), (1, 70), (3, 1)):
        population = DpamPopulation(definition, compiled=compiled, threads=threads, block=block)
        found = population.contribute(broadcast, ratings, round=round, seeds=seeds)
        for name, total in wanted.items():
            np.testing.assert_array_equal(found[name], total)


@pytest.mark.parametrize("version", [1, 3])
def test_machine_code_and_numpy_predict_the_same(define: Define, version: int) -> None:
    definition = define(items=ITEMS, rank=3, places=6)
    history, targets, broadcast = some_ratings(1), some_ratings(2), some_broadcast(version, 3, 3)
    wanted = DpamPopulation(definition, compiled=False).predict(broadcast, history, targets)
    for block in (2**22, 50):
        found = DpamPopulation(definition, block=block).predict(broadcast, history, targets)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("fetched", "sent"), [(20, 9), (9, 9), (60, 30)])
def test_a_user_s_entries_are_chosen_in_the_order_of_its_hashes(fetched: int, sent: int) -> None:
    ratings, seeds = some_ratings(4), np.arange(USERS, dtype=np.uint64) * np.uint64(2**40 + 1)
    use = np.empty(ratings.n_ratings, dtype=np.uint8)
    kernels.choose(ratings.offsets, ratings.items, seeds, 3, fetched, sent, use)
    for user in range(USERS):
        items, _ = ratings.user(user)
        order = hash_order(int(seeds[user]), 3, items.astype(np.int64))
        wanted = np.zeros(len(items), dtype=np.uint8)
        wanted[order[:fetched]] = kernels.SOLVED
        wanted[order[:sent]] = kernels.CONTRIBUTED
        np.testing.assert_array_equal(use[ratings.offsets[user] : ratings.offsets[user + 1]], wanted)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 40), steps=st.integers(0, tiles.CHUNK))
def test_weighted_outer_products_are_summed_in_the_upper_triangle(seed: int, width: int, steps: int) -> None:
    generator = np.random.default_rng(seed)
    points = tiles.columns_of(width)
    points[:width, :steps] = vectors = generator.normal(size=(width, steps))
    weights, start = generator.normal(size=steps), generator.normal(size=(tiles.even(width), tiles.even(width)))
    total = start.copy()
    tiles.add_outer(points, weights, total, steps)
    wanted = start[:width, :width] + (vectors * weights) @ vectors.T
    np.testing.assert_allclose(np.triu(total[:width, :width]), np.triu(wanted), atol=1e-11)


@pytest.mark.parametrize("rank", [1, 19, 33])
@pytest.mark.parametrize("largest", [False, True])
def test_sums_of_items_are_those_of_whole_numbers(rank: int, largest: bool) -> None:
    """``largest``: every number at its bound, and of one sign, so that nothing cancels."""
    generator, entries = np.random.default_rng(rank), 600
    rows = generator.integers(-(2**11), 2**11, (entries, rank), endpoint=True).astype(np.int16)
    weights = generator.integers(0, 2**10, entries, endpoint=True).astype(np.int16)
    targets = generator.integers(-(2**9), 2**9, entries, endpoint=True).astype(np.int16)
    if largest:
        rows[:], weights[:], targets[:] = -(2**11), 2**10, -(2**9)
    starts, users = np.array([0, 1, 131, entries]), generator.permutation(entries).astype(np.int32)
    width, constant = rank + 1, 7
    squares, products = np.ones((3, width * (width + 1) // 2), np.int64), np.ones((3, width), np.int64)
    kernels.add_items(0, 3, starts, users, weights, targets, rows, constant, squares, products)
    whole = np.concatenate((np.full((entries, 1), constant), rows[users]), axis=1).astype(np.int64)
    weighted = whole * weights[:, None]
    for item in range(3):
        here = slice(starts[item], starts[item + 1])
        np.testing.assert_array_equal(squares[item] - 1, (whole[here].T @ weighted[here])[np.triu_indices(width)])
        np.testing.assert_array_equal(products[item] - 1, targets[here].astype(np.int64) @ weighted[here])


def test_the_sums_of_an_item_that_everybody_rated_are_exact() -> None:
    """2^20 users at every bound: 2^52, and one more unit would still count."""
    users = 2**20
    rows = np.full((users, 1), -(2**11), np.int16)
    weights, targets = np.full(users, 2**10, np.int16), np.full(users, -(2**9), np.int16)
    weights[0] -= 1
    squares, products = np.zeros((1, 3), np.int64), np.zeros((1, 2), np.int64)
    order = np.arange(users, dtype=np.int32)
    kernels.add_items(0, 1, np.array([0, users]), order, weights, targets, rows, 7, squares, products)
    mass = users * 2**10 - 1
    assert squares[0].tolist() == [49 * mass, -7 * 2**11 * mass, 2**22 * mass]
    assert products[0].tolist() == [-(2**9) * 7 * mass, 2**20 * mass]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 70))
def test_elimination_gives_the_triangular_factor_and_the_right_hand_side(seed: int, size: int) -> None:
    matrix = positive_matrices(seed, 1, size)[0]
    system = np.zeros((size + 1, size + 1))
    system[:size, :size], system[:size, size] = np.triu(matrix), 1.0
    solution = np.empty(size)
    tiles.solve(system, size, solution)
    factor = np.triu(system[:size, :size])
    np.testing.assert_allclose(matrix @ solution, 1.0, atol=1e-6)
    np.testing.assert_allclose(factor.T @ factor, matrix, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(factor.T @ system[:size, size], 1.0, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 8, 9, 33])
def test_matrices_that_are_not_clearly_positive_definite_are_told_apart(width: int) -> None:
    matrices = positive_matrices(5, 4, width)
    values, vectors = np.linalg.eigh(matrices)
    values[1, 0], values[2, 0] = 0.0, -0.01
    matrices = (vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1)
    found = np.zeros(4, dtype=np.bool_)
    item_kernels.positive(matrices, found)
    np.testing.assert_array_equal(found, [True, False, False, True])


@pytest.mark.parametrize("noise_std", [0.0, 3.0, 300.0])
@pytest.mark.slow
def test_posteriors_of_rows_are_the_same_in_machine_code(monkeypatch: pytest.MonkeyPatch, noise_std: float) -> None:
    """Also across several blocks of items, and with the common covariance taken from a part of them."""
    items, width = 700, 10
    triangles = estimation.packed(positive_matrices(7, items, width))
    gram = estimation.Grams(triangles, np.eye(width), np.full(items, noise_std))
    found = []
    for worthwhile in (0.0, np.inf):
        monkeypatch.setattr(estimation, "_WORTHWHILE", worthwhile)
        monkeypatch.setattr(features, "_MOST_FOR_COMMON", 400)
        found.append(
            features.posterior_rows(
                (gram.matrices @ np.linspace(-1, 1, items * width).reshape(items, width, 1))[:, :, 0],
                gram,
                np.ones(items),
                0.1 * np.ones((items, width)),
                np.full(items, 0.05),
                noise_std=noise_std,
                residual_variance=0.8,
                ridge=1.0,
            )
        )
    compiled, plain = found
    np.testing.assert_allclose(compiled.mean, plain.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(compiled.variance, plain.variance, rtol=1e-6)


@pytest.mark.slow
def test_gram_matrices_are_the_same_in_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    items, width = 300, 7
    generator = np.random.default_rng(11)
    mass = generator.uniform(0.5, 40.0, items)
    noisy = mass[:, None] * estimation.packed(positive_matrices(11, items, width)) / 9
    noisy += generator.normal(size=noisy.shape) * 20.0
    scale = generator.uniform(0.5, 2.0, noisy.shape[1])
    found = []
    for worthwhile in (0.0, np.inf):
        monkeypatch.setattr(estimation, "_WORTHWHILE", worthwhile)
        found.append(estimation.grams(noisy, mass, width=width, noise_std=20.0, scale=scale))
    compiled, plain = found
    np.testing.assert_allclose(compiled.packed, plain.packed, atol=1e-8)
    np.testing.assert_allclose(compiled.variance, plain.variance, rtol=1e-9)
    assert np.linalg.eigvalsh(compiled.matrices).min() > -1e-9
    scaled = estimation.grams(noisy * scale, mass, width=width, noise_std=20.0)
    np.testing.assert_allclose(scaled.packed, plain.packed, atol=1e-8)


def test_projections_are_the_same_in_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = np.random.default_rng(8).normal(size=(300, 6, 6)) + 2.5 * np.eye(6)
    matrices = matrices + matrices.transpose(0, 2, 1)
    found = []
    for worthwhile in (0.0, np.inf):
        monkeypatch.setattr(estimation, "_WORTHWHILE", worthwhile)
        found.append(estimation.nearest_psd(matrices))
    changed = np.abs(found[1] - matrices).max(axis=(1, 2)) > 1e-9
    assert 0 < changed.sum() < 300, "some are projected and some stay"
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=30), most=st.integers(1, 20))
def test_ranges_cover_every_part_once_and_are_as_long_as_allowed(sizes: list[int], most: int) -> None:
    bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    found = list(parallel.ranges(bounds, most))
    assert [part for first, last in found for part in range(first, last)] == list(range(len(sizes)))
    for first, last in found:
        assert last == first + 1 or bounds[last] - bounds[first] <= most
        assert last == len(sizes) or bounds[last + 1] - bounds[first] > most


def test_work_comes_back_in_order_whatever_the_threads() -> None:
    for threads in (1, 3):
        assert parallel.each(lambda number: number * number, range(20), threads=threads) == [n * n for n in range(20)]

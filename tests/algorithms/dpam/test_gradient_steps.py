"""Gradient steps: what devices may send, that all implementations agree, and what the filter makes of releases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

from odp.algorithms.dpam import gradient_codec as codec
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.gradient_codec import MOMENTS_CLIP, UNITS, Contributions
from odp.algorithms.dpam.gradient_query import GradientQuery
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import GLOBALS_TABLE, ITEMS_TABLE, RIDGES, Terms
from odp.algorithms.dpam.uncertainty import Uncertainty, read
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.datasets.splitting import random_split
from odp.errors import ConfigurationError, ContributionRefused, Refusal, StateError
from odp.evaluation.baselines import rmse
from odp.evaluation.trials import merge
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS, RANK, PLACES = 24, 20, 5, 6


@pytest.fixture(scope="session")
def steps(define: Define) -> common_pb2.TaskDefinition:
    """A task of gradient steps with fewer places and slices than some users have items."""
    return define(items=ITEMS, rank=RANK, places=PLACES, step="gradient", steps=3, slices_per_device=10)


def people(seed: int) -> Ratings:
    """Users with none to all of the items."""
    generator = np.random.default_rng(seed)
    mask = generator.random((USERS, ITEMS)) < generator.choice([0.0, 0.05, 0.3, 1.0], USERS)[:, None]
    users, items = np.nonzero(mask)
    values = generator.uniform(1, 5, len(users))
    return Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=USERS, n_items=ITEMS)


def model(terms: Terms, seed: int, *, version: int = 2) -> ModelVersion:
    """A model with all columns in use."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(terms.items, terms.width))
    rows[:, 0], rows[:, 2] = generator.uniform(1, 90, terms.items), generator.uniform(0.2, 1, terms.items)
    halves = generator.normal(size=(3, terms.learned, terms.learned))
    covariances = [scale * half @ half.T for scale, half in zip((0.05, 20.0, 2.0), halves, strict=True)]
    numbers = Uncertainty(0.7, *covariances).numbers()
    dense = np.concatenate(([0.7, 2.0], numbers))[None].astype(np.float32)
    tables = TableValues(ITEMS_TABLE, rows.astype(np.float32), True), TableValues(GLOBALS_TABLE, dense, False)
    return ModelVersion(version, tables)


def seeds(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, USERS, dtype=np.uint64)


def payloads(
    definition: common_pb2.TaskDefinition, broadcast: ModelVersion, ratings: Ratings, round: int
) -> list[bytes]:
    """What each device sends, alone."""
    client = algorithm_for(definition).client()
    sent = []
    for user, seed in enumerate(seeds(9).tolist()):
        items, values = ratings.user(user)
        data = own_rows(items.astype(np.int64), values.astype(np.float64))
        keys = client.keys(data, round=round, seed=seed)
        slices = Slices(broadcast.version, keys, broadcast.keyed.rows[keys], broadcast.dense)
        sent.append(client.contribute(slices, data, round=round, seed=seed)[0])
    return sent


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), round=st.integers(0, 3), spoiled=st.booleans())
@pytest.mark.slow
def test_devices_simulations_and_both_sums_agree_and_keep_their_bounds(
    steps: common_pb2.TaskDefinition, seed: int, round: int, spoiled: bool
) -> None:
    """Also for rows that no honest server makes: an integer may differ by one unit, where rounding flips."""
    terms, ratings = Terms.of(steps), people(seed)
    broadcast = model(terms, seed + 1, version=round)
    if spoiled:
        rows = broadcast.keyed.rows.copy()
        rows[::5] *= np.float32(1e30)
        rows[1::6, 3] = np.nan
        broadcast = broadcast.with_rows(rows)
    sent, query = payloads(steps, broadcast, ratings, round), GradientQuery(terms, round)
    assert query.refusals(sent) == [None] * USERS
    direct, oblivious = query.new_sum(), query.new_sum(oblivious=True)
    direct.add(sent)
    for payload in sent:
        oblivious.add([payload])
    simulated = [
        DpamPopulation(steps, compiled=compiled, threads=2, block=100).contribute(
            broadcast, ratings, round=round, seeds=seeds(9)
        )
        for compiled in (True, False)
    ]
    for name, total in direct.totals().items():
        np.testing.assert_array_equal(oblivious.totals()[name], total)
        for other in simulated:
            off = np.abs(other[name] - total)
            assert off.max() <= 2
            assert (off > 0).mean() <= 0.02 or np.count_nonzero(off) <= 1


def contributions(terms: Terms, seed: int) -> Contributions:
    """One that is exactly at both bounds, as far as integers can be."""
    generator = np.random.default_rng(seed)
    used = np.arange(terms.max_items) < generator.integers(1, terms.max_items + 1)
    gradients = codec.quantised(generator.normal(size=(1, terms.max_items, terms.learned)) * used[:, None], 1e-9)
    moments = codec.quantised(generator.normal(size=(1, codec.moments_of(terms))), 1e-9)
    items = generator.permutation(terms.items)[: terms.max_items][None].astype(np.int64)
    return Contributions(items[:, :0], items, used[None].astype(np.int64), gradients, moments)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_payloads_read_back_and_lie_within_their_bounds(steps: common_pb2.TaskDefinition, seed: int) -> None:
    terms = Terms.of(steps)
    contribution = contributions(terms, seed)
    (payload,) = codec.encode(terms, 1, contribution)
    read_back = codec.decode(terms, 1, [payload])
    np.testing.assert_array_equal(read_back.gradients, contribution.gradients)
    np.testing.assert_array_equal(read_back.moments, contribution.moments)
    np.testing.assert_array_equal(read_back.weights, contribution.weights)
    GradientQuery(terms, 1).check(payload)
    assert 0.9 * UNITS**2 < codec.lengths(contribution.gradients)[0] <= UNITS**2


@pytest.mark.parametrize("fault", ["gradient", "moments", "twice", "unknown", "unused", "short", "weights"])
def test_whatever_would_move_a_sum_further_is_refused(steps: common_pb2.TaskDefinition, fault: str) -> None:
    terms = Terms.of(steps)
    contribution, round = contributions(terms, 3), 1
    used = int(contribution.weights.sum())
    gradients, items, moments = (part.copy() for part in (
        contribution.gradients, contribution.items, contribution.moments
    ))  # fmt: skip
    weights = contribution.weights
    if fault == "gradient":  # its squares add up to more than the bound by a step
        gradients[0, 0] = 0
        gradients[0, 0, 0] = math.isqrt(UNITS**2 - int(codec.lengths(gradients)[0])) + 1
    elif fault == "moments":
        moments[0, 0] = 0
        moments[0, 0] = math.isqrt(UNITS**2 - int(codec.lengths(moments)[0])) + 1
    elif fault == "twice":
        weights, items = np.ones_like(weights), items * 0
    elif fault == "unknown":
        items[0, 0] = terms.items
    elif fault == "weights":
        round, weights = 0, np.full_like(weights, 2**10)
    contribution = dataclasses.replace(contribution, gradients=gradients, items=items, moments=moments, weights=weights)
    (payload,) = codec.encode(terms, round, contribution)
    if fault == "unused":
        record = np.frombuffer(payload, dtype=codec.layout(terms, 1)).copy()
        record["items"][0, used - 1] = codec.NO_ITEM
        payload = record.tobytes()
    expected = Refusal.MALFORMED if fault == "short" else Refusal.OUT_OF_BOUNDS
    with pytest.raises(ContributionRefused) as refused:
        GradientQuery(terms, round).check(payload[:-1] if fault == "short" else payload)
    assert refused.value.refusal == expected
    GradientQuery(terms, round).check(codec.empty_payload(terms, round))


def test_every_release_is_charged_and_all_together_are_the_budget(define: Define) -> None:
    definition = define(items=ITEMS, rank=RANK, places=PLACES, step="gradient", steps=3, epsilon=2.0)
    terms = Terms.of(definition)
    releases = [release for round in range(terms.rounds) for release in GradientQuery(terms, round).releases]
    assert [release.name for release in releases] == ["masses", "devices", *["gradients", "moments"] * 3]
    bounds = {"masses": math.sqrt(PLACES), "devices": 1.0, "moments": MOMENTS_CLIP}
    assert all(release.sensitivity == bounds.get(release.name, terms.factor_vector_clip) for release in releases)
    total = sum((release.sensitivity / release.noise_std) ** 2 for release in releases)
    coordinates = sum(release.coordinates for release in releases)
    assert math.sqrt(total) == pytest.approx(mu_for(epsilon=2.0, delta=1e-6, coordinates=coordinates), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rank": 2}, "rank=2 to be 3 or more"),
        ({"steps": 0}, "steps=0"),
        ({"item_ridge": 2.0, "bias_share": 0.1}, "no bias_share, item_ridge with step='gradient'"),
        ({"weighting": "uniform"}, "no weighting"),
        ({"step": "newton"}, "step"),
    ],
)
def test_what_gradient_steps_do_not_read_is_refused(define: Define, options: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        define(**{"items": ITEMS, "rank": RANK, "step": "gradient", "steps": 3} | options)


@pytest.mark.parametrize("name", ["bias_target_clip", "bias_sum_noise", "weight_exponent", "item_ridge"])
def test_a_definition_with_numbers_that_no_gradient_step_reads_is_refused(
    steps: common_pb2.TaskDefinition, name: str
) -> None:
    definition = common_pb2.TaskDefinition()
    definition.CopyFrom(steps)
    setattr(definition.dpam, name, 0.5)
    with pytest.raises(ConfigurationError, match=name):
        Terms.of(definition)


def test_a_model_says_how_uncertain_items_are_whatever_its_numbers_are(steps: common_pb2.TaskDefinition) -> None:
    terms = Terms.of(steps)
    dense = model(terms, 4).dense
    known = read(terms, dense)
    counts = np.array([1.0, 7.0, 1e6])
    for count, covariance in zip(counts, known.of(counts), strict=True):
        errors = known.noise / count**2 + known.sampling / count
        expected = np.linalg.inv(np.linalg.inv(known.prior) + np.linalg.inv(errors))
        np.testing.assert_allclose(covariance, expected, rtol=1e-4, atol=1e-7)
    generator = np.random.default_rng(5)
    for scale in (1e-30, 1.0, 200.0):  # any numbers within the bounds are covariances
        numbers = np.concatenate(([1.0], scale * generator.uniform(-1, 1, 3 * terms.learned_pairs)))
        spoiled = {GLOBALS_TABLE: np.concatenate(([0.7, 2.0], numbers))[None].astype(np.float32)}
        covariances = read(terms, spoiled).of(np.array([1.0, 50.0]))
        assert np.linalg.eigvalsh(covariances).min() > -1e-6 * max(1.0, scale) ** 2


@pytest.mark.parametrize(("place", "number"), [(0, 0.0), (0, math.nan), (1, 1e9), (5, math.inf), (25, 1e20)])
def test_numbers_for_all_devices_that_no_solve_holds_up_are_refused_by_every_device(
    steps: common_pb2.TaskDefinition, place: int, number: float
) -> None:
    broadcast = model(Terms.of(steps), 4)
    dense = {name: table.copy() for name, table in broadcast.dense.items()}
    dense[GLOBALS_TABLE][0, RIDGES + place] = number
    with pytest.raises(ConfigurationError, match="the model cannot be trained on"):
        algorithm_for(steps).client().check_model(dense)


TASTES = 2


def structured(seed: int = 3) -> Ratings:
    """600 users with two strong tastes and 40 items."""
    generator = np.random.default_rng(seed)
    users = np.repeat(np.arange(600), 15)
    items = np.concatenate([generator.permutation(40)[:15] for _ in range(600)])
    taste, trait = generator.normal(size=(600, TASTES)), generator.normal(size=(40, TASTES))
    values = 3.2 + 0.6 * (taste[users] * trait[items]).sum(axis=1) + 0.4 * generator.normal(size=len(users))
    return Ratings.from_triples("made", users, items, np.clip(values, 1, 5), low=1, high=5, n_users=600, n_items=40)


def test_strong_tastes_are_learned_beyond_what_biases_say(define: Define, run_rounds: Callable[..., bytes]) -> None:
    """At one draw of the noise; over 20 draws the error was .61 to .66, and that of biases .96."""
    split = random_split(structured(), seed=1)
    definition = define(items=40, rank=6, places=15, epsilon=8.0, step="gradient", steps=12)
    state = run_rounds(definition, split.train)
    algorithm, history = algorithm_for(definition), merge(split.train, split.validation)
    broadcast = algorithm.server().broadcast(state)

    def error(version: ModelVersion) -> float:
        return rmse(algorithm.population().predict(version, history, split.test), split.test)

    biases = error(ModelVersion(1, broadcast.tables))
    assert error(broadcast) < 0.8 * biases


def test_state_survives_storage_and_only_its_own_releases_move_it(steps: common_pb2.TaskDefinition) -> None:
    algorithm = algorithm_for(steps)
    server, query = algorithm.server(), algorithm.query(0)
    state = server.start()
    zeros = {release.name: np.zeros(release.shape) for release in query.releases}
    following = server.step(state, NoisyTensors(0, zeros, USERS))
    assert server.broadcast(following).version == 1
    assert (server.counts(following) >= 1).all()
    with pytest.raises(ConfigurationError, match="round"):
        server.step(following, NoisyTensors(0, zeros, USERS))
    with pytest.raises(ConfigurationError, match="'moments'"):
        server.step(following, NoisyTensors(1, zeros, USERS))
    with pytest.raises(StateError):
        server.broadcast(following[:-8])
    gradients = {release.name: np.zeros(release.shape) for release in algorithm.query(1).releases}
    assert np.isfinite(server.broadcast(server.step(following, NoisyTensors(1, gradients, USERS))).keyed.rows).all()
    gradients["gradients"][:] = np.nan
    with pytest.raises(ConfigurationError, match="no model follows"):
        server.step(following, NoisyTensors(1, gradients, USERS))


def test_features_are_prior_means_of_items_without_ratings(define: Define) -> None:
    """Items of the second kind are liked more; one of them that nobody rated is predicted so."""
    from odp.models.item_features import item_features_sha256

    generator = np.random.default_rng(2)
    kinds = np.eye(2, dtype=np.float32)[np.arange(40) % 2]
    users, items = np.repeat(np.arange(500), 12), np.concatenate([generator.permutation(38)[:12] for _ in range(500)])
    values = np.where(items % 2, 4.2, 2.4) + 0.3 * generator.uniform(-1, 1, len(items))
    ratings = Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=500, n_items=40)
    definition = define(items=40, rank=4, places=12, epsilon=8.0, step="gradient", steps=8)
    definition.model.item_features_width = 2
    definition.model.item_features_sha256 = item_features_sha256(kinds)
    algorithm = algorithm_for(definition)
    server, population, state = algorithm.server(item_features=kinds), algorithm.population(), b""
    state = server.start()
    device_seeds = generator.integers(0, 2**64, 500, dtype=np.uint64)
    for round in range(server.rounds):
        sums = population.contribute(server.broadcast(state), ratings, round=round, seeds=device_seeds)
        noisy = {}
        for release in algorithm.query(round).releases:
            noise = generator.normal(size=release.shape) * release.column_std
            noisy[release.name] = sums[release.name] * release.step + noise
        state = server.step(state, NoisyTensors(round, noisy, 500))
    bias: Float64Array = server.broadcast(state).keyed.rows[:, 1].astype(np.float64)
    assert bias[39] - bias[38] > 0.8


@pytest.mark.parametrize(
    ("n_users", "n_items", "rank", "step", "steps"),
    [
        (100, 1000, 2, "gramian", 0),
        (1000, 1000, 4, "gradient", 8),
        (600, 100, 6, "gradient", 8),
        (10**4, 1000, 10, "gradient", 12),
        (10**5, 1000, 14, "gradient", 16),
        (10**6, 1000, 18, "gradient", 16),
    ],
)
def test_the_recommended_step_follows_from_the_signal_of_items(
    n_users: int, n_items: int, rank: int, step: str, steps: int
) -> None:
    chosen, training = DPAM.recommended(epsilon=1.0, delta=1e-6, n_users=n_users, n_items=n_items)
    assert (chosen, training.step, training.steps) == (rank, step, steps)


def test_many_features_are_factors_of_a_weak_signal_and_prior_means_of_a_strong_one() -> None:
    sizes = {"epsilon": 1.0, "delta": 1e-6, "n_items": 1000}
    weak, strong = (DPAM.recommended(n_users=users, n_features=20, **sizes) for users in (2000, 20_000))
    assert (weak[0], weak[1].step, weak[1].steps) == (22, "gramian", 0)
    assert strong == DPAM.recommended(n_users=20_000, **sizes)
    assert DPAM.recommended(n_users=2000, n_features=7, **sizes) == DPAM.recommended(n_users=2000, **sizes)

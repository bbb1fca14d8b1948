"""Quantiles: bounded by removing a user, the same on devices as in simulation, and in all three ways to aggregate."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.test_statistics import seeds_of
from e2e.world import World
from hypothesis import given, settings, strategies as st

import odp
from device_runtime.round import secagg
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.estimates import quantile
from odp.algorithms.quantiles.results import QuantileResults
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.algorithms.seam import LocalRows
from odp.crypto.signing import SigningKey
from odp.datasets import Ratings
from odp.evaluation.noise import NoNoise
from odp.evaluation.users import user_seeds
from odp.privacy.accounting import epsilon
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition, open_task
from odp.tasks.file import parse_task, render_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2

NOTHING = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})
MODES = ("enclave", "masked", "secagg+")


def task(users: int, *, mode: str = "enclave", bins: int = 40, **changes: object) -> odp.Quantiles:
    given: dict[str, object] = {
        "name": "stars", "population": "films", "low": 0, "high": 6, "bins": bins, "at": (0.1, 0.5, 0.9),
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "cohort": odp.Cohort(minimum=20, goal=users, round_seconds=600, aggregation=mode),
    }  # fmt: skip
    return odp.Quantiles(**{**given, **changes})  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(width=32), max_size=60), seed=st.integers(0, 2**63))
def test_a_device_moves_the_sum_by_its_clip_at_most_whatever_it_holds(values: list[float], seed: int) -> None:
    algorithm = algorithm_for(task(30).definition())
    rows = LocalRows(np.arange(len(values)), np.array(values, dtype=np.float64))
    payload, local = algorithm.client().contribute(NOTHING, algorithm.data_of(rows), round=0, seed=seed)
    query = algorithm.query(0)
    assert isinstance(query, DenseQuery)
    query.check(payload)
    assert local == b""
    numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64) * query.grid.step
    finite = np.isfinite(values).any() if values else False
    assert numbers.sum() == pytest.approx(1.0 if finite else 0.0, abs=query.grid.size * query.grid.step)
    assert np.linalg.norm(numbers) <= query.grid.clip


def test_clients_and_population_make_the_same_sum(ratings: Ratings) -> None:
    algorithm = algorithm_for(task(ratings.n_users).definition())
    seeds, client = user_seeds(ratings, 2), algorithm.client()
    total = algorithm.query(0).new_sum()
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        own = algorithm.data_of(LocalRows(items.astype(np.int64), values.astype(np.float64)))
        total.add([client.contribute(NOTHING, own, round=0, seed=int(seeds[user]))[0]])
    broadcast = algorithm.server().broadcast(b"")
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)
    np.testing.assert_array_equal(total.totals()["quantiles"], simulated["quantiles"])


def test_the_release_costs_exactly_the_budget() -> None:
    (event,) = charges_of(algorithm_for(task(30).definition()).query(0))
    assert 4.0 - 1e-5 < epsilon([event], delta=1e-5) <= 4.0


def test_a_quantile_is_that_of_the_users_values_up_to_a_bin() -> None:
    people = odp.data.synthetic_movielens(n_users=3000, n_items=50, ratings_per_user=20, seed=3)
    run = odp.simulate(task(3000, low=0.5, high=5.5, bins=5), people, seed=1)
    weights = 1.0 / people.counts()[people.users()]
    order = np.argsort(people.values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    for q, found in run.results.items():  # type: ignore[attr-defined]
        true = float(people.values[order][np.searchsorted(share, q)])
        assert abs(run.exact[q].value - true) <= 1.0  # type: ignore[index]
        assert found.low <= run.exact[q].value <= found.high  # type: ignore[index]
    assert run.to_json()["quantiles"] == run.results.to_json()
    assert len(list(run.results.lines(0.95, run.exact))) == 3


def test_intervals_hold_at_their_confidence() -> None:
    """3,000 draws at 90%: fewer than 85% would come by chance once in 10^15 runs."""
    generator, edges = np.random.default_rng(5), np.linspace(0.0, 1.0, 21)
    counts = generator.uniform(10.0, 50.0, 20)
    truth = quantile(counts, std=0.0, edges=edges, q=0.3).value
    held = 0
    for _ in range(3000):
        found = quantile(counts + generator.normal(size=20) * 5.0, std=5.0, edges=edges, q=0.3, confidence=0.9)
        held += found.low <= truth <= found.high
    assert held > 0.85 * 3000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"at": (0.5, 0.5)}, "ascending"), ({"at": (0.0,)}, "between 0 and 1"), ({"at": ()}, "at="),
        ({"at": 0.5}, "at=0.5"), ({"at": "x"}, "at='x'"), ({"at": (None,)}, "at=None"),
        ({"low": 5, "high": 5}, "below high"), ({"bins": 0}, "bins=0"), ({"low": math.nan}, " low=nan"),
        ({"privacy": odp.UserLevelDP(epsilon=1, delta=1e-5, max_items_per_user=3)}, "max_items_per_user"),
    ],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        task(100, **change)


def _no_table(definition: common_pb2.TaskDefinition) -> None:
    definition.quantiles.table = "events.music"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.quantiles.__setattr__("edges", d.quantiles.edges[::-1]), "edges"),
        (lambda d: d.quantiles.__setattr__("edges", b"12345"), "edges"),
        (lambda d: d.quantiles.at.append(0.1), "ascending"),
        (lambda d: d.quantiles.dense.__setattr__("clip", 2.0), "clip"),
        (lambda d: d.privacy.__setattr__("max_items_per_user", 3), "max_items_per_user"),
        (_no_table, "events"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task(100).definition()
    definition.developer_key = SigningKey.generate().public
    spoil(definition)
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        check_definition(definition)


def test_a_task_file_says_the_same() -> None:
    asked = task(100, events=odp.Events(service="music", type="play", item="song", value="seconds"))
    assert parse_task(render_task(asked)) == asked
    assert parse_task(render_task(task(100))) == task(100)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bins =", "binz =", "'binz'.*f.toml:7 .*'bins'"), ("low = 0\n", "", r"f.toml:4: \[quantiles\] lacks 'low'"),
        ("low = 0", "low = nan", "f.toml:5: Expected low=nan"), ("bins = 40", "bins = 0", "f.toml:7: Expected bins=0"),
        ("at = [0.1, 0.5, 0.9]", "at = 0.5", "f.toml:8: Expected at=0.5"),
        ("low = 0", "cohort = 0", "'cohort'.*f.toml:5"),
        ("[quantiles]", "[[quantiles]]", "f.toml:4: .* a table of keys"), ("goal = 100", "goal = 0", "f.toml:.*goal=0"),
        ("goal = 100", "goal = 100_000", "f.toml:13: Expected delta="),
    ],
)  # fmt: skip
def test_a_mistake_in_a_task_file_is_shown_where_it_is(old: str, new: str, message: str) -> None:
    text = render_task(task(100))
    assert old in text
    with pytest.raises(odp.OdpError, match=message):
        parse_task(text.replace(old, new), where="f.toml")


def test_what_is_resolved_are_numbers_of_the_grid_and_not_its_edges() -> None:
    resolved = algorithm_for(task(100).definition()).resolved
    assert [field.name for field in resolved.DESCRIPTOR.fields] == ["clip", "grid_bits", "noise_std", "maximum"]


def test_results_have_the_reported_quantiles_and_estimate_any(ratings: Ratings) -> None:
    found = odp.simulate(task(ratings.n_users), ratings, seed=1).results
    assert isinstance(found, QuantileResults)
    assert set(found) == {0.1, 0.5, 0.9}
    assert 0.3 not in found
    assert found.get(2.0) is None
    assert found.estimate(0.5) == found[0.5]
    assert found[0.1].value <= found.estimate(0.3).value <= found[0.5].value
    for confidence in (-1.0, 0.0, 1.0, math.nan):
        with pytest.raises(odp.errors.ConfigurationError, match=f"confidence={confidence!r}"):
            found.to_json(confidence)


# One mode in CI, another one for evaluations: test_three_modes.py has one question in all of them.
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode == "masked" else pytest.mark.proof) for mode in MODES]
)
def test_devices_give_the_answers_of_the_simulation_in_every_mode(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise off, the integers are equal, so every answer is."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    world = World(tmp_path, **({} if mode == "secagg+" else {"noise": NoNoise()})).start(stack)
    asked = task(ratings.n_users, mode=mode)
    if mode == "secagg+":
        # Mean noise of few devices: the share of each has to be one that can be drawn.
        asked = dataclasses.replace(asked, bins=20)
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
    algorithm = algorithm_for(open_task(status.task))
    broadcast = algorithm.server().broadcast(b"")
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)["quantiles"]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    found = handle.results(ReferenceValues.load(world.reference_values))
    exact = algorithm.answers({"quantiles": simulated * tensor.step}, contributions=24, epsilon=math.inf, noisy=False)  # type: ignore[attr-defined]
    assert {q: one.value for q, one in found.items()} == {q: one.value for q, one in exact.items()}  # type: ignore

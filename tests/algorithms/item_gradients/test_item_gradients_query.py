"""The declared queries of gradients of an item table: layout, sensitivity, hostile payloads, charges, sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from hypothesis import given, settings, strategies as st

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.factorization import query as shared
from odp.algorithms.factorization.codec import NO_ITEM
from odp.algorithms.item_gradients import codec, query
from odp.algorithms.item_gradients.codec import LIMIT, UNITS, Contributions
from odp.algorithms.item_gradients.query import ItemGradientQuery
from odp.algorithms.item_gradients.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.algorithms.seam import SampledQuery
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.privacy.accounting import epsilon, mu_for
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS, PLACES, RANK = 30, 12, 4, 3

#: Ratings and implicit data.
both = pytest.mark.parametrize("implicit", [False, True])


def terms_of(definition: common_pb2.TaskDefinition) -> Terms[Any]:
    """As every party reads it."""
    return algorithm_for(definition).gradients()  # type: ignore[attr-defined]


def norm_of(release: DeclaredRelease, sums: np.ndarray) -> float:
    """L2 norm in units where each entry has the noise ``noise_std``."""
    return float(np.linalg.norm(sums.reshape(release.shape) * release.step / release.column_std) * release.noise_std)


def payload_of(
    definition: common_pb2.TaskDefinition,
    round: int,
    *,
    row: list[int],
    items: list[int],
    targets: list[int],
    whole: list[int] | None = None,
) -> bytes:
    """A payload of any content."""
    record = np.zeros(1, dtype=codec.layout(terms_of(definition), round))
    record["items"] = NO_ITEM
    record["items"][0, : len(items)], record["targets"][0, : len(targets)] = items, targets
    if round:
        record["row"][0, : len(row)] = row
    if whole is not None:
        record["whole"][0, : len(whole)] = whole
    return record.tobytes()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), round=st.integers(0, 1), users=st.integers(1, 5), implicit=st.booleans())
def test_decoding_inverts_encoding(define_gradients: Define, seed: int, round: int, users: int, implicit: bool) -> None:
    terms = terms_of(define_gradients(items=ITEMS, rank=RANK, places=PLACES, implicit=implicit))
    generator = np.random.default_rng(seed)
    used = generator.random((users, PLACES)) < 0.6
    items = np.where(used, generator.integers(0, ITEMS, used.shape), NO_ITEM)
    targets = used * generator.integers(-(2**15), 2**15, used.shape)
    row, whole = (generator.integers(-(2**15), 2**15, (users, width)) for width in terms.widths_of(round))
    sent = Contributions(row, items, used.astype(np.int64), targets, whole)
    payloads = codec.encode(terms, round, sent)
    assert {len(payload) for payload in payloads} == {len(codec.empty_payload(terms, round))}
    for name, values in vars(codec.decode(terms, round, payloads)).items():
        np.testing.assert_array_equal(values, getattr(sent, name), err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 2),
    clip=st.sampled_from([1e-3, 0.5, 50.0]),
    spoiled=st.booleans(),
    implicit=st.booleans(),
)
def test_a_user_moves_the_sums_by_at_most_the_declared_sensitivity(
    define_gradients: Define,
    some_ratings: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    seed: int,
    round: int,
    clip: float,
    spoiled: bool,
    implicit: bool,
) -> None:
    definition = define_gradients(items=ITEMS, rank=RANK, places=PLACES, clip=clip, implicit=implicit)
    algorithm = algorithm_for(definition)
    ratings = some_ratings(users=USERS, items=ITEMS, seed=seed, implicit=implicit)
    model = some_model(version=round, items=ITEMS, rank=RANK, seed=seed + 1, spoiled=spoiled, implicit=implicit)
    seeds = np.random.default_rng(seed).integers(0, 2**64, USERS, dtype=np.uint64)
    everyone = algorithm.population().contribute(model, ratings, round=round, seeds=seeds)
    without = np.arange(USERS) != seed % USERS
    others = ratings.select_users(np.flatnonzero(without))
    rest = algorithm.population().contribute(model, others, round=round, seeds=seeds[without])
    for release in algorithm.query(round).releases:
        assert norm_of(release, everyone[release.name] - rest[release.name]) <= release.sensitivity * (1 + 1e-12)


@both
@pytest.mark.parametrize("round", [0, 1])
def test_the_worst_user_reaches_every_bound_and_one_unit_more_is_refused(
    define_gradients: Define, round: int, implicit: bool
) -> None:
    definition = define_gradients(items=ITEMS, rank=4 if implicit else 3, places=PLACES, implicit=implicit)
    query = ItemGradientQuery(terms_of(definition), round)
    worst = {"row": [UNITS // 2] * 4, "items": [3, 1, 4, 2], "targets": [UNITS // 2, -UNITS // 2] * 2}
    if implicit and round:
        worst["whole"] = [-UNITS // 2, UNITS // 2] * 2
    payload = payload_of(definition, round, **worst)
    total = query.new_sum()
    total.add([payload])
    query.check(payload)
    for release in query.releases:
        norm = norm_of(release, total.totals()[release.name])
        assert release.sensitivity * (1 - 1e-9) < norm <= release.sensitivity * (1 + 1e-12)
    worse = [{"targets": [UNITS // 2 + 1, *worst["targets"][1:]]}]
    worse += [{name: [UNITS // 2 + 1, *worst[name][1:]]} for name in ("row", "whole") if round and name in worst]
    for change in worse:
        with pytest.raises(ContributionRefused) as refused:
            query.check(payload_of(definition, round, **(worst | change)))
        assert refused.value.refusal == Refusal.OUT_OF_BOUNDS


@pytest.mark.parametrize(
    "hostile",
    [
        {"whole": [-(2**15)]},
        {"whole": [2**15 - 1] * 4},
        {"row": [-(2**15)]},
        {"row": [2**15 - 1] * 4},
        {"targets": [-(2**15)]},
        {"targets": [2**15 - 1] * PLACES},
        {"items": [3, 3, 29, 7]},
        {"items": [3, 0, ITEMS, 7]},
        {"items": [2**32 - 2]},
        # A target at an unused place would be summed nowhere, but no honest device sends it.
        {"items": [3], "targets": [0, 2**15 - 1]},
    ],
)
def test_a_hostile_payload_is_refused_beside_good_ones(define_gradients: Define, hostile: dict[str, list[int]]) -> None:
    definition = define_gradients(items=ITEMS, rank=4, places=PLACES, implicit="whole" in hostile)
    query = ItemGradientQuery(terms_of(definition), 1)
    good = {"row": [100, -200], "items": [3, 0, 29, 7], "targets": [512, -512, 0, 1]}
    payloads = [payload_of(definition, 1, **good), payload_of(definition, 1, **(good | hostile)), b"short", b""]
    assert query.refusals(payloads) == [None, Refusal.OUT_OF_BOUNDS, Refusal.MALFORMED, Refusal.MALFORMED]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), round=st.integers(0, 1), implicit=st.booleans())
def test_whatever_bytes_are_accepted_move_the_sums_by_at_most_the_sensitivities(
    define_gradients: Define, data: st.DataObject, round: int, implicit: bool
) -> None:
    definition = define_gradients(items=ITEMS, rank=4, places=PLACES, implicit=implicit)
    query = ItemGradientQuery(terms_of(definition), round)
    size = query.payload_bytes
    noise = data.draw(st.binary(min_size=size, max_size=size))
    small = [data.draw(st.integers(-UNITS, UNITS)) for _ in range(2 * PLACES)]
    rows = {"row": small[:4], "whole": small[:4] if implicit and round else None}
    drawn = payload_of(definition, round, items=[5, 6, 7, 8], targets=small[4:], **rows)
    for payload in (noise, drawn):
        if query.refusals([payload]) == [None]:
            for oblivious in (False, True):
                total = query.new_sum(oblivious=oblivious)
                total.add([payload])
                for release in query.releases:
                    assert norm_of(release, total.totals()[release.name]) <= release.sensitivity * (1 + 1e-12)


@both
@pytest.mark.parametrize("round", [0, 1])
def test_the_empty_payload_adds_zero(define_gradients: Define, round: int, implicit: bool) -> None:
    query = ItemGradientQuery(terms_of(define_gradients(implicit=implicit)), round)
    assert isinstance(query, SampledQuery)
    query.check(query.empty_payload)
    for oblivious in (False, True):
        total = query.new_sum(oblivious=oblivious)
        total.add([query.empty_payload] * 3)
        assert total.count == 3
        assert not any(sums.any() for sums in total.totals().values())


@both
@pytest.mark.parametrize("budget", [1.0, 8.0])
def test_all_planned_releases_together_cost_the_budget(define_gradients: Define, budget: float, implicit: bool) -> None:
    algorithm = algorithm_for(define_gradients(epsilon=budget, rounds=4, implicit=implicit))
    names = [[release.name for release in releases] for releases in algorithm.planned_releases()]
    assert names == [["masses"]] + [["gradients", "gramian"] if implicit else ["gradients"]] * 3
    events = [event for number in range(4) for event in charges_of(algorithm.query(number))]
    assert [event.name for event in events] == [name for inner in names for name in inner]
    spent = math.sqrt(sum((event.sensitivity / event.noise_std) ** 2 for event in events))
    draws = sum(release.coordinates for releases in algorithm.planned_releases() for release in releases)
    assert spent == pytest.approx(mu_for(epsilon=budget, delta=1e-6, coordinates=draws), rel=1e-9)
    assert epsilon(events, delta=1e-6) == pytest.approx(budget, rel=1e-6)
    assert (events[0].sensitivity / events[0].noise_std) ** 2 == pytest.approx((0.25 if implicit else 0.1) * spent**2)


def test_grids_are_finer_than_the_noise_of_large_budgets(define_gradients: Define) -> None:
    for releases in algorithm_for(define_gradients(epsilon=50.0)).planned_releases():
        for release in releases:
            assert release.noise_std / release.step >= 64


def test_a_round_that_the_task_lacks_is_refused(define_gradients: Define) -> None:
    with pytest.raises(ConfigurationError, match="round=3"):
        ItemGradientQuery(terms_of(define_gradients(rounds=3)), 3)


def some(terms: Terms[Any], round: int, *, seed: int, hot: bool = False) -> Contributions:
    generator = np.random.default_rng(seed)
    items = np.stack([generator.permutation(ITEMS)[:PLACES] for _ in range(USERS)])
    if hot:
        items = np.tile(np.arange(PLACES), (USERS, 1))
    used = generator.random(items.shape) < (1.0 if hot else 0.7)
    targets = used * generator.integers(-UNITS // 2, UNITS // 2 + 1, items.shape)
    row, whole = (generator.integers(-7000, 7001, (USERS, width)) for width in terms.widths_of(round))
    return Contributions(row, np.where(used, items, NO_ITEM), used.astype(np.int64), targets, whole)


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("hot", [False, True])
@both
def test_oblivious_totals_are_those_of_the_direct_sums(
    define_gradients: Define, round: int, hot: bool, implicit: bool
) -> None:
    terms = terms_of(define_gradients(items=ITEMS, places=PLACES, rank=RANK, implicit=implicit))
    query = ItemGradientQuery(terms, round)
    payloads = codec.encode(terms, round, some(terms, round, seed=4, hot=hot))
    assert query.refusals(payloads) == [None] * USERS
    direct, oblivious = query.new_sum(), query.new_sum(oblivious=True)
    direct.add(payloads)
    oblivious.add(payloads[:5])
    oblivious.add(payloads[5:])
    for name, total in direct.totals().items():
        np.testing.assert_array_equal(oblivious.totals()[name], total)
        assert total.any()
    assert oblivious.count == direct.count == USERS
    assert LIMIT**2 * USERS < 2**63


@both
@pytest.mark.parametrize("round", [0, 1])
def test_one_hot_item_and_all_different_items_leave_one_trace(
    define_gradients: Define, round: int, implicit: bool
) -> None:
    terms = terms_of(define_gradients(items=ITEMS, places=PLACES, rank=RANK, implicit=implicit))

    def trace(sent: Contributions) -> list[object]:
        arrays = [traced(array.copy()) for array in vars(sent).values()]
        with tracing(query, shared) as notes:
            sums = ItemGradientQuery(terms, round).new_sum(oblivious=True)
            sums.add_decoded(Contributions(*arrays))
            sums.totals()
        return notes

    notes = trace(some(terms, round, seed=1))
    assert len(notes) > 20
    assert trace(some(terms, round, seed=2)) == trace(some(terms, round, seed=3, hot=True)) == notes

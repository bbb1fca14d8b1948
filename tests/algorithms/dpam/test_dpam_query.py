"""The declared queries: sensitivity, refusals, exact sums, noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dpam import codec, userside
from odp.algorithms.dpam.query import DpamQuery
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization.codec import NO_ITEM, WEIGHT_UNITS
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import SampledQuery
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
Longs = npt.NDArray[np.int64]

ITEMS, PLACES = 30, 4


def packed_norm(release: DeclaredRelease, change: npt.NDArray[np.float64]) -> float:
    """L2 norm in units where each entry has the noise ``noise_std``: off-diagonals of a Gram matrix count twice."""
    return float(np.sqrt((((change / release.column_std) * release.noise_std) ** 2).sum()))


def largest(definition: common_pb2.TaskDefinition, round: int) -> list[int]:
    """Targets of four entries of weight 512 whose weighted squares come as close to the limit as whole numbers can."""
    rest = codec.vector_limit(Terms.of(definition), round) // 512**2
    found = []
    for left in range(PLACES, 0, -1):
        found.append(min(math.isqrt(rest // left) + (left > 1), math.isqrt(rest), codec.TARGET_UNITS))
        rest -= found[-1] ** 2
    return [value if place % 2 else -value for place, value in enumerate(found)]


def payload_of(
    definition: common_pb2.TaskDefinition,
    round: int,
    *,
    row: list[int] | None = None,
    items: list[int] | None = None,
    weights: list[int] | None = None,
    targets: list[int] | None = None,
) -> bytes:
    """A payload made by hand: four entries of full weight and targets at their bound unless told otherwise."""
    record = np.zeros(1, dtype=codec.layout(Terms.of(definition), round))
    record["items"] = items or [3, 0, 29, 7]
    if round:
        record["weights"] = weights or [512] * PLACES
        record["targets"] = targets or largest(definition, round)
    if round >= 2:
        record["row"] = row or [100, -200]
    return record.tobytes()


def change_of(query: DpamQuery, payload: bytes) -> dict[str, npt.NDArray[np.float64]]:
    """What one payload adds to each release, in data units."""
    query.check(payload)
    total = query.new_sum()
    total.add([payload])
    sums = total.totals()
    return {release.name: sums[release.name] * release.step for release in query.releases}


@pytest.mark.parametrize("round", [0, 1, 2, 3])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, ITEMS),
    scale=st.sampled_from([0.01, 0.3, 3.0]),
    together=st.sampled_from([0.01, 0.35, 1.0, 4.0]),
    weighting=st.sampled_from(["adaptive", "uniform"]),
)
def test_removing_a_user_never_moves_a_release_by_more_than_its_sensitivity(
    define: Define, round: int, seed: int, size: int, scale: float, together: float, weighting: str
) -> None:
    clips = {"bias_vector_clip": together, "factor_vector_clip": together}
    definition = define(items=ITEMS, places=PLACES, weighting=weighting, **clips)
    generator = np.random.default_rng(seed)
    items = np.sort(generator.permutation(ITEMS)[:size]).astype(np.int64)
    data = own_rows(items, generator.uniform(1, 5, size))
    rows = generator.normal(size=(ITEMS, 5)) * scale
    rows[:, 0] = generator.integers(-5, 50, ITEMS)
    rows[:, 2] = generator.uniform(0.1, 1, ITEMS)
    slices = Slices(round, np.arange(ITEMS), rows.astype(np.float32), {"globals": np.array([[0.3, 1.0]], np.float32)})
    payload, _ = algorithm_for(definition).client().contribute(slices, data, round=round, seed=seed)
    query = DpamQuery(Terms.of(definition), round)
    change = change_of(query, payload)
    for release in query.releases:
        assert packed_norm(release, change[release.name]) <= release.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("together", [0.1, 0.6, 4.0])
@pytest.mark.parametrize(
    ("round", "row"), [(0, None), (1, None), (2, "along one axis"), (2, "along a diagonal"), (3, "along one axis")]
)
def test_the_largest_accepted_contribution_reaches_the_sensitivity_within_one_percent(
    define: Define, round: int, row: str | None, together: float
) -> None:
    clips = {"bias_vector_clip": together, "factor_vector_clip": together}
    definition = define(items=ITEMS, places=PLACES, **clips)
    limit = math.isqrt(codec.row_limit(Terms.of(definition)))
    entries = [limit, 0] if row == "along one axis" else [int(limit / math.sqrt(2)), -int(limit / math.sqrt(2))]
    query = DpamQuery(Terms.of(definition), round)
    change = change_of(query, payload_of(definition, round, row=entries))
    for release in query.releases:
        norm = packed_norm(release, change[release.name])
        assert 0.99 * release.sensitivity <= norm <= release.sensitivity * (1 + 1e-12)


def test_the_constant_of_a_full_row_is_close_to_one(define: Define) -> None:
    for rank in (1, 2, 16, 64):
        assert codec.constant(Terms.of(define(rank=rank))) == pytest.approx(1.0, abs=0.005)


HOSTILE = {
    "a repeated item": ({"items": [3, 0, 3, 7]}, Refusal.OUT_OF_BOUNDS),
    "an item out of range": ({"items": [3, 0, ITEMS, 7]}, Refusal.OUT_OF_BOUNDS),
    "no item behind a weight": ({"items": [3, 0, NO_ITEM, 7]}, Refusal.OUT_OF_BOUNDS),
    "squared weights one unit above": ({"weights": [1024, 1, 0, 0]}, Refusal.OUT_OF_BOUNDS),
    "weights whose squares overflow 32 bits": ({"weights": [65535] * 4}, Refusal.OUT_OF_BOUNDS),
    "a target above": ({"targets": [513, 0, 0, 0]}, Refusal.OUT_OF_BOUNDS),
    "a target below": ({"targets": [-513, 0, 0, 0]}, Refusal.OUT_OF_BOUNDS),
    "the most negative target": ({"targets": [-32768, 0, 0, 0]}, Refusal.OUT_OF_BOUNDS),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("round", [1, 2])
def test_a_hostile_payload_is_refused(define: Define, round: int, what: str) -> None:
    definition = define(items=ITEMS, places=PLACES)
    fields, refusal = HOSTILE[what]
    with pytest.raises(ContributionRefused) as refused:
        DpamQuery(Terms.of(definition), round).check(payload_of(definition, round, **fields))
    assert refused.value.refusal is refusal


@pytest.mark.parametrize("round", [1, 2])
def test_targets_that_are_together_above_their_bound_are_refused(define: Define, round: int) -> None:
    definition = define(items=ITEMS, places=PLACES)
    query, limit = DpamQuery(Terms.of(definition), round), codec.vector_limit(Terms.of(definition), round)
    longest = largest(definition, round)
    query.check(payload_of(definition, round, targets=longest))
    for place in range(PLACES):
        above = [value + int(np.sign(value) or 1) * (number == place) for number, value in enumerate(longest)]
        assert sum((512 * value) ** 2 for value in above) > limit
        with pytest.raises(ContributionRefused) as refused:
            query.check(payload_of(definition, round, targets=above))
        assert refused.value.refusal is Refusal.OUT_OF_BOUNDS
    # One entry alone: 1024 * target reaches the limit within one unit.
    most = math.isqrt(limit) // 1024
    query.check(payload_of(definition, round, weights=[1024, 0, 0, 0], targets=[most, 0, 0, 0]))
    with pytest.raises(ContributionRefused):
        query.check(payload_of(definition, round, weights=[1024, 0, 0, 0], targets=[most + 1, 0, 0, 0]))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), places=st.integers(1, 300), ratio=st.floats(0.01, 1.0), scale=st.integers(1, 512))
def test_shortened_targets_reach_their_bound_and_never_exceed_it(
    seed: int, places: int, ratio: float, scale: int
) -> None:
    generator = np.random.default_rng(seed)
    weights = np.floor(1024 * generator.dirichlet(np.ones(places), 5) ** 0.5).astype(np.int64)
    targets = generator.integers(-scale, scale + 1, (5, places))
    limit = math.floor(ratio * ratio * 2**38)
    bounded = userside.bounded_targets(weights, targets, limit)
    before, after = (((weights * values) ** 2).sum(axis=1) for values in (targets, bounded))
    assert (after <= limit).all()
    np.testing.assert_array_equal(bounded[before <= limit], targets[before <= limit])
    assert (np.abs(bounded) <= np.abs(targets)).all()
    # Truncation takes at most one unit of each target (all of it where a product is rounded below a whole number), and
    # weights have a norm of at most 1024.
    assert (np.sqrt(after[before > limit]) >= math.sqrt(limit) - 1024 * (1 + 1e-9)).all()


def test_targets_of_twice_the_bound_are_halved_and_meet_it_exactly() -> None:
    weights, targets = np.array([[512, 512, 512, 512]]), np.array([[300, -300, 150, 30]])
    limit = int(((weights * targets // 2) ** 2).sum())
    np.testing.assert_array_equal(userside.bounded_targets(weights, targets, limit), targets // 2)


@pytest.mark.parametrize("items", [[3, 0, 3, 7], [3, 0, ITEMS, 7], [3, 0, NO_ITEM - 1, 7]])
def test_hostile_counts_are_refused(define: Define, items: list[int]) -> None:
    definition = define(items=ITEMS, places=PLACES)
    with pytest.raises(ContributionRefused):
        DpamQuery(Terms.of(definition), 0).check(payload_of(definition, 0, items=items))


def test_a_row_one_unit_longer_than_the_limit_is_refused(define: Define) -> None:
    definition = define(items=ITEMS, places=PLACES)
    query = DpamQuery(Terms.of(definition), 2)
    limit = codec.row_limit(Terms.of(definition))
    longest = math.isqrt(limit)
    rest = math.isqrt(limit - longest**2)
    query.check(payload_of(definition, 2, row=[longest, -rest]))
    for row in ([longest + 1, 0], [longest, rest + 1], [-32768, -32768]):
        with pytest.raises(ContributionRefused):
            query.check(payload_of(definition, 2, row=row))


@pytest.mark.parametrize("round", [0, 1, 2])
def test_a_payload_of_another_length_is_malformed(define: Define, round: int) -> None:
    definition = define(items=ITEMS, places=PLACES)
    query, payload = DpamQuery(Terms.of(definition), round), payload_of(definition, round)
    assert len(payload) == query.payload_bytes
    for wrong in (payload[:-1], payload + b"\0", b"", payload * 2):
        with pytest.raises(ContributionRefused) as refused:
            query.check(wrong)
        assert refused.value.refusal is Refusal.MALFORMED


def accepted(definition: common_pb2.TaskDefinition, round: int, payload: bytes) -> bool:
    """The bounds once more, one number after the other."""
    terms = Terms.of(definition)
    record = np.frombuffer(payload, dtype=codec.layout(terms, round))[0]
    items = [int(item) for item in record["items"]]
    weights = [int(item != NO_ITEM) for item in items] if round == 0 else [int(w) for w in record["weights"]]
    targets = [0] * len(items) if round == 0 else [int(target) for target in record["targets"]]
    row = [int(value) for value in record["row"]] if round >= 2 else []
    held = [item for item, weight in zip(items, weights, strict=True) if weight]
    return (
        all(item < terms.items for item in held)
        and len(set(held)) == len(held)
        and (round == 0 or sum(weight**2 for weight in weights) <= WEIGHT_UNITS**2)
        and all(abs(target) <= codec.TARGET_UNITS for target in targets)
        and sum(value**2 for value in row) <= codec.row_limit(terms)
        and sum((w * t) ** 2 for w, t in zip(weights, targets, strict=True)) <= codec.vector_limit(terms, round)
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), round=st.integers(0, 2))
def test_many_payloads_at_once_are_refused_for_the_reasons_of_each(
    define: Define, data: st.DataObject, round: int
) -> None:
    definition = define(items=ITEMS, places=PLACES)
    query = DpamQuery(Terms.of(definition), round)
    extremes = st.sampled_from([0, 1, 2, 3, 29, 30, 255, 256, 511, 512, 513, 1023, 1024, 1025, 1500])
    weight = extremes | st.sampled_from([2**15, 2**16 - 1])
    target = extremes | extremes.map(lambda value: -value) | st.sampled_from([-(2**15), 2**15 - 1])
    item = st.integers(0, ITEMS - 1) | st.sampled_from([ITEMS, NO_ITEM, 2**31])
    payloads = []
    for _ in range(data.draw(st.integers(0, 7))):
        record = np.frombuffer(payload_of(definition, round), dtype=codec.layout(Terms.of(definition), round)).copy()
        for name, values in (("items", item), ("weights", weight), ("targets", target), ("row", target)):
            if name in (record.dtype.names or ()) and data.draw(st.booleans()):
                drawn = data.draw(st.lists(values, min_size=record[name].shape[1], max_size=record[name].shape[1]))
                record[name] = drawn
        payloads.append(record.tobytes()[: data.draw(st.sampled_from([None, None, None, -1]))])
    expected = [
        Refusal.MALFORMED
        if len(payload) != query.payload_bytes
        else (None if accepted(definition, round, payload) else Refusal.OUT_OF_BOUNDS)
        for payload in payloads
    ]
    assert query.refusals(payloads) == expected
    for payload, refusal in zip(payloads, expected, strict=True):
        if refusal is None:
            query.check(payload)
            continue
        with pytest.raises(ContributionRefused) as refused:
            query.check(payload)
        assert refused.value.refusal is refusal


def test_padding_adds_nothing(define: Define) -> None:
    definition = define(items=ITEMS, places=PLACES)
    payload = payload_of(definition, 2, items=[NO_ITEM] * 4)
    record = np.frombuffer(payload, dtype=codec.layout(Terms.of(definition), 2)).copy()
    record["weights"] = 0
    change = change_of(DpamQuery(Terms.of(definition), 2), record.tobytes())
    assert all((part == 0).all() for part in change.values())


@pytest.mark.parametrize("round", [0, 1, 2, 3])
def test_the_empty_payload_is_that_of_a_device_without_data_and_adds_zero_to_every_sum(
    define: Define, round: int
) -> None:
    """It stands for a contribution that was not drawn, among others and in either way of summing."""
    definition = define()
    query = DpamQuery(Terms.of(definition), round)
    assert isinstance(query, SampledQuery)
    others = random_payloads(definition, round, 5, seed=3)
    for oblivious in (False, True):
        without, with_it = (query.new_sum(oblivious=oblivious) for _ in range(2))
        without.add(others)
        with_it.add([query.empty_payload, *others, query.empty_payload])
        assert with_it.count == without.count + 2
        for name, total in without.totals().items():
            np.testing.assert_array_equal(with_it.totals()[name], total)
    query.check(query.empty_payload)


def random_payloads(definition: common_pb2.TaskDefinition, round: int, count: int, seed: int) -> list[bytes]:
    """Valid payloads near the bounds."""
    terms, generator = Terms.of(definition), np.random.default_rng(seed)
    record = np.zeros(count, dtype=codec.layout(terms, round))
    record["items"] = np.argsort(generator.random((count, terms.items)), axis=1)[:, : terms.max_items]
    if round:
        record["weights"] = generator.integers(0, 513, (count, terms.max_items))
        targets = generator.integers(-512, 513, (count, terms.max_items))
        weights, limit = record["weights"].astype(np.int64), codec.vector_limit(terms, round)
        record["targets"] = userside.bounded_targets(weights, targets, limit)
    if round >= 2:
        reach = math.isqrt(codec.row_limit(terms) // terms.rank)
        record["row"] = generator.integers(-reach, reach + 1, (count, terms.rank))
    return [entry.tobytes() for entry in record]


@pytest.mark.parametrize("round", [0, 1, 2])
def test_sums_equal_those_of_python_integers_in_any_order(define: Define, round: int) -> None:
    definition = define(items=ITEMS, places=PLACES)
    terms, query = Terms.of(definition), DpamQuery(Terms.of(definition), round)
    payloads = random_payloads(definition, round, 60, seed=5)
    for payload in payloads:
        query.check(payload)

    expected: dict[str, list[list[int]]] = {}
    for release in query.releases:
        width = 1 if len(release.shape) == 1 else release.shape[1]
        expected[release.name] = [[0] * width for _ in range(ITEMS)]
    first, second = np.triu_indices(1 + terms.rank_of(round))
    given = codec.decode(terms, round, payloads)
    for user in range(60):
        x = [codec.constant_units(terms), *given.rows[user].tolist()] if round >= 2 else [1]
        for item, w, y in zip(
            given.items[user].tolist(), given.weights[user].tolist(), given.targets[user].tolist(), strict=True
        ):
            names = [release.name for release in query.releases]
            for place, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
                expected[names[0]][item][place] += w * x[a] * x[b]
            for place, value in enumerate(x if len(names) > 1 else []):
                expected[names[1]][item][place] += w * y * value

    shuffled = query.new_sum()
    order = np.random.default_rng(6).permutation(60)
    for part in np.array_split(order, 7):
        shuffled.add([payloads[place] for place in part])
    assert shuffled.count == 60
    step = query.releases[0].step
    for name, total in shuffled.totals().items():
        wanted = np.array(expected[name]).reshape(total.shape)
        if round == 0:
            wanted = (wanted / step).astype(np.int64)  # the step is a power of two
        assert total.dtype == np.int64
        np.testing.assert_array_equal(total, wanted)


def test_the_grid_of_counts_is_at_most_a_64th_of_the_noise_and_sums_lie_on_it(define: Define) -> None:
    for epsilon in (0.5, 8.0, 39.0):
        definition = define(items=ITEMS, places=PLACES, epsilon=epsilon)
        query = DpamQuery(Terms.of(definition), 0)
        (release,) = query.releases
        assert release.noise_std / release.step >= 64
        change = change_of(query, payload_of(definition, 0))["counts"]
        assert sorted(np.flatnonzero(change).tolist()) == [0, 3, 7, 29]
        assert change.max() == 1.0


def test_off_diagonals_of_the_gram_matrix_have_less_noise_by_the_root_of_two(define: Define) -> None:
    definition = define(rank=3)
    gram, targets = DpamQuery(Terms.of(definition), 2).releases
    bound = 1 + definition.dpam.row_clip**2
    first, second = np.triu_indices(4)
    assert gram.shape == (30, 10)
    np.testing.assert_allclose(gram.column_std[first == second], definition.dpam.gram_noise * bound)
    np.testing.assert_allclose(gram.column_std[first != second], definition.dpam.gram_noise * bound / math.sqrt(2))
    assert targets.shape == (30, 4)
    np.testing.assert_allclose(
        targets.column_std, definition.dpam.target_noise * math.sqrt(bound) * definition.dpam.factor_vector_clip
    )


def test_planned_releases_are_those_of_the_queries(define: Define) -> None:
    definition = define(rank=2, steps=3)
    planned = algorithm_for(definition).planned_releases()
    names = [tuple(release.name for release in releases) for releases in planned]
    assert names == [("counts",), ("mass", "sums")] + [("gram", "targets")] * 3
    with pytest.raises(ConfigurationError, match="round=5"):
        DpamQuery(Terms.of(definition), 5)

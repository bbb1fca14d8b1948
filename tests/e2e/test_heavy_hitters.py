"""Frequent words by rounds over prefixes: bounded, exact on the platform, and found where they are frequent."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World
from hypothesis import given, settings, strategies as st

import device_runtime
import odp
from device_runtime.host.provision import provision
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.heavy_hitters.results import WordResults
from odp.algorithms.heavy_hitters.terms import Terms, chosen
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges
from odp.algorithms.seam import LocalRows
from odp.crypto.signing import SigningKey
from odp.datasets import Ratings
from odp.datasets.texts import UsersTexts
from odp.evaluation.noise import NoNoise
from odp.privacy.accounting import epsilon
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.tasks.file import parse_task, render_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

DEVICES = 24
WORDS = ("cab",) * 10 + ("cad",) * 8 + ("a",) * 3 + ("bad word", "toolong", "")


def task(users: int = DEVICES, **changes: object) -> odp.HeavyHitters:
    given: dict[str, object] = {
        "name": "new-words", "population": "films", "alphabet": "abcd", "length": 4, "prefixes": 6,
        "events": odp.Events(service="keyboard", type="typed", item="word"),
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-5),
        "cohort": odp.Cohort(minimum=20, goal=users, round_seconds=600),
    }  # fmt: skip
    return odp.HeavyHitters(**{**given, **changes})  # type: ignore[arg-type]


def of_words(words: tuple[str, ...]) -> UsersTexts:
    return UsersTexts(np.array(words), np.arange(len(words) + 1, dtype=np.int64))


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=70), max_size=30), seed=st.integers(0, 2**63), round=st.integers(0, 3))
def test_a_device_moves_a_sum_by_one_cell_at_most_whatever_it_holds(texts: list[str], seed: int, round: int) -> None:
    algorithm = algorithm_for(task(length=5).definition())
    state = algorithm.server().start()
    dense = algorithm.server().broadcast(state).dense
    dense["prefixes"][:] = np.float32(np.nan) if seed % 2 else np.float32(2.0)
    rows = LocalRows(np.zeros(len(texts), np.int64), np.ones(len(texts)), {"text": np.array(texts, dtype=np.str_)})
    slices = Slices(round, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), dense)
    payload, local = algorithm.client().contribute(slices, {"words": rows}, round=round, seed=seed)
    query = algorithm.query(round)
    assert isinstance(query, DenseQuery)
    query.check(payload)
    numbers = np.frombuffer(payload, dtype="<i4")
    assert np.count_nonzero(numbers) <= 1
    assert set(numbers.tolist()) <= {0, query.grid.units}
    assert local == b""


def test_all_rounds_together_cost_exactly_the_budget() -> None:
    algorithm = algorithm_for(task(privacy=odp.UserLevelDP(epsilon=1, delta=1e-5), length=8).definition())
    rounds = range(len(algorithm.planned_releases()))
    events = [event for number in rounds for event in round_charges(algorithm.query(number), None)]
    assert len(events) > 3
    assert 1.0 - 1e-5 < epsilon(events, delta=1e-5) <= 1.0


def test_without_noise_the_words_above_the_threshold_are_found_with_their_counts() -> None:
    people = of_words(WORDS * 40)
    asked = task(len(WORDS) * 40, prefixes=6)
    run = odp.simulate(asked, people, noise=False)
    assert isinstance(run.results, WordResults)
    assert {word: one.value for word, one in run.results.items()} == {"cab": 400.0, "cad": 320.0, "a": 120.0}
    assert run.results.top(1) == ["cab"]
    assert run.results.epsilon == math.inf


def test_frequent_words_of_a_population_are_found_with_noise() -> None:
    """20,000 users, epsilon 2: the 25 most frequent words lie over 8 deviations above the threshold."""
    people = odp.data.synthetic_words(n_users=20_000, vocabulary=2_000, seed=4)
    asked = odp.HeavyHitters(
        name="words", events=odp.Events(service="keyboard", type="typed", item="word"),
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-6), cohort=odp.Cohort(minimum=100, goal=20_000),
    )  # fmt: skip
    run = odp.simulate(asked, people, seed=3)
    found, true = run.results, people.frequencies()
    assert isinstance(found, WordResults)
    best = list(true)[:25]
    assert set(best) <= set(found)
    assert set(found) <= set(true)
    # 25 intervals at 99.99 %: one would miss in 400 runs; the seed is fixed.
    for word in best:
        one = found.estimate(word, 0.9999)
        assert one.low <= true[word] <= one.high
    assert 2.0 - 1e-4 < run.epsilon <= 2.0
    assert len(run.charges) == 11
    again = odp.simulate(asked, people, seed=3).results
    assert again.to_json() == found.to_json()
    assert len(list(found.lines(0.95, run.exact))) >= 1  # type: ignore[arg-type]


def test_the_data_of_one_user_choose_no_word_of_another() -> None:
    people = UsersTexts(np.array(["ab", "cd", "a", "b", "c", "d", "dd"]), np.array([0, 2, 2, 4, 7], dtype=np.int64))
    without = UsersTexts(np.array(["ab", "cd", "c", "d", "dd"]), np.array([0, 2, 2, 2, 5], dtype=np.int64))
    words, seeds = Terms.of(task().definition()).words, np.arange(4, dtype=np.uint64) + np.uint64(7)
    one, other = (chosen(each.users(), words.numbers(each.texts)[1], seeds) for each in (people, without))
    assert [one[1], other[1], other[2]] == [-1, -1, -1]
    for user in (0, 3):
        assert people.texts[one[user]] == without.texts[other[user]]


def test_devices_find_the_words_of_the_simulation(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    """With noise off, the integers of every round are equal, so the words are."""
    provision(tmp_path / "devices", ratings)
    for user, word in enumerate(WORDS):
        with device_runtime.Store.open(device_runtime.store_path(tmp_path / "devices", user)) as store:
            for time, text in enumerate((word, 5, word)):
                store.data("keyboard").add_event("typed", {"word": text}, time=1e9 + time)
    world = World(tmp_path, noise=NoNoise()).start(stack)
    asked = task(threshold=0.5)
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(ratings))
    assert [one.contributions for one in status.rounds] == [DEVICES] * 3
    found = handle.results(ReferenceValues.load(world.reference_values))
    assert isinstance(found, WordResults)
    assert {word: one.value for word, one in found.items()} == {"cab": 10.0, "cad": 8.0, "a": 3.0}
    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert [found.contributions for found in report.tasks] == [(DEVICES,) * 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphabet": "abA"}, "lower case"), ({"alphabet": "aa"}, "distinct"), ({"alphabet": ""}, "alphabet"),
        ({"alphabet": 3}, "alphabet"), ({"length": 1}, "length=1"), ({"prefixes": 0}, "prefixes=0"),
        ({"threshold": math.nan}, "threshold=nan"), ({"events": "typed"}, "odp.Events"),
        ({"events": odp.Events(service="k", type="t", item="word", buckets=5)}, "one column of texts"),
        ({"events": odp.Events(service="k", type="t", item="word", aggregate="count")}, "aggregate='count'"),
        ({"cohort": odp.Cohort(minimum=40, aggregation="secagg+")}, "aggregation='secagg"),
    ],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        task(**change)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.heavy_hitters.words.__setattr__("alphabet", "bB"), "lower case"),
        (lambda d: d.heavy_hitters.words.__setattr__("length", 40), "length=40"),
        (lambda d: d.heavy_hitters.__setattr__("first", 9), "first=9"),
        (lambda d: d.heavy_hitters.dense.__setattr__("clip", 2.0), "clip"),
        (lambda d: d.heavy_hitters.words.__setattr__("table", "ratings"), "events"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task().definition()
    definition.developer_key = SigningKey.generate().public
    check_definition(definition)
    spoil(definition)
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        check_definition(definition)


def test_a_task_file_says_the_same() -> None:
    assert parse_task(render_task(task())) == task()


def test_other_populations_and_unknown_words_are_refused(ratings: Ratings) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match="UsersTexts"):
        odp.simulate(task(), ratings)
    with pytest.raises(odp.errors.DataError, match="1 to 48 users"):
        odp.simulate(task(), of_words(WORDS * 3))
    with pytest.raises(KeyError):
        odp.simulate(task(), of_words(WORDS), noise=False).results["missing"]

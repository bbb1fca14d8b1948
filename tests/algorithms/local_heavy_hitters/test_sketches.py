"""Words by hashed sketches: private by themselves, unbiased, found where very many people share them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

import odp
from odp.algorithms.heavy_hitters.results import WordResults
from odp.algorithms.local_heavy_hitters.algorithm import TaskAlgorithm
from odp.algorithms.local_seam import SourceWords
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.datasets.texts import UsersTexts
from odp.evaluation.noise import SeededNoise
from odp.evaluation.users import user_seeds
from odp.privacy.events import LocalReport
from odp.privacy.mechanisms.random_source import RandomSource
from odp.tasks.file import parse_task, render_task
from odp.v1 import common_pb2

SHARES = {"cab": 0.3, "bad": 0.2, "a": 0.1, "dada": 0.05}
USERS = 20_000


def task(epsilon: float = 3.0, **changes: object) -> odp.HeavyHitters:
    given: dict[str, object] = {
        "name": "words", "alphabet": "abcd", "length": 4, "prefixes": 20, "trust": "local",
        "events": odp.Events(service="keyboard", type="typed", item="word"),
        "privacy": odp.UserLevelDP(epsilon=epsilon, delta=1e-6), "cohort": odp.Cohort(minimum=100, goal=USERS),
    }  # fmt: skip
    return odp.HeavyHitters(**{**given, **changes})  # type: ignore[arg-type]


def people() -> UsersTexts:
    """Shares as above; of the others, half have a word of their own kind and half have none."""
    texts = [word for word, share in SHARES.items() for _ in range(round(share * USERS))]
    random = np.random.default_rng(3)
    rare = ["".join(row) for row in random.choice(list("abcd"), size=((USERS - len(texts)) // 2, 4)).tolist()]
    counts = np.concatenate((np.ones(len(texts) + len(rare)), np.zeros(USERS - len(texts) - len(rare))))
    return UsersTexts(np.array(texts + rare), np.concatenate(([0], np.cumsum(counts))).astype(np.int64))


def algorithm_of(asked: odp.HeavyHitters) -> TaskAlgorithm:
    algorithm = algorithm_for(asked.definition())
    assert isinstance(algorithm, TaskAlgorithm)
    return algorithm


def test_words_of_many_people_are_found_with_their_counts() -> None:
    """Intervals at 99.99 % for four words; words beside them would be above 5 deviations by chance."""
    run = odp.simulate(task(), people(), seed=2)
    found = run.results
    assert isinstance(found, WordResults)
    assert found.top(3) == ["cab", "bad", "a"]
    for word, share in SHARES.items():
        one = found.estimate(word, 0.9999)
        assert one.low <= share * USERS <= one.high
        assert one.high - one.low < 0.25 * USERS
    assert set(found) == set(SHARES)
    assert run.exact["cab"].value == 0.3 * USERS  # type: ignore[index]
    assert run.charges == (LocalReport("reports", run.epsilon),)
    assert run.epsilon <= 3.0
    assert run.delta == 0.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_no_report_is_more_probable_for_one_person_than_epsilon_allows(epsilon: float) -> None:
    """The laws of the answers of three people within one function, 100,000 reports each: bounds at 99.9999 %."""
    terms, users = algorithm_of(task(epsilon)).terms(), 100_000
    laws = []
    for number, word in enumerate(("cab", "dada", "")):
        user = np.arange(users) if word else np.zeros(0, dtype=np.int64)
        texts = np.full(len(user), word or "x")
        cells = terms.reports(user, texts, SourceWords(RandomSource(SeededNoise(number)), users), users=users)
        laws.append(np.bincount(cells, minlength=terms.cells).reshape(-1, terms.buckets))
    largest = 0.0
    for one in laws:
        for other in laws:
            # Where the two hash apart, all answers of the first to its own buckets, and of the second to the same ones.
            own = one.argmax(axis=1)
            rows = np.arange(len(own))
            first, second = int(one[rows, own].sum()), int(other[rows, own].sum())
            low = binomtest(first, users).proportion_ci(0.999999, method="exact").low
            high = binomtest(second, users).proportion_ci(0.999999, method="exact").high
            assert math.log(low / high) <= epsilon
            largest = max(largest, math.log(first / second))
    assert largest > 0.3 * epsilon
    assert terms.response.epsilon <= epsilon


def test_devices_and_a_simulation_make_the_same_reports() -> None:
    algorithm, texts = algorithm_of(task()), people()
    seeds = user_seeds(texts, 4)
    counts = np.zeros(algorithm.cells, dtype=np.int64)
    source = RandomSource(SeededNoise(1))
    kept = b""
    for user in range(0, USERS, 500):
        own = texts.texts[texts.offsets[user] : texts.offsets[user + 1]]
        data = {"words": LocalRows(np.zeros(len(own), np.int64), np.ones(len(own)), {"text": own})}
        report = algorithm.report(b"", data, source=source)
        algorithm.judge([]).check(report)
        counts[int.from_bytes(report, "little")] += 1
        kept += report
    algorithm.judge([]).check(algorithm.empty_report(b"", source=source))
    found = algorithm.answers_of_summary(algorithm.summary([], kept), reports=int(counts.sum()))
    assert found.to_json() == algorithm.answers_of_counts(counts).to_json()
    assert algorithm.simulated(texts, seeds=seeds)[0].contributions == USERS
    with pytest.raises(odp.errors.DataError, match="one seed per user"):
        algorithm.simulated(texts, seeds=seeds[1:])


def test_no_reports_have_no_words() -> None:
    algorithm = algorithm_of(task())
    assert len(algorithm.answers_of_summary(algorithm.summary([], b""), reports=0)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.local_heavy_hitters.depths.append(9), "depths="),
        (lambda d: d.local_heavy_hitters.__setattr__("buckets", 1), "buckets=1"),
        (lambda d: d.local_heavy_hitters.__setattr__("hashes", 0), "hashes=0"),
        (lambda d: d.local_heavy_hitters.__setattr__("report_epsilon", 4.0), "report_epsilon=4.0"),
        (lambda d: d.privacy.__setattr__("delta", 1e-6), "an epsilon alone"),
        (lambda d: d.local_heavy_hitters.__setattr__("threshold", -1.0), "threshold=-1.0"),
        (lambda d: d.local_heavy_hitters.words.__setattr__("alphabet", "aa"), "distinct"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task().definition()
    algorithm_for(definition).check_for_devices()
    spoil(definition)
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        algorithm_for(definition).check_for_devices()


def test_a_task_file_says_the_same_and_masks_are_refused() -> None:
    assert parse_task(render_task(task())) == task()
    with pytest.raises(odp.errors.ConfigurationError, match="aggregation='masked'"):
        task(cohort=odp.Cohort(minimum=100, aggregation="masked"))
    with pytest.raises(odp.errors.ConfigurationError, match="trust='shuffle'"):
        task(trust="shuffle")

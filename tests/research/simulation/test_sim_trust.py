"""The same questions under three trust models: what is stated, and what each costs in accuracy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import odp
from odp.algorithms.local_statistics.results import ReportResults
from odp.datasets.ratings import Ratings
from odp.privacy.events import LocalReport, ShuffledReports
from odp.privacy.shuffling import amplified_epsilon
from odp.tasks.file import parse_task, render_task

USERS = 4000
TRUSTS = ("aggregator", "shuffle", "local")


@pytest.fixture(scope="module")
def people() -> Ratings:
    return odp.data.synthetic_movielens(n_users=USERS, n_items=12, ratings_per_user=5, seed=3)


def task(trust: str, **changes: object) -> odp.Statistics:
    given: dict[str, object] = {
        "name": "films", "trust": trust,
        "queries": {
            "seen": odp.Histogram(bins=12),
            "stars": odp.Histogram(low=0.5, high=5.5, bins=5, counts="shares"),
            "mean": odp.Mean(low=0.5, high=5.5),
        },
        "privacy": odp.UserLevelDP(epsilon=1, delta=1e-6),
        "cohort": odp.Cohort(minimum=USERS, goal=USERS),
    }  # fmt: skip
    return odp.Statistics(**{**given, **changes})  # type: ignore[arg-type]


def test_less_trust_costs_accuracy_in_every_answer(people: Ratings) -> None:
    widths = []
    for trust in TRUSTS:
        run = odp.simulate(task(trust), people, seed=2)
        (low, high), spread = run.results["mean"].interval(), np.mean(run.results["seen"].std)  # type: ignore[index]
        middle = run.results["stars"].quantile(0.5)  # type: ignore[index]
        widths.append((spread, high - low))
        # Intervals at 95 %, widened by half: 1 in 300 would miss; the seed is fixed.
        off = abs(run.results["mean"].value - run.exact["mean"].value)  # type: ignore[index]
        assert off < 0.75 * (high - low), trust
        assert middle.low <= run.exact["stars"].quantile(0.5).value <= middle.high, trust  # type: ignore[index]
        assert 0.99 < run.epsilon <= 1.0
    for first, second in itertools.pairwise(widths):
        assert all(2.0 * better < worse for better, worse in zip(first, second, strict=True)), widths


def test_shuffled_reports_state_both_guarantees(people: Ratings) -> None:
    run = odp.simulate(task("shuffle"), people, seed=2)
    (event,) = run.charges
    assert isinstance(event, ShuffledReports)
    assert isinstance(run.results, ReportResults)
    assert (event.reports, event.choices) == (0.9 * USERS, 0)
    assert run.results.report_epsilon == event.epsilon0 > 2.0
    assert run.epsilon == pytest.approx(amplified_epsilon(event.epsilon0, event.reports, 1e-6), rel=1e-5)
    told = run.results.to_json()
    assert (told["report_epsilon"], told["epsilon"]) == (event.epsilon0, run.epsilon)
    assert "private by itself" in str(list(run.results.lines(0.95, run.exact))[-1])  # type: ignore[arg-type]


def test_a_single_question_of_one_answer_is_hidden_better(people: Ratings) -> None:
    alone = {"stars": task("shuffle").queries["stars"]}
    general = odp.simulate(task("shuffle"), people).results
    single = odp.simulate(task("shuffle", queries=alone), people)
    assert single.charges[0].choices == 6  # type: ignore[union-attr]
    assert single.results.report_epsilon >= general.report_epsilon  # type: ignore[attr-defined]


def test_corrupt_reports_hide_nobody(people: Ratings) -> None:
    none, half = (
        odp.simulate(task("shuffle", corrupt_fraction=fraction), people).results.report_epsilon  # type: ignore[attr-defined]
        for fraction in (0.0, 0.5)
    )
    assert half < none


def test_local_reports_are_pure_and_state_it(people: Ratings) -> None:
    run = odp.simulate(task("local"), people, seed=2)
    assert isinstance(run.results, ReportResults)
    assert run.results.report_epsilon == run.epsilon <= 1.0
    assert run.charges == (LocalReport("reports", run.epsilon),)
    assert run.results.delta == run.delta == task("local").definition().privacy.delta == 0.0
    again = odp.simulate(task("local"), people, seed=2).results["seen"].counts  # type: ignore[union-attr]
    np.testing.assert_array_equal(again, run.results["seen"].counts)  # type: ignore[union-attr]


@pytest.mark.parametrize("trust", TRUSTS)
def test_without_noise_all_three_show_the_same(people: Ratings, trust: str) -> None:
    run = odp.simulate(task(trust), people, noise=False)
    exact = odp.simulate(task("local"), people).exact
    assert run.epsilon == math.inf
    np.testing.assert_allclose(run.results["seen"].counts, exact["seen"].counts, atol=0.5)  # type: ignore[union-attr, index]
    assert run.results["mean"].value == pytest.approx(exact["mean"].value, abs=1e-3)  # type: ignore[union-attr, index]


def test_too_few_users_for_the_charge_are_refused(people: Ratings) -> None:
    with pytest.raises(odp.errors.DataError, match="at least 4000 users"):
        odp.simulate(task("shuffle"), people.select_users(range(USERS - 1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trust": "nobody"}, "trust='nobody'"),
        ({"trust": "local", "corrupt_fraction": 0.1}, "corrupt_fraction=0.1"),
        ({"corrupt_fraction": 1.0}, "corrupt_fraction=1.0"),
        ({"cohort": odp.Cohort(minimum=40, aggregation="secagg+")}, "aggregation='secagg"),
        ({"trust": "local", "queries": {"items": odp.Histogram(bins=1_000_000)}}, "cells"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        task(str(change.pop("trust", "shuffle")), **change)


def test_reports_that_a_server_keeps_are_the_answers(people: Ratings) -> None:
    from odp.algorithms.local_statistics.algorithm import TaskAlgorithm
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.seam import LocalRows
    from odp.evaluation.noise import SeededNoise
    from odp.privacy.mechanisms.random_source import RandomSource

    algorithm = algorithm_for(task("local").definition())
    assert isinstance(algorithm, TaskAlgorithm)
    judge, source = algorithm.judge([]), RandomSource(SeededNoise(4))
    counts, kept = np.zeros(algorithm.terms().cells, dtype=np.int64), b""
    for user in range(50):
        items, values = people.user(user)
        own = algorithm.data_of(LocalRows(items.astype(np.int64), values.astype(np.float64)))
        report = algorithm.report(b"", own, source=source)
        judge.check(report)
        counts[int.from_bytes(report, "little")] += 1
        kept += report
    judge.check(algorithm.empty_report(b"", source=source))
    summary = algorithm.summary([], kept)
    found = algorithm.answers_of_summary(summary, reports=50)
    assert found.contributions == 50
    assert found.to_json() == algorithm.answers({"reports": counts}, contributions=50, epsilon=1.0).to_json()  # type: ignore[dict-item]
    for damaged, reports in ((summary[:-1], 50), (summary, 49), (summary[:-1] + b"\xff", 50)):
        with pytest.raises(odp.errors.ConfigurationError, match="Expected"):
            algorithm.answers_of_summary(damaged, reports=reports)
    with pytest.raises(odp.errors.ConfigurationError, match="nothing to be drawn"):
        algorithm.report(b"row", own, source=source)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_task_file_says_the_same(trust: str) -> None:
    asked = task(trust, **({"corrupt_fraction": 0.25} if trust == "shuffle" else {}))
    assert parse_task(render_task(asked)) == asked


def test_a_mistake_in_a_task_file_is_shown_where_it_is() -> None:
    text = render_task(task("shuffle"))
    for old, new, message in (
        ('trust = "shuffle"', 'trust = "shufle"', "f.toml:3: .*did you mean 'shuffle'"),
        ('trust = "shuffle"', 'trust = "local"\ncorrupt_fraction = 0.1', "f.toml:4: Expected corrupt_fraction=0.1"),
        ('trust = "shuffle"', 'trusts = "local"', "'trusts' in f.toml:3; did you mean 'trust'"),
    ):
        assert old in text
        with pytest.raises(odp.errors.ConfigurationError, match=message):
            parse_task(text.replace(old, new), where="f.toml")

"""Reports that are private by themselves: their law, their estimates and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

import odp
from odp.algorithms.dense.population import records_of
from odp.algorithms.dense.records import Records
from odp.algorithms.local_seam import HashedWords, SourceWords, below
from odp.algorithms.local_statistics.config import resolve
from odp.algorithms.local_statistics.layout import _worst_variance, best_levels
from odp.algorithms.local_statistics.population import counts_of
from odp.algorithms.local_statistics.results import answers_of, exact_results, results_of_counts
from odp.algorithms.local_statistics.terms import REPORT, ReportTerms
from odp.algorithms.seam import LocalRows
from odp.algorithms.shuffled_statistics.query import ReportsSum
from odp.algorithms.statistics.results import HistogramResult, MeanResult
from odp.algorithms.statistics.terms import kind_of
from odp.datasets import Ratings
from odp.errors import ContributionRefused
from odp.evaluation.noise import SeededNoise
from odp.evaluation.users import user_seeds
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON
from odp.v1 import local_statistics_pb2

QUERIES = {
    "seen": odp.Histogram(bins=6),
    "spread": odp.Histogram(low=0, high=8, bins=5, counts="shares"),
    "often": odp.Histogram(low=0, high=8, bins=3, counts="records", clip=3.0),
    "length": odp.Mean(low=0, high=6, max_records=3),
}


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    return odp.data.synthetic_movielens(n_users=40, n_items=8, ratings_per_user=5, seed=2)


def terms(epsilon: float = 2.0, **queries: odp.Histogram | odp.Mean) -> ReportTerms:
    asked = [query.to_proto(name) for name, query in (queries or QUERIES).items()]
    return ReportTerms.of(resolve(asked, report_epsilon=epsilon))


def people(users: int, seed: int = 1) -> Records:
    """0 to 4 records each, of 6 items."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 5, users)
    items = np.concatenate([np.sort(random.choice(6, count, replace=False)) for count in counts])
    return Records(np.repeat(np.arange(users), counts), items, random.gamma(2.0, 1.0, len(items)), users)


def _own(asked: ReportTerms, records: Records) -> dict[str, Records]:
    return dict.fromkeys((part.name for part in asked.parts), records)


def test_estimates_are_unbiased_and_intervals_cover() -> None:
    """100 repetitions of 15 numbers: 4.5 standard errors each (false alarm 1e-4 in all); coverage above 90 %, where
    95 % is expected of 1,500 intervals (below 1e-9, were they independent).
    """
    asked, records, repetitions = terms(), people(4000), 100
    exact = exact_results(asked.parts, _own(asked, records))
    deviations: dict[str, list[np.ndarray]] = {name: [] for name in QUERIES}
    covered: list[np.ndarray] = []
    for seed in range(repetitions):
        cells = asked.reports(_own(asked, records), SourceWords(RandomSource(SeededNoise(seed)), 4000), users=4000)
        found = results_of_counts(asked.parts, np.bincount(cells, minlength=asked.cells), users=4000)
        for name, result in found.items():
            truth = exact[name]
            if isinstance(result, MeanResult) and isinstance(truth, MeanResult):
                off = [(result.total - truth.total) / result.std, (result.weight - truth.weight) / result.weight_std]  # type: ignore[operator]
                low, high = result.interval()
                covered.append(np.array([low <= truth.value <= high]))
            elif isinstance(result, HistogramResult) and isinstance(truth, HistogramResult):
                off = list((result.counts - truth.counts) / result.std)
                lows, highs = result.interval()
                covered.append((lows <= truth.counts) & (truth.counts <= highs))
            deviations[name].append(np.array(off))
    for name, values in deviations.items():
        found_off, spread = np.mean(values, axis=0), np.std(values, axis=0)
        assert (np.abs(found_off) < 4.5 / math.sqrt(repetitions)).all(), name
        assert (spread < 1.45).all(), name  # a share of 100 deviates by 0.071: 6 of these
        assert (spread > 0.55).all(), name
    assert np.concatenate(covered).mean() > 0.9


def test_quantiles_of_a_local_histogram_cover_the_true_one() -> None:
    """60 repetitions at 95 %, all edges at once: fewer than 50 come by chance below 1e-4."""
    asked, records = terms(hours=odp.Histogram(low=0, high=8, bins=16, counts="shares")), people(4000)
    truth = exact_results(asked.parts, _own(asked, records))["hours"].quantile(0.5).value  # type: ignore[union-attr]
    held = 0
    for seed in range(60):
        cells = asked.reports(_own(asked, records), SourceWords(RandomSource(SeededNoise(seed)), 4000), users=4000)
        found = results_of_counts(asked.parts, np.bincount(cells, minlength=asked.cells), users=4000)["hours"]
        estimate = found.quantile(0.5)  # type: ignore[union-attr]
        held += estimate.low <= truth <= estimate.high
        assert estimate.high - estimate.low < 8.0
    assert held >= 50


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_no_report_is_more_probable_for_one_person_than_epsilon_allows(name: str, epsilon: float) -> None:
    """The law of the reports of three people, 60,000 each, cell by cell: the 99.9999 % lower bound of each ratio's
    logarithm stays below epsilon, and the best cell comes within a tenth of it.
    """
    asked, users = terms(epsilon, **{name: QUERIES[name]}), 60_000
    nothing = Records(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), users)
    laws = []
    for number, value in enumerate((0.0, 7.9, None)):
        each = np.repeat(np.arange(users), 3)
        own = nothing if value is None else Records(each, np.tile([0, 1, 2], users), np.full(3 * users, value), users)
        cells = asked.reports(_own(asked, own), SourceWords(RandomSource(SeededNoise(number)), users), users=users)
        laws.append(np.bincount(cells, minlength=asked.cells))
    largest = 0.0
    for one in laws:
        for other in laws:
            best = int(np.argmax((one + 1) / (other + 1)))
            low = binomtest(int(one[best]), users).proportion_ci(0.999999, method="exact").low
            high = binomtest(int(other[best]), users).proportion_ci(0.999999, method="exact").high
            assert math.log(low / high) <= epsilon
            largest = max(largest, math.log((one[best] + 1) / (other[best] + 1)))
    assert largest > 0.85 * epsilon
    assert asked.epsilon <= epsilon


def test_a_device_and_a_simulation_make_the_same_report_of_the_same_words(ratings: Ratings) -> None:
    asked, seeds = terms(), user_seeds(ratings, 3)
    total = np.zeros(asked.cells, dtype=np.int64)
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        rows = LocalRows(items.astype(np.int64), values.astype(np.float64))
        report = asked.report(dict.fromkeys(QUERIES, rows), HashedWords(seeds[user : user + 1]))
        asked.check(report)
        total[int.from_bytes(report, "little")] += 1
    np.testing.assert_array_equal(total, counts_of(asked, ratings, seeds=seeds))


def test_the_data_of_one_user_change_no_report_of_another(ratings: Ratings) -> None:
    asked, seeds = terms(), user_seeds(ratings, 3)
    own = records_of(ratings, 0, ratings.n_users)
    kept = own.user != 5
    without = Records(own.user[kept], own.item[kept], own.value[kept], own.users)
    one, other = (
        asked.reports(_own(asked, records), HashedWords(seeds), users=own.users) for records in (own, without)
    )
    assert set(np.flatnonzero(one != other)) <= {5}


def test_values_that_are_not_finite_or_out_of_range_still_give_a_report() -> None:
    asked = terms()
    rows = LocalRows(np.array([-5, 2, 10**9]), np.array([math.nan, math.inf, -1e300]))
    for seed in range(50):
        asked.check(asked.report(dict.fromkeys(QUERIES, rows), SourceWords(RandomSource(SeededNoise(seed)), 1)))
        asked.check(asked.empty(SourceWords(RandomSource(SeededNoise(seed)), 1)))


def test_what_is_no_report_is_refused() -> None:
    asked = terms()
    for report in (b"", b"123", bytes(5), asked.cells.to_bytes(4, "little")):
        with pytest.raises(ContributionRefused):
            asked.check(report)
    asked.check((asked.cells - 1).to_bytes(4, "little"))


def test_an_oblivious_count_is_the_count() -> None:
    random = np.random.default_rng(2)
    payloads = [int(cell).to_bytes(4, "little") for cell in random.integers(0, 50, 700)]
    plain, oblivious = ReportsSum(50, oblivious=False), ReportsSum(50, oblivious=True)
    for each in (plain, oblivious):
        each.add(payloads[:300])
        each.add(payloads[300:])
    np.testing.assert_array_equal(plain.totals()["reports"], oblivious.totals()["reports"])
    assert plain.count == oblivious.count == plain.totals()["reports"].sum() == 700


def test_uniform_integers_are_drawn_again_where_a_word_is_beyond_the_last_whole_range() -> None:
    class Planted:
        def words(self, purpose: int, attempt: int = 0) -> np.ndarray:
            return np.array([2**64 - 1, 5, 2**64 - 1] if attempt < 2 else [7, 8, 9], dtype=np.uint64)

    assert below(Planted(), 0, 10).tolist() == [7, 5, 9]
    assert below(Planted(), 0, 16).tolist() == [15, 5, 15]


def test_levels_have_the_least_worst_variance_that_the_paper_states() -> None:
    """Bhowmick et al., a number in [0, 1] by k-ary response: worst variance 1.1707 at epsilon 1, .24998 at 2."""
    often = QUERIES["often"].to_proto("often")
    assert best_levels(kind_of(often)[1], 1.0) == 1
    assert _worst_variance(1, 1, 1.0) == pytest.approx(1.1707, abs=2e-3)
    assert min(_worst_variance(levels, 1, 2.0) for levels in (1, 2, 3)) <= 0.2502
    assert best_levels(kind_of(often)[1], 8.0) in range(10, 18)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 2.0 * LARGEST_EPSILON, math.nan])
def test_an_epsilon_beyond_randomised_response_is_refused(epsilon: float) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match="report_epsilon"):
        terms(epsilon)


def test_too_many_cells_are_refused() -> None:
    with pytest.raises(odp.errors.ConfigurationError, match="cells"):
        terms(items=odp.Histogram(bins=2**20))


def test_levels_that_a_query_cannot_have_are_refused() -> None:
    asked = resolve([QUERIES["spread"].to_proto("spread")], report_epsilon=1.0)
    asked.levels[0] = 2
    with pytest.raises(odp.errors.ConfigurationError, match="levels=2"):
        ReportTerms.of(asked)
    with pytest.raises(odp.errors.ConfigurationError, match="1 to 64 queries"):
        ReportTerms.of(local_statistics_pb2.ReportTerms(report_epsilon=1.0))


def test_no_reports_have_no_answers_but_wide_intervals() -> None:
    asked = terms()
    found = answers_of(asked, np.zeros(asked.cells, dtype=np.int64), epsilon=2.0, delta=0.0)
    assert found.contributions == 0
    assert found.mean("length").interval() == (0.0, 6.0)
    with pytest.raises(odp.errors.ConfigurationError, match="numbers of reports"):
        answers_of(asked, np.zeros(3, dtype=np.int64), epsilon=2.0, delta=0.0)
    assert REPORT.itemsize == 4

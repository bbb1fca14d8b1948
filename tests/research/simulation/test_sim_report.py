"""Diagnostics add up, the record holds no rating and reads back, and the page stands alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.dpam.experiment import diagnose
from odp.algorithms.seam import NoisyTensors
from odp.datasets import random_split, synthetic_movielens
from odp.datasets.ratings import merge
from odp.errors import DataError
from odp.evaluation.baselines import Baselines, baseline_outcomes, dp_item_means, dp_item_user_bias_predictions, rmse
from odp.research.simulation.engine import RunResult, simulate
from odp.research.simulation.presets import preset_task
from odp.research.simulation.record import NoisyTotals, noisy_totals, plain, read_record, run_record, write_record
from odp.research.simulation.report import render_html

DATA = synthetic_movielens(n_users=400, n_items=30, ratings_per_user=12)
SPLIT = random_split(DATA, seed=1)


def finished(epsilon: float) -> tuple[RunResult, list[NoisyTotals]]:
    totals: list[NoisyTotals] = []
    task = dataclasses.replace(
        preset_task("auto", DATA, epsilon=epsilon, delta=1e-4),
        model=odp.MatrixFactorization(items=30, rank=12),
        training=odp.DPAM(steps=4, bias_share=0.25, user_ridge=0.75, item_ridge=2.0),
    )
    run = simulate(task, SPLIT, on_release=lambda tensors, releases: totals.extend(noisy_totals(tensors, releases)))
    return run, totals


@pytest.fixture(scope="module")
def run() -> tuple[RunResult, list[NoisyTotals]]:
    return finished(20.0)


@pytest.fixture(scope="module")
def record(run: tuple[RunResult, list[NoisyTotals]]) -> dict[str, Any]:
    result, totals = run
    return run_record(
        kind="simulation",
        task=result.task,
        split=SPLIT,
        rounds=[entry.to_json() for entry in result.rounds],
        charges=result.charges,
        metrics=result.metrics,
        seed=1,
        baselines=asdict(Baselines.of(baseline_outcomes(result.task, SPLIT, seed=1))),
        diagnostics=diagnose(result.task, SPLIT, result.model),
        totals=totals,
        notes=["a note with <angle> brackets"],
    )


def test_buckets_cover_everything_once_and_their_errors_make_the_whole(
    run: tuple[RunResult, list[NoisyTotals]],
) -> None:
    found = diagnose(run[0].task, SPLIT, run[0].model)
    for buckets, members in ((found.popularity, 30), (found.activity, 400)):
        assert sum(bucket.members for bucket in buckets) == members
        assert sum(bucket.ratings for bucket in buckets) == SPLIT.test.n_ratings
        squares = sum(bucket.ratings * (bucket.rmse or 0.0) ** 2 for bucket in buckets)
        assert math.sqrt(squares / SPLIT.test.n_ratings) == pytest.approx(run[0].metrics["test_rmse"])
        assert all(one.high <= two.low for one, two in itertools.pairwise(buckets))
        others = sum(bucket.ratings * (bucket.baseline_rmse or 0.0) ** 2 for bucket in buckets)
        means = dp_item_means(run[0].task, SPLIT.train, seed=1)
        expected = rmse(
            dp_item_user_bias_predictions(merge(SPLIT.train, SPLIT.validation), SPLIT.test, means), SPLIT.test
        )
        assert math.sqrt(others / SPLIT.test.n_ratings) == pytest.approx(expected)


def test_lists_of_ratings_leave_histories_out_and_count_what_was_liked(
    run: tuple[RunResult, list[NoisyTotals]],
) -> None:
    found = diagnose(run[0].task, SPLIT, run[0].model).exposure
    assert found is not None
    assert (found.cutoff, found.users) == (20, 400)
    assert [fifth.members for fifth in found.fifths] == [6] * 5
    liked = np.bincount(SPLIT.test.items[SPLIT.test.values >= 4], minlength=30)
    counts = run[0].model.keyed.rows[:, 0]
    top = counts > np.quantile(counts, 0.8)
    assert found.fifths[-1].relevance == pytest.approx(liked[top].sum() / liked.sum())
    # 20 of 30 items are on a list, and its owner's 11 or so are not: nearly every item is shown.
    assert found.model.coverage > 0.9
    assert 0.0 < found.model.gini < 0.5


def test_clipping_counts_what_the_bounds_cut(run: tuple[RunResult, list[NoisyTotals]]) -> None:
    shares = diagnose(run[0].task, SPLIT, run[0].model).clipping
    assert shares.users_over_bound == shares.ratings_left_out == 0.0  # the bound is all items
    assert shares.targets_clipped == 0.0  # no target is further off than the declared range
    assert 0.5 < shares.users_shortened < 1.0
    task = run[0].task
    tight = dataclasses.replace(task, training=dataclasses.replace(task.training, factor_target_clip=0.5))
    assert 0.1 < diagnose(tight, SPLIT, run[0].model).clipping.targets_clipped < 0.9


def test_totals_of_releases_are_close_to_the_truth_and_rows_keep_their_clip(
    run: tuple[RunResult, list[NoisyTotals]],
) -> None:
    """Counts in total are within 6 standard deviations of their noise: false alarms below 1e-8."""
    result, totals = run
    counts = totals[0]
    assert (counts.round, counts.name) == (0, "counts")
    assert abs(counts.total - SPLIT.train.n_ratings) < 6 * counts.std
    squares = [total.mean_square_row for total in totals if total.name == "gram"]
    limit = result.task.definition().dpam.row_clip ** 2
    assert squares
    assert all(square is not None and 0.0 < square < 1.5 * limit for square in squares)
    assert all(total.mean_square_row is None for total in totals if total.name != "gram")


def test_mean_square_row_is_read_from_the_diagonal_alone(run: tuple[RunResult, list[NoisyTotals]]) -> None:
    from odp.algorithms.registry import algorithm_for

    task = run[0].task
    releases = algorithm_for(task.definition()).query(2).releases
    width = task.model.rank + 1
    matrix = np.diag([2.0, *([3.0] * (width - 1))]) + 5.0 * (1 - np.eye(width))
    packed = np.tile(matrix[np.triu_indices(width)], (30, 1))
    tensors = {release.name: np.zeros(release.shape) for release in releases} | {"gram": packed}
    found = {total.name: total for total in noisy_totals(NoisyTensors(2, tensors, 1), releases)}
    assert found["gram"].mean_square_row == pytest.approx(1.5 * (width - 1))
    assert found["gram"].total == pytest.approx(60.0)


def test_the_record_reads_back_and_holds_settings_charges_and_versions(record: dict[str, Any], tmp_path: Path) -> None:
    path = write_record(tmp_path / "new", record)
    again = read_record(tmp_path / "new")
    assert again == read_record(path) == json.loads(json.dumps(plain(record)))
    assert again["epsilon"] == pytest.approx(20.0, rel=1e-6)
    assert sum(entry["share"] for entry in again["spending"]) == pytest.approx(1.0)
    assert len(again["charges"]) == len(again["spending"])
    assert {"odp", "python", "numpy", "scipy"} <= again["versions"].keys()
    assert again["resolved"]["count_noise_std"] > 0


def test_the_record_holds_no_array_of_the_size_of_the_population(record: dict[str, Any]) -> None:
    def longest(value: Any) -> int:
        if isinstance(value, dict):
            return max(map(longest, value.values()), default=0)
        return max([len(value), *map(longest, value)]) if isinstance(value, list) else 0

    assert longest(plain(record)) < 30


class Page(HTMLParser):
    """Collects what a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_names_every_section(record: dict[str, Any]) -> None:
    text = render_html(plain(record))
    page = Page()
    page.feed(text)
    assert page.loads
    assert all(source.startswith("#") for source in page.loads)
    assert not re.search(r"https?://|<script|@import", text)
    for section in ("Error and ε by round", "spent on", "popularity", "activity", "clipped", "Settings", "Versions"):
        assert section in page.text
    assert "What it recommends: coverage and popularity bias" in page.text
    assert "Who gains, who loses, against the baseline" in page.text
    assert page.text.count("imulated: evaluated on the data without noise, not a private release") >= 2
    assert "Simulation only" in page.text
    assert "From the noisy releases alone" in page.text
    assert "a note with <angle> brackets" in page.text
    assert f"{record['test_rmse']:.4f}" in page.text
    shown = next(one for one in record["diagnostics"]["intervals"]["curve"] if one["level"] == 0.9)
    assert "How sure it is" in page.text
    assert f"{100 * shown['covered']:.1f} %" in page.text


def test_groups_that_lose_are_named_and_a_record_of_before_has_no_such_sections(record: dict[str, Any]) -> None:
    worse = plain(record)
    first = worse["diagnostics"]["activity"][0]
    first["baseline_rmse"] = first["rmse"] - 0.1
    span = f"{first['low']:.0f}" if first["low"] == first["high"] else f"{first['low']:.0f}–{first['high']:.0f}"
    page = render_html(worse)
    assert f"Worse off than with DP item mean + user bias: users with {span}" in page
    assert "-0.1000" in page
    del worse["diagnostics"]["exposure"]
    for bucket in (*worse["diagnostics"]["activity"], *worse["diagnostics"]["popularity"]):
        del bucket["baseline_rmse"]
    before = render_html(worse)
    assert "popularity bias" not in before
    assert "against the baseline" not in before


def test_a_run_without_noise_says_that_nothing_is_protected() -> None:
    result, totals = finished(math.inf)
    bare = run_record(
        kind="simulation",
        task=result.task,
        split=SPLIT,
        rounds=[entry.to_json() for entry in result.rounds],
        charges=result.charges,
        metrics=result.metrics,
        seed=1,
        noise=result.noisy,
        totals=totals,
    )
    assert bare["epsilon"] is None
    assert "nothing is protected" in render_html(plain(bare))


def test_a_folder_without_a_run_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="odp simulate --output"):
        read_record(tmp_path)
    for content, message in (("{", "not JSON"), ("[1]", "not a run"), ('{"format": "odp-run-1"}', "lacks 'kind'")):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(DataError, match=message):
            read_record(tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        write_record(tmp_path / "run.json" / "below", {})

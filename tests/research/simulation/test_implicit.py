"""Whole runs on implicit feedback: better than popularity on data with tastes, honest about budgets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import odp
from odp.algorithms.implicit.experiment import (
    diagnose_ranking,
    dp_popularity,
    ials_ceiling,
    strong_generalisation,
    training_split,
)
from odp.cli.main import app
from odp.datasets import Ratings, random_split
from odp.evaluation.ranking import strong_split
from odp.research.simulation.engine import simulate
from odp.research.simulation.methods import contest_for
from odp.research.simulation.presets import preset_task

USERS, ITEMS, TOWNS = 1000, 120, 6


@pytest.fixture(scope="module")
def towns() -> Ratings:
    """Everyone visits places of its own town, some more popular than others; one visit in ten is elsewhere."""
    generator = np.random.default_rng(7)
    mask = np.zeros((USERS, ITEMS), dtype=bool)
    popular = generator.permutation(np.geomspace(1.0, 0.1, ITEMS))
    for user in range(USERS):
        weight = popular * np.where(np.arange(ITEMS) % TOWNS == user % TOWNS, 1.0, 0.1 / TOWNS)
        mask[user, generator.choice(ITEMS, 10, replace=False, p=weight / weight.sum())] = True
    user, item = np.nonzero(mask)
    return Ratings.from_triples(
        "towns", user, item, np.ones(len(user)), low=0, high=1, n_users=USERS, n_items=ITEMS, implicit=True
    )


def task_of(epsilon: float, **config: object) -> odp.Task:
    return odp.Task(
        name="towns",
        model=odp.MatrixFactorization(items=ITEMS, rank=8),
        data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=1e-6, max_items_per_user=12),
        training=odp.ImplicitDPAM(**config),  # type: ignore[arg-type]
        cohort=odp.Cohort(minimum=100, goal=USERS),
    )


def test_a_private_model_beats_private_popularity_and_stays_below_the_ceiling(towns: Ratings) -> None:
    split = random_split(towns, seed=1)
    task = task_of(8.0)
    found = simulate(task, split, seed=1)
    assert found.epsilon == pytest.approx(8.0, rel=1e-6)
    ours = found.metrics["test_ranking"].recall[20]
    assert ours > 1.5 * dp_popularity(task, split, seed=1).recall[20]
    assert ours < ials_ceiling(task, split, seed=1).recall[20] + 0.02
    assert "test_rmse" not in found.metrics
    assert found.rounds[-1].metrics["validation_recall"] > 0.3
    assert len(found.charges) == 5
    summary = found.to_json()
    assert summary["test_rmse"] is None
    assert summary["test_ranking"] == found.metrics["test_ranking"].to_json()


def test_public_features_of_items_find_more_and_have_a_row_of_their_own(towns: Ratings) -> None:
    """Fixed seeds: no false alarms. The features say which town a place is in."""
    flags = np.eye(TOWNS, dtype=np.float32)[np.arange(ITEMS) % TOWNS]
    named = tuple(f"town {town}" for town in range(TOWNS))
    known = dataclasses.replace(towns, features=flags, feature_names=named)
    methods = ["DPAM", "DPAM with public item features"]
    found = odp.compare(known, epsilons=(0.3,), delta=1e-6, seeds=1, methods=methods)
    bare, told = (found.mean(method, 0) for method in methods)
    assert told > 1.5 * bare
    assert methods[1] not in [method.name for method in contest_for(towns, preset="auto").methods]


def test_users_who_took_no_part_are_served_as_well(towns: Ratings) -> None:
    split = strong_split(towns, held_out=200, seed=2)
    task = task_of(8.0)
    found = simulate(task, training_split(split), seed=1)
    assert "test_ranking" not in found.metrics
    ranking = strong_generalisation(task, split, found.model)
    assert ranking.users == 200
    assert ranking.recall[20] > 0.4


def test_the_same_seed_repeats_a_run(towns: Ratings) -> None:
    first, second = (simulate(task_of(4.0, steps=1), towns, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.model.keyed.rows, second.model.keyed.rows)


def test_data_and_training_of_different_kinds_are_refused() -> None:
    parts = {
        "name": "mixed",
        "model": odp.MatrixFactorization(items=10, rank=2),
        "privacy": odp.UserLevelDP(epsilon=1, delta=1e-6),
    }
    with pytest.raises(odp.errors.ConfigurationError, match=r"odp\.ImplicitDPAM with odp\.ImplicitData"):
        odp.Task(data=odp.ImplicitData(), training=odp.DPAM(), **parts)  # type: ignore[arg-type]
    with pytest.raises(odp.errors.ConfigurationError, match=r"odp\.DPAM with odp\.RatingsData"):
        odp.Task(data=odp.RatingsData(), training=odp.ImplicitDPAM(), **parts)  # type: ignore[arg-type]


def test_a_task_file_holds_an_implicit_task(tmp_path: Path) -> None:
    from odp.tasks.file import parse_task, render_task

    task = task_of(2.0)
    text = render_task(task)
    assert 'kind = "implicit"' in text
    assert 'kind = "implicit_dpam"' in text
    assert parse_task(text) == task


def test_the_preset_of_implicit_data_is_an_implicit_task(towns: Ratings) -> None:
    task = preset_task("auto", towns, epsilon=8.0, delta=1e-6)
    assert isinstance(task.data, odp.ImplicitData)
    assert task.privacy.max_items_per_user == 30
    with pytest.raises(odp.errors.DataError, match="preset auto"):
        preset_task("ml-1m", towns, epsilon=8.0, delta=1e-6)


def answer(*arguments: str) -> dict[str, Any]:
    run = CliRunner().invoke(app, [*arguments, "--json"])
    assert run.exit_code == 0, run.output
    found: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("held_out", [None, 100])
def test_a_run_becomes_a_page_with_curves_buckets_charges_and_clips(
    towns: Ratings, tmp_path: Path, held_out: int | None
) -> None:
    towns.save(tmp_path / "towns.npz")
    options = ("--preset", "auto", "--epsilon", "8", "--output", str(tmp_path / "run"))
    strong = () if held_out is None else ("--held-out", str(held_out))
    simulated = answer("simulate", "--data", str(tmp_path / "towns.npz"), *options, *strong)
    assert simulated["epsilon"] == pytest.approx(8.0, rel=1e-6)
    if held_out is None:
        assert set(simulated["baselines"]) == {"dp_popularity", "ials_ceiling"}
        popularity = simulated["baselines"]["dp_popularity"]
        assert simulated["test_ranking"]["recall@20"] > popularity["recall@20"]
    told = answer("report", str(tmp_path / "run"))
    ranking = simulated["test_ranking" if held_out is None else "strong_ranking"]
    assert told["test_rmse"] is None
    assert told["test_ranking"] == ranking
    values = json.loads(Path(told["json"]).read_text())
    assert values["spending"] == simulated["spending"]
    assert values["baselines"] == simulated.get("baselines")
    assert [total["name"] for total in values["noisy_totals"]] == ["counts"] + 12 * ["targets"]
    text = Path(told["html"]).read_text(encoding="utf-8")
    assert f"test Recall@20</dt><dd>{ranking['recall@20']:.4f}" in text
    for section in (
        "items by popularity",
        "users by activity",
        "From the noisy releases alone",
        "Versions",
    ):
        assert section in text
    assert "items counted per user" in text
    assert ("Baselines on the same split" in text) == (held_out is None)
    exposed = values["diagnostics"]["exposure"]
    assert exposed["baseline"]["coverage"] < exposed["model"]["coverage"] <= 1.0
    assert "coverage and popularity bias" in text
    assert "not a private release" in text
    assert "RMSE" not in text


def test_buckets_cover_everything_once_and_make_the_whole(towns: Ratings) -> None:
    split = random_split(towns, seed=1)
    task = task_of(20.0, steps=1)
    found = simulate(task, split, seed=1)
    counts = found.item_counts
    diagnosed = diagnose_ranking(
        task, found.model, found.history, split.test, item_counts=counts, baseline_counts=counts
    )
    for buckets, members in ((diagnosed.popularity, ITEMS), (diagnosed.activity, USERS)):
        assert sum(bucket.members for bucket in buckets) == members
        assert sum(bucket.targets for bucket in buckets) == split.test.n_ratings


def test_recall_by_popularity_counts_the_items_that_recall_by_user_averages(towns: Ratings) -> None:
    split = random_split(towns, seed=1)
    task = task_of(20.0, steps=1)
    found = simulate(task, split, seed=1)

    def hits(users: list[int], by: str) -> float:
        parts = found.history.select_users(users), split.test.select_users(users)
        counts = found.item_counts
        diagnosed = diagnose_ranking(task, found.model, *parts, item_counts=counts, baseline_counts=counts)
        return sum(bucket.targets * (bucket.recall or 0.0) for bucket in getattr(diagnosed, by))

    users = list(range(40))
    together = hits(users, "popularity")
    assert together == pytest.approx(sum(hits([user], "activity") for user in users))
    assert 0 < together < split.test.counts()[users].sum()


def test_noisy_totals_survive_an_interruption(towns: Ratings, tmp_path: Path) -> None:
    task = task_of(8.0, steps=2)
    whole = simulate(task, towns, seed=1)
    assert [total.name for total in whole.totals] == ["counts", "targets", "targets"]

    class Interrupted(Exception):
        pass

    def stop(result: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        simulate(task, towns, seed=1, on_round=stop, checkpoint=tmp_path)
    resumed = simulate(task, towns, seed=1, checkpoint=tmp_path)
    assert resumed.totals == whole.totals
    np.testing.assert_array_equal(resumed.item_counts, whole.item_counts)


# CI ranks the model between popularity and the ceiling, above.
@pytest.mark.proof
def test_compare_ranks_every_method_by_recall_and_ndcg(towns: Ratings, tmp_path: Path) -> None:
    towns.save(tmp_path / "towns.npz")
    options = ("--epsilons", "8,inf", "--seeds", "1", "--output", str(tmp_path / "compared"))
    found = answer("compare", "--data", str(tmp_path / "towns.npz"), *options)
    assert [metric["name"] for metric in found["metrics"]] == ["test Recall@20", "test NDCG@20"]
    means = {method["name"]: method["scores"] for method in found["methods"]}
    ceilings = [f"{name}, all data in one place" for name in ("iALS", "item kNN", "EASE")]
    assert list(means) == ["DP popularity", "DP-SGD on the item table", "DPAM", *ceilings]
    for metric in ("test Recall@20", "test NDCG@20"):
        popular, descent, ours, ceiling, *others = (means[name][metric]["mean"] for name in means)
        assert popular[0] < ours[0] - 0.1
        assert popular[0] < descent[0] < ours[0] + 0.03
        # One place is held out of a user: the standard error of a mean over 1,000 of them is .01.
        assert ours[0] < ceiling[0] + 0.03
        assert all(mean[0] == mean[1] for mean in (ceiling, *others))
        assert all(popular[0] < mean[0] for mean in others)
    assert json.loads((tmp_path / "compared" / "comparison.json").read_text()) == found
    assert (tmp_path / "compared" / "comparison.png").stat().st_size > 1000

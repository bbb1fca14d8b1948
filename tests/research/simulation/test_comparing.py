"""A comparison runs every method on the same splits, once where ε does not matter."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.datasets import Split, synthetic_movielens
from odp.errors import ConfigurationError, DataError, StateError
from odp.evaluation.trials import Outcome
from odp.research.simulation.comparing import Comparison, chosen_rows, compare, comparison_rows, draw_comparison
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS, RMSE, Contest, Method, contest_for
from odp.research.simulation.presets import preset_task
from odp.tasks.task import Task

DATA = synthetic_movielens(n_users=150, n_items=30, ratings_per_user=12)


class Counted:
    """A method that notes what it was asked, and scores 1 / ε + seed."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, int]] = []

    def __call__(self, task: Task, split: Split, seed: int) -> Outcome:
        self.asked.append((task.privacy.epsilon, seed, split.test.n_ratings))
        return Outcome((1.0 / task.privacy.epsilon + seed,))


def test_methods_that_spend_run_at_every_budget_and_others_once_per_seed() -> None:
    spends, local = Counted(), Counted()
    methods = (Method("spends", "ε, δ", True, spends), Method("local", "none", False, local))
    found = compare(DATA, epsilons=[4.0, 1.0], delta=1e-4, seeds=(1, 2), contest=Contest((RMSE,), methods))
    assert [(epsilon, seed) for epsilon, seed, _ in spends.asked] == [(1.0, 1), (4.0, 1), (1.0, 2), (4.0, 2)]
    assert [seed for _, seed, _ in local.asked] == [1, 2]
    assert found.epsilons == (1.0, 4.0)
    assert found.mean("spends", 0) == 2.5
    assert found.scores["local"] == {"test RMSE": [[1.25, 2.25], [1.25, 2.25]]}, "of the largest budget"


def test_table_json_and_figure_hold_every_method(tmp_path: Path) -> None:
    methods = (Method("spends", "ε, δ", True, Counted()), Method("local", "none", False, Counted()))
    found = compare(DATA, epsilons=[2.0, math.inf], delta=1e-4, seeds=(1,), contest=Contest((RMSE,), methods))
    assert comparison_rows(found, RMSE).row_count == 2
    value = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert value["epsilons"] == [2.0, "inf"]
    assert value["metrics"] == [{"name": "test RMSE", "lower_is_better": True}]
    assert [(entry["name"], entry["scores"]["test RMSE"]["mean"]) for entry in value["methods"]] == [
        ("spends", [1.5, 1.0]),
        ("local", [1.0, 1.0]),
    ]
    draw_comparison(tmp_path / "new" / "picture.png", found)
    assert (tmp_path / "new" / "picture.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_rows_of_ratings_are_the_baselines_and_this_model_with_and_without_features() -> None:
    found = compare(DATA, epsilons=[2.0], delta=1e-4, seeds=(1,))
    names = [method.name for method in contest_for(DATA, preset="auto").methods]
    assert list(found.scores) == names
    assert len(names) == len(RATING_METHODS) + 3, "with features, item kNN and EASE"
    for better in ("ALS, all data in one place", "DPAM"):
        assert found.mean(better, 0) < found.mean("global mean", 0) - 0.05


def test_without_public_features_there_is_no_row_for_them() -> None:
    bare = dataclasses.replace(DATA, features=None, feature_names=None, titles=None)
    names = [method.name for method in contest_for(bare, preset="auto").methods]
    assert names[: len(RATING_METHODS)] == [method.name for method in RATING_METHODS]
    assert "DPAM with public item features" not in names


def test_repeated_or_missing_budgets_and_seeds_are_refused() -> None:
    for epsilons, seeds in (([], (1,)), ([1.0, 1.0], (1,)), ([1.0], ()), ([1.0], (1, 1))):
        with pytest.raises(ConfigurationError, match="distinct"):
            compare(DATA, epsilons=epsilons, delta=1e-4, seeds=seeds)


def test_a_method_without_a_score_is_named() -> None:
    broken = Method("broken", "none", True, lambda task, split, seed: Outcome((math.nan,)))
    with pytest.raises(DataError, match="broken has no finite score"):
        compare(DATA, epsilons=[1.0], delta=1e-4, seeds=(1,), contest=Contest((RMSE,), (broken,)))


def _two() -> Comparison:
    methods = (Method("spends", "ε, δ", True, Counted()), Method("local", "none", False, Counted()))
    return compare(DATA, epsilons=[1.0, 2.0], delta=1e-4, seeds=2, contest=Contest((RMSE,), methods))


def test_a_comparison_reads_as_a_table_and_as_rows(tmp_path: Path) -> None:
    found = _two()
    assert repr(found).splitlines()[:5] == [
        "test RMSE on synthetic, mean of 2 seeds, δ = 0.0001; lower is better",
        "method  privacy    ε = 1    ε = 2",
        "------  -------  -------  -------",
        "spends  ε, δ     *2.5000  *2.0000",
        "local   none      2.0000   2.0000",
    ]
    assert "<td>*2.5000</td>" in found._repr_html_()
    spends, *_, local = found.rows
    assert spends == {
        "method": "spends", "privacy": "ε, δ", "metric": "test RMSE", "epsilon": 1.0, "mean": 2.5,
        "std": pytest.approx(math.sqrt(0.5)), "seeds": 2, "settings": "",
    }  # fmt: skip
    assert (local["method"], local["epsilon"]) == ("local", None)
    with found.to_csv(tmp_path / "new" / "scores.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [(row["method"], row["epsilon"], row["mean"]) for row in read] == [
        ("spends", "1.0", "2.5"), ("spends", "2.0", "2.0"), ("local", "", "2.0"),
    ]  # fmt: skip
    with pytest.raises(DataError, match="cannot be written"):
        found.to_csv(tmp_path)


def test_the_page_of_a_comparison_has_its_verdict_and_fetches_nothing(tmp_path: Path) -> None:
    page = _two().report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "spends is the best private method at ε&nbsp;=&nbsp;2: test RMSE 2.0000" in page
    assert '<tr class=ours><th scope="row">spends</th>' in page
    assert '<td class="n">2.5000</td>' in page
    assert not re.search(r"https?://|<script|<link", page)


def _moved(score: float, moved: float) -> Method:
    """A private method of one score, each second user of which moves it up, and the others down."""
    influence = moved * np.resize([1.0, -1.0], 100)
    return Method(f"moved by {moved:g}", "ε, δ", True, lambda task, split, seed: Outcome((score,), {}, influence))


@pytest.mark.parametrize(("apart", "level"), [(0.04, True), (0.06, False)])
def test_a_verdict_names_methods_that_only_chance_sets_apart(apart: float, level: bool, tmp_path: Path) -> None:
    """100 users of .0051 - .0001 each: the standard error is .05."""
    contest = Contest((RMSE,), (_moved(1.0, 0.0001), _moved(1.0 + apart, 0.0051)))
    arguments = {"epsilons": [1.0, 2.0], "delta": 1e-4, "seeds": 2, "contest": contest}
    compared = compare(DATA, **arguments, resume=tmp_path / "runs")
    assert compared.standard_errors == {"moved by 0.0051": pytest.approx(0.05, rel=0.01)}
    best = "moved by 0.0001 is the best private method at ε = 2: test RMSE 1.0000"
    assert compared.verdict == best + (
        f", by no more than chance: level with it are moved by 0.0051 {1 + apart:.4f}" if level else ""
    )
    assert compared.verdict in repr(compared)
    assert compared.to_json()["verdict"] == compared.verdict
    again = compare(DATA, **arguments, resume=tmp_path / "runs")
    assert again.standard_errors == pytest.approx(compared.standard_errors, rel=1e-6)


def test_finished_runs_of_a_version_before_have_no_standard_errors_and_damaged_ones_are_named(tmp_path: Path) -> None:
    arguments = {
        "epsilons": [2.0], "delta": 1e-4, "seeds": 1, "contest": Contest((RMSE,), (_moved(1.0, 0.1), _moved(1.1, 0.2))),
        "resume": tmp_path / "runs",
    }  # fmt: skip
    assert compare(DATA, **arguments).standard_errors
    whole = (tmp_path / "runs").read_text()
    (tmp_path / "runs").write_text(re.sub(r', "influence": "[^"]*"', "", whole))
    assert compare(DATA, **arguments).standard_errors == {}
    (tmp_path / "runs").write_text(re.sub(r'"influence": "[^"]*"', '"influence": "no base64"', whole))
    with pytest.raises(StateError, match="runs is damaged"):
        compare(DATA, **arguments)


def test_methods_are_chosen_by_name_and_a_name_of_a_data_set_is_loaded() -> None:
    found = compare(
        "synthetic:n_users=150,n_items=30,ratings_per_user=12",
        epsilons=[2.0], delta=1e-4, seeds=[4], methods=["DPAM", "user mean"],
    )  # fmt: skip
    assert list(found.scores) == ["user mean", "DPAM"]
    assert found.seeds == (4,)
    with pytest.raises(ConfigurationError, match="'DPAM'"):
        compare(DATA, methods=["DPAMM"])
    with pytest.raises(ConfigurationError, match="in a list"):
        compare(DATA, methods="DPAM")


def test_a_given_task_is_trained_at_every_budget_with_its_own_settings() -> None:
    asked: list[Task] = []

    def score(task: Task, split: Split, seed: int) -> Outcome:
        asked.append(task)
        return Outcome((1.0,))

    task = dataclasses.replace(preset_task("auto", DATA, epsilon=3.0, delta=1e-5), name="mine")
    contest = Contest((RMSE,), (Method("spends", "ε, δ", True, score),))
    found = compare(DATA, epsilons=[1.0, 3.0], seeds=1, task=task, contest=contest)
    assert [one.privacy.epsilon for one in asked] == [1.0, 3.0]
    assert {one.name for one in asked} == {"mine"}
    assert (found.delta, asked[1]) == (1e-5, task)
    assert (
        "DPAM with public item features"
        not in compare(DATA, epsilons=[2.0], seeds=1, task=task, methods=["DPAM", "global mean"]).scores
    )
    with pytest.raises(DataError, match="set items=30 in the model"):
        compare(DATA, task=dataclasses.replace(task, model=dataclasses.replace(task.factorization, items=31)))


def test_a_data_frame_is_compared_as_it_is() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odp-platform[data]'")
    frame = pandas.DataFrame({"user": DATA.users(), "item": DATA.items, "rating": DATA.values.astype(float)})
    found = compare(frame, epsilons=[2.0], delta=1e-4, seeds=1, methods=["user mean"])
    assert list(found.scores) == ["user mean"]
    assert found.rows[0]["mean"] == pytest.approx(1.0, abs=0.3)


def test_settings_that_methods_chose_are_in_every_form(tmp_path: Path) -> None:
    def tuned(task: Task, split: Split, seed: int) -> Outcome:
        return Outcome((1.0,), {"rank": 4, "row_ridge": 0.5 if seed < 3 else 2.0})

    methods = (Method("tuned", "ε, δ", True, tuned), Method("fixed", "none", False, Counted()))
    arguments = {"epsilons": [1.0, 8.0], "delta": 1e-4, "seeds": 3, "contest": Contest((RMSE,), methods)}
    found = compare(DATA, **arguments, resume=tmp_path / "runs")
    text = "rank 4, row ridge 0.5 (2 of 3 seeds); rank 4, row ridge 2 (1 of 3 seeds)"
    assert found.chosen("tuned", 0) == text
    assert found.chosen("fixed", 0) == ""
    assert [row["settings"] for row in found.rows] == [text, text, ""]
    assert text in repr(found)
    assert chosen_rows(found).row_count == 2
    assert text in found.report(tmp_path / "page.html").read_text(encoding="utf-8")
    tuned_json, fixed_json = json.loads(json.dumps(found.to_json()))["methods"]
    assert tuned_json["settings"][1][2] == {"rank": 4, "row_ridge": 2.0}
    assert fixed_json["settings"] == []
    again = compare(DATA, **arguments, resume=tmp_path / "runs")
    assert (again.scores, again.settings) == (found.scores, found.settings), "finished runs keep their settings"
    with pytest.raises(StateError, match="runs"):
        compare(DATA, **arguments, split_name="time:0.9", resume=tmp_path / "runs")


def test_without_tuned_methods_nothing_is_said_of_settings() -> None:
    found = _two()
    assert not found.tuned
    assert "settings" not in repr(found)


def _scores(score: float, settings: dict[str, float] | None = None) -> Any:
    return lambda task, split, seed: Outcome((score,), settings or {})


def test_where_another_method_wins_the_verdict_names_the_task_that_runs_it_and_that_task_can_be_made() -> None:
    """Settings are those that most seeds chose at the largest ε."""
    methods = {method.name: method for method in (*RATING_METHODS, *RANKING_METHODS) if method.task is not None}
    chosen = {
        "DP item mean": {"items_per_user": 30, "spread": 0.125},
        "DP item mean + user bias": {"items_per_user": 30, "ridge": 2.0},
        "DP-SGD on the item table": {"rank": 4, "steps": 3, "unobserved_weight": 0.05},
        "DP popularity": {},
        "DP item covariance": {"head": 100, "mean_share": 0.6},
    }
    assert chosen.keys() == methods.keys()
    chosen_of_ratings = {"rank": 4, "steps": 16, "rate": 4.0}
    rivals = [(method, False) for method in RATING_METHODS] + [(method, True) for method in RANKING_METHODS]
    tried = 0
    for method, implicit in rivals:
        if method.task is None:
            continue
        settings = chosen[method.name]
        if method.name == "DP-SGD on the item table" and not implicit:
            settings = chosen_of_ratings
        winner = dataclasses.replace(method, score=_scores(0.5, settings))
        contest = Contest((RMSE,), (winner, Method("DPAM", "ε, δ", True, _scores(1.0))))
        said = compare(DATA, epsilons=[2.0], delta=1e-4, seeds=2, contest=contest).verdict
        if method.name == "DP item covariance":
            assert said.endswith("No task runs DP item covariance on devices")
            continue
        rank, training = re.search(r"with rank=(\d+), training=(odp\..*\))$", said).groups()  # type: ignore[union-attr]
        task = odp.Task(
            name="winner",
            model=odp.MatrixFactorization(items=30, rank=int(rank)),
            data=odp.ImplicitData() if implicit else odp.RatingsData(low=1, high=5),
            privacy=odp.UserLevelDP(epsilon=2.0, delta=1e-4, max_items_per_user=30),
            training=eval(training, {"odp": odp}),
            cohort=odp.Cohort(minimum=20, goal=150),
        )
        if isinstance(task.training, odp.DPSGD):
            assert task.definition().item_gradients.steps == settings["steps"]
        tried += 1
    assert tried == 5
    own = Contest((RMSE,), (Method("DPAM", "ε, δ", True, _scores(0.5)), Method("other", "ε, δ", True, _scores(1.0))))
    assert compare(DATA, epsilons=[2.0], delta=1e-4, seeds=1, contest=own).verdict.endswith("test RMSE 0.5000")


def test_the_row_of_a_task_by_another_training_is_named_by_it() -> None:
    task = odp.Task(
        name="gradients",
        model=odp.MatrixFactorization(items=30, rank=2),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-4, max_items_per_user=30),
        training=odp.DPSGD(rounds=4),
        cohort=odp.Cohort(minimum=20, goal=150),
    )
    own = "odp.DPSGD, as in the task"
    compared = compare(DATA, epsilons=[8.0], delta=1e-4, seeds=1, methods=[own, "user mean"], task=task)
    assert {row["method"] for row in compared.rows} == {own, "user mean"}
    assert compared.verdict.startswith(f"{own} is the best private method")
    assert not compared.chosen(own, 0)

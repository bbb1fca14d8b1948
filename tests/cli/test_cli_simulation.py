"""`odp simulate --preset`, `compare`, `report` and `tune`, as a person calls them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from odp.cli.main import app
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError

DATA = "synthetic:n_users=200,n_items=30,ratings_per_user=12"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return found


def refusal(*arguments: str) -> BaseException:
    error = call(*arguments).exception
    assert error is not None
    return error


def test_a_preset_needs_no_task_file_and_says_where_the_budget_went() -> None:
    found = answer("simulate", "--data", DATA, "--preset", "ml-1m", "--epsilon", "4", "--delta", "1e-4", "--seed", "2")
    assert 0.5 < found["test_rmse"] < 1.5
    assert found["epsilon"] == pytest.approx(4.0, rel=1e-6)
    assert [entry["name"] for entry in found["spending"]][:3] == ["masses", "devices", "gradients"]
    assert sum(entry["share"] for entry in found["spending"]) == pytest.approx(1.0)
    assert found["baselines"]["als_ceiling"] < found["baselines"]["global_mean"]


def test_the_table_of_shares_is_printed() -> None:
    result = call("simulate", "--data", DATA, "--preset", "auto", "--delta", "1e-4", "--no-baselines")
    assert result.exit_code == 0
    assert "what ε was spent on" in result.stdout
    assert "10.0 %" in result.stdout


def test_an_infinite_epsilon_and_no_noise_spend_nothing() -> None:
    for extra in (("--epsilon", "inf"), ("--epsilon", "4", "--no-noise")):
        found = answer("simulate", "--data", DATA, "--preset", "auto", "--delta", "1e-4", "--no-baselines", *extra)
        assert found["epsilon"] is None
        assert found["spending"] == found["charges"] == []


def test_weak_signal_is_told_on_the_terminal_and_in_the_json() -> None:
    found = answer(
        "simulate", "--data", DATA, "--preset", "auto", "--epsilon", "0.05", "--delta", "1e-4", "--no-baselines"
    )
    assert any("the noise exceeds the signal" in note for note in found["notes"])


def test_a_file_and_a_preset_exclude_each_other(tmp_path: Path) -> None:
    assert "not both" in str(refusal("simulate", str(tmp_path / "task.toml"), "--preset", "auto"))
    assert "--epsilon goes with --preset" in str(refusal("simulate", str(tmp_path / "task.toml"), "--epsilon", "2"))
    assert "did you mean 'auto'" in str(refusal("simulate", "--data", DATA, "--preset", "auot"))


@dataclasses.dataclass(frozen=True)
class Reported:
    """A run that was simulated with a page, and of which `odp report` made one: its answers, and both pages."""

    simulated: dict[str, Any]
    reported: dict[str, Any]
    pages: tuple[str, str]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    root = tmp_path_factory.mktemp("reported")
    folder, page = root / "run", root / "new" / "page.html"
    options = ("--preset", "auto", "--delta", "1e-4", "--output", str(folder), "--report", str(page))
    simulated = answer("simulate", "--data", DATA, *options)
    report = answer("report", str(folder))
    pages = page.read_text(encoding="utf-8"), Path(report["html"]).read_text(encoding="utf-8")
    return Reported(simulated, report, pages)


@pytest.mark.slow
def test_a_run_becomes_a_page_when_it_is_simulated_and_by_report(reported: Reported) -> None:
    simulated, found = reported.simulated, reported.reported
    assert found["test_rmse"] == simulated["test_rmse"]
    first, second = reported.pages
    assert first.startswith("<!doctype html>")
    assert first == second
    assert json.loads(Path(found["json"]).read_text())["spending"] == simulated["spending"]


def test_the_report_of_a_resumed_run_is_that_of_one_never_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odp.research.simulation import record

    options = ("simulate", "--data", DATA, "--preset", "auto", "--epsilon", "20", "--delta", "1e-4", "--no-baselines")
    answer(*options, "--output", str(tmp_path / "whole"), "--checkpoint", str(tmp_path / "saved"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("all rounds were done before")

    monkeypatch.setattr("odp.algorithms.dpam.population.DpamPopulation.contribute", refuse)
    answer(*options, "--output", str(tmp_path / "again"), "--checkpoint", str(tmp_path / "saved"))
    whole, again = (record.read_record(tmp_path / name) for name in ("whole", "again"))
    assert len(again["noisy_totals"]) == len(again["charges"]) > 3
    assert again == whole


def test_a_report_of_nothing_is_one_line(tmp_path: Path) -> None:
    error = refusal("report", str(tmp_path))
    assert isinstance(error, DataError)
    assert "\n" not in str(error)
    (tmp_path / "run.json").write_text(
        json.dumps(
            {"format": "odp-run-1"}
            | dict.fromkeys(
                ("kind", "task", "data", "rounds", "spending", "delta", "test_rmse", "test_ranking", "versions")
            )
        )
    )
    assert "malformed" in str(refusal("report", str(tmp_path)))


@pytest.mark.slow
def test_compare_writes_table_figure_and_json(tmp_path: Path) -> None:
    found = answer(
        "compare", "--data", DATA, "--epsilons", "8,2", "--delta", "1e-4", "--seeds", "1", "--output", str(tmp_path)
    )
    assert found["epsilons"] == [2.0, 8.0]
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    assert (tmp_path / "comparison.png").stat().st_size > 1000


@pytest.mark.parametrize("text", ["1,x", "0", "1,,2", "nan"])
def test_a_list_of_budgets_that_is_none_is_refused(text: str) -> None:
    error = refusal("compare", "--data", DATA, "--epsilons", text)
    assert isinstance(error, ConfigurationError)
    assert "epsilons=" in str(error)


def test_tune_is_free_on_proxy_data_and_refuses_private_data_without_a_charge(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    found = answer("tune", "--proxy", DATA, "--delta", "1e-4", "--trials", "2", "--output", str(path))
    assert found["epsilon"] == 0.0
    assert json.loads(path.read_text()) == found
    assert "--charge" in str(refusal("tune", "--data", DATA))
    assert "--charge needs --data" in str(refusal("tune", "--charge"))
    assert "not both" in str(refusal("tune", "--data", DATA, "--proxy", DATA))


def test_without_a_task_the_preset_for_the_data_is_taken() -> None:
    options = ("--data", DATA, "--delta", "1e-4", "--no-baselines")
    assert answer("simulate", *options)["task"] == "preset-auto"


def test_tune_on_private_data_prints_the_epsilon_of_all_trials() -> None:
    options = ("--charge", "--epsilon", "2", "--delta", "1e-4", "--trials", "2")
    found = answer("tune", "--data", DATA, *options)
    assert found["private"]
    assert found["epsilon"] > 2.5
    assert f"2 trials cost ε = {found['epsilon']:.4g}" in found["statement"]


def test_the_table_of_a_charged_search_shows_what_was_spent_after_each_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ("--epsilon", "2", "--delta", "1e-4", "--trials", "2")
    charged = call("tune", "--data", DATA, "--charge", *options)
    assert "ε so far" in charged.stdout
    assert "ε so far" not in call("tune", "--proxy", DATA, *options).stdout


def test_a_charged_search_refuses_data_whose_items_follow_from_who_rated_what(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::5::300\n2::40::3::100\n")
    error = refusal("tune", "--data", str(tmp_path), "--charge")
    assert isinstance(error, DataError)
    assert "there is no movie file" in str(error)


@pytest.mark.parametrize("inferred", [("items",), ("scale",)])
def test_r355_a_charged_search_refuses_a_file_whose_facts_were_guessed(
    inferred: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "saved.npz"
    declared = Ratings.from_triples("saved", [0, 0, 1], [0, 1, 1], [1.0, 2.0, 5.0], low=1, high=5, n_items=3)
    dataclasses.replace(declared, inferred=inferred).save(path)
    error = refusal("tune", "--data", str(path), "--charge", "--delta", "1e-4", "--trials", "1")
    assert isinstance(error, DataError)
    assert ("its items are" if "items" in inferred else "the scale of the data set") in str(error)


@pytest.mark.slow
def test_simulations_say_that_they_are_no_private_release(reported: Reported, tmp_path: Path) -> None:
    said = "simulation, not a private release"
    printed = call("simulate", "--data", DATA, "--preset", "auto", "--delta", "1e-4", "--no-baselines")
    assert f"note: {said}" in " ".join(printed.stderr.split())
    assert said in reported.simulated["statement"]
    assert said in reported.pages[1]
    compared = ("compare", "--data", DATA, "--epsilons", "2", "--delta", "1e-4", "--seeds", "1")
    assert said in " ".join(call(*compared, "--output", str(tmp_path)).stdout.split())
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert "one permutation of all ratings" not in written["statement"]
    assert "one permutation of all ratings" in answer(*compared, "--permutation")["statement"]

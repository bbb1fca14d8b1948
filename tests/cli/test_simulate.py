"""`odp simulate`: one JSON object that scripts may rely on, with and without noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import TASK, Printed

from odp.errors import ConfigurationError

Odp = Callable[..., Printed]
DATA = "synthetic:n_users=130,n_items=30,ratings_per_user=12"


def test_the_last_line_holds_what_scripts_rely_on(odp: Odp, task_file: Path) -> None:
    printed = odp("simulate", task_file, "--data", DATA, "--json")
    found = printed.json
    assert printed.out.count("\n") == 1, "tables go to stderr"
    assert 0.3 < found["test_rmse"] < 1.5
    assert 7.99 < found["epsilon"] <= 8.0
    assert (found["task"], found["delta"], found["rounds"]) == ("films", 1e-6, 3)
    assert [event["name"] for event in found["charges"]] == ["counts", "mass", "sums", "gram", "targets"]
    assert found["seconds"] >= 0
    assert set(found["baselines"]) == {
        "global_mean",
        "user_mean",
        "dp_item_mean",
        "dp_item_user_bias",
        "als_ceiling",
    }
    assert "DP item mean" in printed.err


def test_a_seed_repeats_the_result(odp: Odp, task_file: Path) -> None:
    def rmse(seed: int) -> float:
        return odp("simulate", task_file, "--data", DATA, "--json", "--no-baselines", "--seed", seed).json["test_rmse"]

    assert rmse(5) == rmse(5) != rmse(6)


@pytest.mark.parametrize(("epsilon", "flags"), [("8.0", ["--no-noise"]), ("inf", [])])
def test_a_run_without_noise_never_states_an_epsilon(odp: Odp, task_file: Path, epsilon: str, flags: list[str]) -> None:
    task_file.write_text(TASK.replace("epsilon = 8.0", f"epsilon = {epsilon}"))
    printed = odp("simulate", task_file, "--data", DATA, "--json", *flags)
    assert printed.json["epsilon"] is None
    assert "no noise, not private" in printed.err
    assert "ε = " not in printed.err


def test_baselines_can_be_left_out(odp: Odp, task_file: Path) -> None:
    printed = odp("simulate", task_file, "--data", DATA, "--json", "--no-baselines")
    assert "baselines" not in printed.json
    assert "DP item mean" not in printed.err


def test_the_trained_model_has_a_figure_of_a_sample_before_all_are_tested(odp: Odp, task_file: Path) -> None:
    task_file.write_text(TASK.replace("goal = 130", "goal = 600"))
    data = "synthetic:n_users=600,n_items=30,ratings_per_user=12"
    printed = odp("simulate", task_file, "--data", data, "--json", "--no-baselines")
    rounds = [line for line in printed.err.splitlines() if line.startswith("round ")]
    assert ["training is over" in line for line in rounds] == [False, False, True]
    assert "figures after each round are of 500 of 600 users, those of the result of all" in printed.json["notes"]
    assert f"{printed.json['test_rmse']:.4f}" not in rounds[-1]


def test_one_moment_cuts_everybody_and_what_only_the_test_part_has_is_counted(odp: Odp, task_file: Path) -> None:
    arguments = ("simulate", task_file, "--data", DATA, "--json", "--no-baselines")
    printed = odp(*arguments, "--split", "time:0.5")
    found = printed.json["split"]
    assert found["at"] == "time:0.5"
    assert f"only the test part has {found['users_only_tested']} of 130 users" in printed.err
    assert "the cut follows from everybody's times" in printed.err
    assert printed.json["test_rmse"] != odp(*arguments).json["test_rmse"]
    assert "split" not in odp(*arguments).json
    with pytest.raises(ConfigurationError, match=r"split='0\.5' to be time:DATE"):
        odp(*arguments, "--split", "0.5")
    with pytest.raises(ConfigurationError, match="one of --permutation, --by-time and --split"):
        odp("compare", "--split", "time:0.5", "--by-time")

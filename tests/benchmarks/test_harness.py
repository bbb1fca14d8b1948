"""The harness: goals, exit codes, the JSON file, names. Nothing here measures a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.harness import BENCHMARKS, Figure, Goal, Limit, Result
from odp.errors import ConfigurationError, ServiceError

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces the table by benchmarks ``name=run``."""

    def put(**runs: harness.Run) -> None:
        monkeypatch.setattr(harness, "BENCHMARKS", {name: ("unused", f"about {name}") for name in runs})
        monkeypatch.setattr(harness, "find", runs.__getitem__)

    return put


def _figure(value: float, goal: str | None = "<= 300") -> Figure:
    return Figure("time", value, "s", goal, Limit("nothing", 2.0))


@pytest.mark.parametrize(
    ("goal", "met", "missed"),
    [
        ("<= 300", (-1, 299.9, 300), (300.1,)),
        (">= 5e6", (5e6, 6e6), (4_999_999,)),
        ("< 2", (1.9,), (2, 3)),
        ("> 2", (2.1,), (2, 1)),
        ("== 0", (0, 0.0), (1e-9, -1)),
    ],
)
def test_a_goal_holds_on_its_side_of_the_number(goal: str, met: tuple[float, ...], missed: tuple[float, ...]) -> None:
    assert all(Goal.parse(goal).met_by(value) for value in met)
    assert not any(Goal.parse(goal).met_by(value) for value in missed)
    assert all(_figure(value, goal).met for value in met)
    assert not any(_figure(value, goal).met for value in missed)


@pytest.mark.parametrize("goal", ["", "300", "=< 3", "<= ", "<= x", "<= nan", "<= inf", "about 3", "<= 3 4"])
def test_a_text_that_is_no_goal_is_refused_and_shown(goal: str) -> None:
    with pytest.raises(ConfigurationError):
        Goal.parse(goal)
    with pytest.raises(ConfigurationError):
        _figure(1.0, goal)


def test_a_goal_reads_back_as_its_text() -> None:
    assert str(Goal.parse("<=300")) == "<= 300"
    assert Goal.parse(str(Goal(">=", 5e6))) == Goal(">=", 5e6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_was_not_measured_cannot_become_a_figure(value: float) -> None:
    with pytest.raises(ConfigurationError, match="'time' to be finite"):
        _figure(value, None)


def test_a_figure_without_a_goal_is_met_and_tells_its_ratio_to_what_it_was_measured_against() -> None:
    assert _figure(7.0, None).met
    assert _figure(7.0).ratio == 3.5
    assert Figure("time", 7.0, "s").ratio is None
    assert Figure("time", 7.0, "s", None, Limit("zero", 0.0)).ratio is None


def test_one_missed_figure_or_one_error_makes_the_exit_code_1() -> None:
    good, bad = Result("a", (_figure(1.0), _figure(9.0, None)), 0.1), Result("b", (_figure(1.0), _figure(301.0)), 0.1)
    assert harness.exit_code([good]) == 0
    assert harness.exit_code([good, bad]) == 1
    assert harness.exit_code([good, Result("c", (), 0.1, error="broke")]) == 1


def test_an_error_of_a_benchmark_is_kept_as_one_line_with_the_time_until_then() -> None:
    def run(quick: bool) -> list[Figure]:
        raise ServiceError("it broke\n  here")

    moments = iter((10.0, 12.5))
    result = harness.measure("a", run, quick=True, clock=lambda: next(moments))
    assert result == Result("a", (), 2.5, "it broke here")


def test_the_command_passes_quick_on_writes_the_file_and_exits_0(install: Install, tmp_path: Path) -> None:
    seen: list[bool] = []

    def run(quick: bool) -> list[Figure]:
        seen.append(quick)
        return [_figure(1.0)]

    install(fast=run)
    path = tmp_path / "new" / "figures.json"
    assert main(["fast"]) == 0
    assert main(["fast", "--quick", "--json", str(path)]) == 0
    assert seen == [False, True]
    content = json.loads(path.read_text())
    assert (content["benchmark"], content["quick"], content["met"], content["errors"]) == ("fast", True, True, {})
    assert content["figures"] == [
        {
            "benchmark": "fast", "name": "time", "value": 1.0, "unit": "s", "goal": "<= 300",
            "limit": {"name": "nothing", "value": 2.0}, "ratio": 0.5, "met": True,
        }
    ]  # fmt: skip
    assert set(content["machine"]) == {"cpu_count", "python", "numpy", "platform"}
    assert content["seconds"] >= 0
    assert [entry.name for entry in path.parent.iterdir()] == ["figures.json"]


def test_a_missed_goal_is_named_in_the_table_and_exits_1(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(slow=lambda quick: [_figure(1.0), _figure(301.0)])
    assert main(["slow"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("MISSED") == 1
    assert "301" in shown


def test_all_runs_every_benchmark_even_after_one_that_fails(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(quick: bool) -> list[Figure]:
        raise ServiceError("nobody answered")

    install(first=broken, second=lambda quick: [_figure(1.0)])
    path = tmp_path / "all.json"
    assert main(["all", "--json", str(path)]) == 1
    content = json.loads(path.read_text())
    assert content["benchmark"] == "all"
    assert not content["met"]
    assert content["errors"] == {"first": "nobody answered"}
    assert [entry["benchmark"] for entry in content["figures"]] == ["second"]
    assert "first: nobody answered" in capsys.readouterr().err


def test_an_unknown_name_exits_2_and_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nose"]) == 2
    assert "did you mean 'noise'?" in capsys.readouterr().err


def test_wrong_options_exit_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["noise", "--fast"])
    assert ended.value.code == 2


def test_a_file_that_cannot_be_written_is_one_line_and_exits_1(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(fast=lambda quick: [_figure(1.0)])
    (tmp_path / "file").write_text("")
    assert main(["fast", "--json", str(tmp_path / "file" / "figures.json")]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "cannot write" in told


def test_a_ctrl_c_exits_130(install: Install) -> None:
    def interrupted(quick: bool) -> list[Figure]:
        raise KeyboardInterrupt

    install(fast=interrupted)
    assert main(["fast"]) == 130


def test_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.split()
    assert all(name in shown for name in BENCHMARKS)


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_name_of_the_table_is_a_module_with_a_run(name: str) -> None:
    assert callable(harness.find(name))
    assert harness.chosen(name) == [name]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (300, "300"), (0.02899, "0.02899"), (1234.56, "1,235"), (5e6, "5,000,000")]
)
def test_numbers_are_short_for_people(value: float, text: str) -> None:
    assert harness.number(value) == text

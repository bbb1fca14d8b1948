"""The verdict on a run: who wins, and whether that is good; the page of several runs."""

from __future__ import annotations

import copy
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from odp.cli.report import names_of
from odp.errors import ConfigurationError
from odp.research.simulation.report import render_html
from odp.research.simulation.report_of_runs import render_runs
from odp.research.simulation.verdict import verdict

BASELINES = {"global_mean": 1.1, "user_mean": 1.0, "dp_item_user_bias": 0.95, "als_ceiling": 0.85}


def record(value: float | None = 0.9, *, epsilon: float | None = 8.0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "format": "odp-run-1", "kind": "simulation", "delta": 1e-6, "epsilon": epsilon, "seed": 1,
        "task": {"name": "films", "privacy": {"epsilon": epsilon, "delta": 1e-6}, "training": {"steps": 2}},
        "data": {"name": "films", "users": 100, "items": 30, "train": 900, "validation": 50, "test": 50},
        "rounds": [
            {"round": number, "contributions": 100, "epsilon": None if epsilon is None else epsilon * (number + 1) / 2,
             "test_rmse": (value or 1.0) + 0.1 * (1 - number), "validation_rmse": None, "seconds": 0.1}
            for number in range(2)
        ],
        "spending": [], "test_rmse": value, "test_ranking": None, "test_examples": None,
        "baselines": dict(BASELINES), "versions": {"odp": "1"}, "notes": [],
    }  # fmt: skip
    return found | more


def ranking(value: float) -> dict[str, Any]:
    baselines = {"dp_popularity": {"recall@20": 0.1, "users": 9}, "ials_ceiling": {"recall@20": 0.3, "users": 9}}
    final = {"recall@20": value, "ndcg@20": value / 2, "users": 9}
    return record(None, test_ranking=final, baselines=baselines)


@pytest.mark.parametrize(
    ("run", "outcome", "text", "judgement"),
    [
        (record(0.86), "win", "beats each baseline of this run: test RMSE 0.860 at ε = 8, 9.5 % below the best",
         "good: it goes 90 %"),
        (record(0.94), "win", "1.1 % below the best baseline, DP item mean + user bias (0.950)", "room: it goes 10 %"),
        (record(0.84), "win", "test RMSE 0.840", "very good: it is as good as ALS"),
        (record(0.949), "level", "This model and the best baseline are level", "does not pay for its ε"),
        (record(0.951), "level", "are level", "does not pay"),
        (record(0.86, standard_errors={"dp_item_user_bias": 0.08}), "win", "beats each", "good"),
        (record(0.86, standard_errors={"dp_item_user_bias": 0.1}), "level",
         "within one standard error over users, 0.100",
         "Not run here, and private as well: DP item covariance and DP-SGD on the item table"),
        (record(0.96, standard_errors={"dp_item_user_bias": 0.02}), "level", "the best baseline are level", "not pay"),
        (record(0.86, standard_errors={"user_mean": 0.2, "dp_item_user_bias": 0.01}), "level",
         "This model and a baseline are level: test RMSE 0.860 at ε = 8, user mean", "does not pay"),
        (record(1.0, standard_errors={"user_mean": 0.2, "dp_item_user_bias": 0.01}), "lose",
         "DP item mean + user bias wins", ""),
        (record(1.02, standard_errors={"dp_item_user_bias": 0.2, "user_mean": 0.001}), "lose",
         "User mean, on the device wins with 1.000", "A device needs no task for user mean: it computes that alone."),
        (record(0.86, standard_errors={"dp_item_user_bias": None}), "win", "beats each", "`odp compare` runs them"),
        (record(1.05), "lose", "DP item mean + user bias wins with 0.950: this model has test RMSE 1.050", "not good"),
        (record(1.05), "lose", "", "On devices, DP item mean + user bias is the task of an odp.MatrixFactorization "
         "with rank=0, training=odp.DPAM(). Not run here, and private as well: DP item covariance and DP-SGD"),
        (record(1.05, baselines={"dp_item_mean": 0.9}), "lose", "", "rank=0, training=odp.DPAM(user_bias_ridge=1e+06)"),
        (record(1.05, epsilon=None), "lose", "1.050 without noise", "fails without noise"),
        (record(0.9, epsilon=None), "win", "without noise", "nothing is protected"),
        (record(0.9, baselines=None), "alone", "no baseline was run", "a run with baselines says"),
        (record(0.9, baselines={"als_ceiling": 0.85}), "alone", "no baseline was run", ""),
        (record(0.9, baselines={"user_mean": 1.0}), "win", "10.0 % below", "no model of all data in one place"),
        (record(None), "alone", "no score", "test entries"),
        (ranking(0.25), "win", "Recall@20 0.250 at ε = 8, 150.0 % above the best baseline, DP popularity", "goes 75 %"),
        (ranking(0.05), "lose", "DP popularity wins with 0.100", "not good"),
        (ranking(0.05), "lose", "", "rank=1, training=odp.ImplicitDPAM(steps=1, count_share=0.97)"),
    ],
)  # fmt: skip
def test_a_verdict_names_the_winner_and_weighs_it(run: dict[str, Any], outcome: str, text: str, judgement: str) -> None:
    found = verdict(run)
    assert found.outcome == outcome
    assert text in found.text
    assert judgement in found.judgement


class Outline(HTMLParser):
    """Levels of headings in order, cells of tables, ids, and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.tables: list[list[list[str]]] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.scopes = 0
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.loads += [values[name] for name in ("src", "href", "action") if name in values]
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            assert tag == "td" or values["scope"] in ("col", "row")
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None:
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def check(text: str) -> Outline:
    """What holds of each page: it stands alone, headings in order, no id twice, no column without a value."""
    found = Outline(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert not re.search(r"https?:|<script|@import|<img|<link", text)
    assert all(load.startswith("#") for load in found.loads)
    assert len(set(found.ids)) == len(found.ids)
    assert found.levels[0] == 1
    assert found.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(found.levels, found.levels[1:], strict=False))
    for head, *rows in found.tables:
        assert rows
        for place in range(len(head)):
            assert any(row[place] for row in rows), head
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text
    return found


@pytest.mark.parametrize("run", [record(), record(epsilon=None), record(baselines=None), ranking(0.2)])
def test_a_page_opens_with_its_verdict_and_has_no_empty_column(run: dict[str, Any]) -> None:
    text = render_html(run)
    check(text)
    said = html.escape(verdict(run).text).replace("ε = ", "ε&nbsp;=&nbsp;").replace(" %", "&nbsp;%")
    place = text.index(f"<p class=verdict>{said}</p>")
    assert place < text.index("<svg")


def test_rounds_have_the_numbers_of_the_terminal_and_no_column_for_what_was_not_measured() -> None:
    head, *rows = next(table for table in check(render_html(record())).tables if table[0][0] == "round")
    assert head == ["round", "users", "ε so far", "test RMSE", "seconds"]
    assert [row[0] for row in rows] == ["0", "1"]


def test_names_of_people_are_escaped() -> None:
    run = record()
    run["task"]["name"] = '<b onclick="x">'
    run["data"]["name"] = "<script>"
    page = render_html(run)
    assert "<b onclick" not in page
    assert "<script>" not in page
    assert "<script>" not in render_runs({"<script>": run, "b": record(0.8)})


def test_several_runs_are_compared_with_the_settings_in_which_they_differ() -> None:
    other = record(0.95, epsilon=1.0)
    text = render_runs({"wide": record(0.86), "tight": other})
    found = check(text)
    assert "wide is best: test RMSE 0.860" in text
    assert "9.5&nbsp;% below tight (0.950 at ε&nbsp;=&nbsp;1)" in text
    reached, differences = found.tables
    assert [row[0] for row in reached] == ["run", "wide", "tight"]
    assert differences == [["setting", "wide", "tight"], ["privacy.epsilon", "8.0", "1.0"]]
    assert "Settings that differ" in text
    assert "differ in nothing" in render_runs({"a": record(0.86), "b": record(0.87)})
    assert "a and b are level" in render_runs({"a": record(0.86), "b": record(0.861)})


def test_the_best_run_comes_first_wherever_it_was_named() -> None:
    runs = {"a": record(0.95), "b": record(0.9), "c": record(0.93)}
    assert [row[0] for row in check(render_runs(runs)).tables[0]] == ["run", "b", "a", "c"]
    shares = {name: ranking(value) for name, value in (("a", 0.2), ("b", 0.1))}
    assert [row[0] for row in check(render_runs(shares)).tables[0]] == ["run", "a", "b"]


def test_runs_that_cannot_be_compared_are_refused_or_marked() -> None:
    with pytest.raises(ConfigurationError, match="2 to 12"):
        render_runs({"a": record()})
    with pytest.raises(ConfigurationError, match="'b' has test_ranking"):
        render_runs({"a": record(), "b": ranking(0.2)})
    with pytest.raises(ConfigurationError, match="score"):
        render_runs({"a": record(None), "b": record(None)})
    other = copy.deepcopy(record(0.8))
    other["data"]["name"] = "others"
    assert "not comparable" in render_runs({"a": record(), "b": other})


def test_runs_are_named_by_as_few_folders_as_tell_them_apart() -> None:
    assert names_of([Path("x/a"), Path("x/b/run.json")]) == ["a", "b"]
    assert names_of([Path("/x/run"), Path("/y/run")]) == ["x/run", "y/run"]
    assert (
        names_of([Path("/x/a"), Path("/x/a")]) == ["x/a (1)", "x/a (2)"]
        or len(set(names_of([Path("/x/a"), Path("/x/a")]))) == 2
    )


def test_the_command_compares_runs(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from odp.cli.main import app

    for name, value in (("one", 0.9), ("two", 0.8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(record(value)))
    page = tmp_path / "page.html"
    run = CliRunner().invoke(
        app, ["report", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(page), "--json"]
    )
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout.strip().splitlines()[-1])
    assert told["html"] == str(page)
    assert told["runs"]["two"]["test_rmse"] == 0.8
    check(page.read_text(encoding="utf-8"))
    single = CliRunner().invoke(app, ["report", str(tmp_path / "one"), "--out", str(page), "--json"])
    assert single.exit_code == 0
    assert "This model beats each baseline of this run" in page.read_text(encoding="utf-8")

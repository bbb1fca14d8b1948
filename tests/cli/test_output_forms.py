"""What was found goes to stdout, as a table, JSON or CSV; nothing is cut at 80 columns."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Callable, Iterator

import pytest
import typer
from cli.conftest import Printed

from odp.cli.console import choose_csv, csv_text, print_json
from odp.cli.main import app
from odp.errors import ConfigurationError

Odp = Callable[..., Printed]
DATA = "synthetic:n_users=200,n_items=30,ratings_per_user=12"

#: Commands without ``--json``, and why.
WITHOUT_JSON = {
    "ends when it is stopped": {
        "up", "server run", "distributor run", "distributor helper run", "aggregator run", "issuer run", "witness run",
        "device run", "device view",
    },
    "does or writes what it is asked for, and says so in one line": {
        "data fetch", "data features", "task new", "task cancel", "init", "enclave reference-values",
        "enclave pin-helper", "enclave pin-address", "enclave endorse", "enclave withdraw", "device pause",
        "device resume", "device opt-out", "device export", "device erase", "device repair", "device roster",
        "enclave root", "enclave upgrade-policy",
    },
    "prints JSON always": {"task status"},
}  # fmt: skip


def commands(group: typer.Typer = app, prefix: str = "") -> Iterator[tuple[str, Callable[..., object]]]:
    for one in group.registered_commands:
        assert one.callback is not None
        yield f"{prefix}{one.name or one.callback.__name__.replace('_', '-')}", one.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{prefix}{inner.name} ")


def test_every_command_with_json_has_csv_and_the_others_have_a_reason() -> None:
    excused = set().union(*WITHOUT_JSON.values())
    for name, command in commands():
        options = inspect.signature(command).parameters
        if "json" in options or "json_output" in options:
            assert "csv" in options, name
        else:
            assert name in excused, f"{name} prints no JSON"


@pytest.mark.slow
def test_a_result_is_kept_by_a_redirection(odp: Odp) -> None:
    printed = odp("compare", "--data", DATA, "--epsilons", "2,8", "--delta", "1e-4", "--seeds", "1")
    assert "DP item mean" in printed.out
    assert "ε = 8" in printed.out
    assert "\x1b" not in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80


@pytest.mark.slow
def test_csv_is_the_same_values_as_rows(odp: Odp) -> None:
    options = ("compare", "--data", DATA, "--epsilons", "2,8", "--delta", "1e-4", "--seeds", "1")
    rows = list(csv.DictReader(io.StringIO(odp(*options, "--csv").out)))
    found = odp(*options, "--json").json
    assert {row["method"] for row in rows} == {method["name"] for method in found["methods"]}
    assert {row["epsilon"] for row in rows} == {"", "2.0", "8.0"}
    scores = {row["method"]: float(row["mean"]) for row in rows if row["epsilon"] in ("", "8.0")}
    for method in found["methods"]:
        assert scores[method["name"]] == method["scores"]["test RMSE"]["mean"][1]


def test_rounds_of_a_simulation_are_rows(odp: Odp) -> None:
    options = ("simulate", "--data", DATA, "--preset", "auto", "--delta", "1e-4", "--no-baselines", "--seed", "3")
    rows = list(csv.DictReader(io.StringIO(odp(*options, "--csv").out)))
    found = odp(*options, "--json").json
    assert len(rows) == found["rounds"]
    assert rows[-1]["validation_ndcg"] == ""
    assert float(rows[-1]["epsilon"]) == found["epsilon"]
    assert float(rows[-1]["test_rmse"]) == found["test_rmse"]


def test_json_and_csv_exclude_each_other(odp: Odp) -> None:
    with pytest.raises(ConfigurationError, match="--json or --csv"):
        odp("data", "info", DATA, "--json", "--csv")


def test_csv_is_that_of_the_rfc_and_rounds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": 'a "b", c', "value": 0.1 + 0.2, "of": {"x": 1, "y": True}}, {"name": "é\n", "more": [1, None]}]
    text = csv_text(rows)
    assert text.endswith("\r\n")
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    assert read[0]["name"] == 'a "b", c'
    assert float(read[0]["value"]) == 0.1 + 0.2
    assert (read[0]["of.x"], read[0]["of.y"], read[1]["name"], read[1]["more"]) == ("1", "true", "é\n", "[1, null]")
    choose_csv(True)
    try:
        print_json({"tasks": [{"a": 1}, {"a": 2}], "time": 3})
        print_json({"one": 1, "two": None})
    finally:
        choose_csv(False)
    assert capsys.readouterr().out.split() == ["a", "1", "2", "one,two", "1,"]

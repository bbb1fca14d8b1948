"""`odp reproduce local`: measured errors agree with the exact formulas, and wrong formulas are called wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odp.cli.main import app
from odp.errors import ConfigurationError
from odp.research.reproductions.local import Result, reproduce
from odp.research.reproductions.local_results import rows, turning_point


@pytest.fixture(scope="module")
def result() -> Result:
    return reproduce(seed=1, repeats=120)


def test_our_formulas_hold_and_the_published_one_fails_for_full_categories(result: Result) -> None:
    shown = {row.claim: row for row in rows(result)}
    wrong = [claim for claim, row in shown.items() if not row.holds]
    # Six standard errors of a fixed seed; at K = 10, epsilon = 2 more repeats are needed to tell them apart.
    assert "k-RR, K=100, ε=4, h=0.3: n·MSE is (K-2+e^ε)/(e^ε-1)²" in wrong
    assert all(claim.startswith("k-RR") and "h=0.3: n·MSE" in claim and "K=2," not in claim for claim in wrong)
    assert len(shown) >= 20
    assert all(row.agrees for row in result.frequencies)
    assert {row.verdict for row in shown.values()} == {"holds", "does not hold"}


def test_a_wrong_exact_formula_would_be_called_wrong(result: Result) -> None:
    wrong = [
        dataclasses.replace(row, exact=row.printed) if row.mechanism == "k-RR" else row for row in result.frequencies
    ]
    shown = {row.claim: row for row in rows(dataclasses.replace(result, frequencies=tuple(wrong)))}
    assert not shown["k-RR, all frequencies: plus h(K-2)/(e^ε-1) (our exact formula)"].holds
    assert shown["optimized unary encoding, all frequencies: plus h (our exact formula)"].holds
    means = tuple(dataclasses.replace(row, central_laplace=row.local_laplace) for row in result.means)
    shown = {row.claim: row for row in rows(dataclasses.replace(result, means=means))}
    assert not shown["mean of n numbers, central Laplace: MSE falls as n^-2"].holds
    assert not shown["cost of local against central: n times the error"].holds


def test_a_run_repeats_for_its_seed(result: Result) -> None:
    first = dataclasses.replace(reproduce(seed=3, repeats=50), seconds=0.0)
    assert first == dataclasses.replace(reproduce(seed=3, repeats=50), seconds=0.0)
    assert first.means != result.means


def test_unary_encoding_wins_from_the_first_category_above_the_published_bound() -> None:
    assert [turning_point(epsilon) for epsilon in (1.0, 2.0, 4.0)] == [11, 25, 166]


# A published comparison, whose formulas are compared above.
@pytest.mark.proof
def test_the_command_writes_a_figure_and_all_numbers(tmp_path: Path) -> None:
    output = tmp_path / "out"
    call = ["reproduce", "local", "--repeats", "50", "--output", str(output), "--json"]
    told = CliRunner().invoke(app, call)
    assert told.exit_code == 0, told.exception
    found = json.loads(told.stdout.strip().splitlines()[-1])
    assert found["slopes"]["central_laplace"] == pytest.approx(-2, abs=0.2)
    assert json.loads((output / "local-1.json").read_text()) == found
    assert (output / "local-1.png").read_bytes()[:4] == b"\x89PNG"
    refused = CliRunner().invoke(app, ["reproduce", "local", "--repeats", "49"]).exception
    assert isinstance(refused, ConfigurationError)
    assert "repeats=49" in str(refused)

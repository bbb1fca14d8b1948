"""`odp reproduce privunit` on few people: mechanisms, claims, table, figure."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odp.algorithms.private_fl.algorithm import TaskAlgorithm
from odp.algorithms.registry import algorithm_for
from odp.cli.main import app
from odp.errors import ConfigurationError
from odp.privacy.mechanisms.privunit import PrivUnit
from odp.research.reproductions import privunit
from odp.research.reproductions.privunit import (
    EXACT,
    EXPECTED,
    MECHANISMS,
    ONE_PERCENT,
    WITHOUT,
    Accuracy,
    Logistic,
    Result,
)


@pytest.mark.parametrize(("epsilon", "square"), [(8.0, 316.62), (32.0, 53.063), (64.0, 20.545)])
def test_the_published_rule_has_the_known_error_and_costs_no_more_than_asked(epsilon: float, square: float) -> None:
    found = privunit.published_cap(1000, epsilon)
    assert found.second_moment == pytest.approx(square, rel=1e-4)
    assert 0.9 * epsilon < found.epsilon <= epsilon
    assert PrivUnit.calibrated(1000, epsilon).second_moment < square


def test_few_people_learn_a_little_without_privacy_and_the_same_seed_repeats() -> None:
    found = privunit.reproduce(seed=1, runs=1, people=3000)
    assert [(one.rule, one.epsilon) for one in found.logistic] == list(MECHANISMS)
    assert found.steps[-1] == 3000
    assert len(found.logistic[0].curve) == len(found.steps) == 25
    assert found.of(WITHOUT, math.inf).mean < 4.0 < found.of(ONE_PERCENT, 7.8).mean
    assert found.logistic == privunit.reproduce(seed=1, runs=1, people=3000).logistic
    with pytest.raises(ConfigurationError, match="runs=0"):
        privunit.reproduce(runs=0)


def made(**changes: float) -> Result:
    """A result in which every claim holds, but for ``changes`` of errors by "rule epsilon"."""
    between = {(EXACT, 250.0): 3.6, (EXACT, 62.5): 3.85, (EXACT, 15.6): 4.0}
    errors = {**EXPECTED, **between}
    lines = tuple(
        Logistic(rule, epsilon, 1.0, (changes.get(f"{rule} {epsilon:g}", errors[rule, epsilon]),), (4.0,))
        for rule, epsilon in MECHANISMS
    )
    mnist = tuple(Accuracy(one, one + 10.0, 8.0, 0.9 - place / 50) for place, one in enumerate((64.0, 16.0, 4.0)))
    return Result((1,), (100,), lines, mnist, 1.0)


def test_each_claim_can_fail() -> None:
    assert all(claim.holds for claim in made().claims())
    for change, failing in {
        f"{EXACT} 31.2": {"error falls as ε grows", "error, exact cap, ε = 31.2", "the exact cap is never worse"},
        f"{WITHOUT} inf": {"error, without privacy", "at ε = 250 most of"},
    }.items():
        failed = [claim.statement for claim in made(**{change: 2.9 if WITHOUT in change else 4.2}).claims()
                  if not claim.holds]  # fmt: skip
        assert len(failed) == len(failing)
        assert all(any(one.startswith(name) for one in failed) for name in failing)
    small = made(**{f"{EXACT} 7.8": 3.9})
    assert not next(claim for claim in small.claims() if "one pass learns nothing" in claim.statement).holds
    flat = dataclasses.replace(made(), mnist=tuple(reversed(made().mnist)))
    assert [claim.statement for claim in flat.claims() if not claim.holds] == [
        "MNIST: accuracy falls with ε of the report"
    ]


def test_the_task_on_pictures_has_both_layers_and_each_person_once() -> None:
    algorithm = algorithm_for(privunit.picture_task(16.0).definition())
    assert isinstance(algorithm, TaskAlgorithm)
    assert algorithm.local_charge.most == 1
    assert algorithm.local_charge.epsilon == pytest.approx(26.0, rel=1e-3)


def test_the_command_prints_claims_and_writes_numbers_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privunit, "reproduce", lambda **given: made())
    told = CliRunner().invoke(app, ["reproduce", "privunit", "--output", str(tmp_path), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output.splitlines()[-1])
    assert found == json.loads((tmp_path / "privunit-1.json").read_text())
    assert found["logistic"][0]["epsilon"] is None
    assert {claim["holds"] for claim in found["claims"]} == {True}
    assert (tmp_path / "privunit-1.png").read_bytes().startswith(b"\x89PNG")
    assert "does not hold" not in told.output

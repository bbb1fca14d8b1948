"""That noise which is new in each training is at least as good as every stream, at one lifetime ε."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from benchmarks import continual
from benchmarks.harness import exit_code, measure
from odp.privacy.matrix import Participation
from odp.privacy.matrix.sensitivity import upper_bound
from odp.trainings.schedule import FRONT_LOADED, UNIFORM


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_independent_noise_of_the_same_sensitivity_tells_at_least_as_much(rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.tril(rng.integers(0, 1000, (rounds, rounds))) + 1000 * np.eye(rounds, dtype=np.int64)
    shares = continual.independent_shares(matrix.astype(np.float64))
    everybody = Participation(rounds=rounds, most=rounds, separation=1)
    assert Fraction(float(shares.sum())) == upper_bound(matrix, everybody), "the same privacy"
    # The stream's noise minus the independent noise is a covariance: what is left to add to have the stream.
    left = np.linalg.inv((matrix.T @ matrix).astype(np.float64)) - np.diag(1.0 / shares)
    assert np.linalg.eigvalsh(left).min() >= -1e-9 * np.abs(left).max()


@pytest.mark.parametrize("name", list(continual.streams(2)))
def test_a_filter_of_independent_releases_errs_no_more_than_one_of_the_stream(name: str) -> None:
    trainings, place = 15, np.arange(15)
    stream = continual.streams(trainings)[name]
    everybody = Participation(rounds=trainings, most=trainings, separation=1)
    matrix, squared = stream.matrix(), stream.sensitivity(everybody) ** 2
    prior = 0.98 ** np.abs(place[:, None] - place)

    def left(noise: np.ndarray) -> np.ndarray:
        """Variance of each training's statistic, once the releases up to it are known."""
        return np.array(
            [
                prior[t, t] - prior[t, : t + 1] @ np.linalg.solve((prior + noise)[: t + 1, : t + 1], prior[: t + 1, t])
                for t in place
            ]
        )

    of_stream = left(0.1 * squared * np.linalg.inv(matrix.T @ matrix))
    shares = continual.independent_shares(matrix)
    of_shares = left(0.1 * squared * np.diag(1.0 / shares))
    assert shares.sum() == pytest.approx(squared, rel=1e-6)
    assert (of_shares <= of_stream * (1 + 1e-9)).all()
    assert (of_shares < of_stream - 1e-6).any()


def test_the_benchmark_meets_its_goals_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measure("continual", continual.run, quick=True)
    assert exit_code([result]) == 0
    values = {figure.name: figure.value for figure in result.figures}
    streamed = [values[f"error of statistics, {name}"] for name in continual.streams(2)]
    assert values[f"error of statistics, {UNIFORM}"] < min(streamed)
    small = ["--trainings", "6", "--users", "200", "--items", "60"]
    assert continual.main([str(tmp_path / "errors.png"), *small]) == 0
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    assert FRONT_LOADED in capsys.readouterr().out
    assert continual.main([str(tmp_path / "errors.txt"), *small]) == 1

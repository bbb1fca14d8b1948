"""A simulation that was interrupted goes on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError, StateError
from odp.evaluation.noise import RoundedNormals, SeededNoise
from odp.privacy.mechanisms import GaussianNoise
from odp.research.simulation import engine
from odp.research.simulation.engine import RoundResult, simulate

RATINGS = odp.data.synthetic_movielens(n_users=150, n_items=60, ratings_per_user=20, seed=1)


class Interrupted(Exception):
    pass


def task_for(epsilon: float = 8.0) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=RATINGS.n_items, rank=3),
        data=odp.RatingsData(low=RATINGS.low, high=RATINGS.high),
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=1e-4, max_items_per_user=20),
        training=odp.DPAM(steps=2),
    )


def interrupted_after(round: int, folder: Path, *, noise: bool = True) -> None:
    def stop(result: RoundResult) -> None:
        if result.round == round:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulate(task_for(), RATINGS, seed=3, noise=noise, on_round=stop, checkpoint=folder)


@pytest.mark.parametrize("most_exact", [engine.MOST_EXACT, 100])
@pytest.mark.parametrize("round", [0, 2, 3])
def test_a_resumed_run_ends_as_one_that_was_never_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_exact: int, round: int
) -> None:
    monkeypatch.setattr(engine, "MOST_EXACT", most_exact)
    whole = simulate(task_for(), RATINGS, seed=3)
    interrupted_after(round, tmp_path / "run")
    told: list[RoundResult] = []
    users: list[tuple[int, int, int]] = []
    resumed = simulate(
        task_for(),
        RATINGS,
        seed=3,
        on_round=told.append,
        on_users=lambda *where: users.append(where),
        checkpoint=tmp_path / "run",
    )
    for ours, theirs in zip(resumed.model.tables, whole.model.tables, strict=True):
        np.testing.assert_array_equal(ours.rows, theirs.rows)
    assert resumed.metrics["test_rmse"] == whole.metrics["test_rmse"]
    assert resumed.charges == whole.charges
    assert resumed.totals == whole.totals
    assert [result.round for result in told] == [0, 1, 2, 3]
    assert {where[0] for where in users} == set(range(round + 1, 4)), "rounds that were done are not run again"
    for number in range(round + 1, 4):
        done = [where[1] for where in users if where[0] == number]
        assert done == sorted(done)
        assert done[-1] == 150
    assert {where[2] for where in users} <= {4}


def test_another_run_s_checkpoint_is_refused(tmp_path: Path) -> None:
    interrupted_after(1, tmp_path)
    with pytest.raises(StateError, match="another task, data set, seed or noise"):
        simulate(task_for(), RATINGS, seed=4, checkpoint=tmp_path)
    with pytest.raises(StateError, match="another task"):
        simulate(task_for(epsilon=4.0), RATINGS, seed=3, checkpoint=tmp_path)
    with pytest.raises(StateError, match="noise"):
        simulate(task_for(), RATINGS, seed=3, noise=False, checkpoint=tmp_path)
    fewer = RATINGS.take(np.arange(RATINGS.n_ratings) > 0)
    with pytest.raises(StateError, match="data set"):
        simulate(task_for(), fewer, seed=3, checkpoint=tmp_path)


@pytest.mark.parametrize("cut", [5, -9])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, cut: int) -> None:
    interrupted_after(1, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(StateError, match="remove it to start again"):
        simulate(task_for(), RATINGS, seed=3, checkpoint=tmp_path)


def test_noise_that_cannot_be_repeated_needs_a_run_without_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="noise=True or False"):
        simulate(task_for(), RATINGS, noise=GaussianNoise(SeededNoise(1)), checkpoint=tmp_path)


def test_a_run_without_noise_resumes_too(tmp_path: Path) -> None:
    interrupted_after(2, tmp_path, noise=False)
    resumed = simulate(task_for(), RATINGS, seed=3, noise=False, checkpoint=tmp_path)
    assert resumed.metrics["test_rmse"] == simulate(task_for(), RATINGS, seed=3, noise=False).metrics["test_rmse"]
    assert all(result.epsilon == float("inf") for result in resumed.rounds)


def test_fast_noise_has_the_declared_law_and_repeats_by_seed_and_round() -> None:
    """Kolmogorov-Smirnov of 3 million numbers at a false-alarm rate of 1e-6 (asymptotic bound 2 exp(-2 n D^2))."""
    from scipy.stats import norm

    count = 3_000_000  # more than one generator's share
    drawn = RoundedNormals(1, 2).sample(500.0, count)
    np.testing.assert_array_equal(drawn, RoundedNormals(1, 2).sample(500.0, count))
    for other in (RoundedNormals(1, 3), RoundedNormals(2, 2)):
        assert (other.sample(500.0, 1000) != drawn[:1000]).mean() > 0.9
    source = RoundedNormals(1, 2)
    assert (source.sample(500.0, 1000) != source.sample(500.0, 1000)).mean() > 0.9
    cells = np.bincount(drawn - drawn.min())
    law = norm.cdf((np.arange(len(cells)) + drawn.min() + 0.5) / 500.0)
    assert np.abs(np.cumsum(cells) / count - law).max() < np.sqrt(np.log(2e6) / (2 * count))


def test_fast_noise_is_added_in_place_column_by_column_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard deviations of 60,000 numbers each, two-sided at 4.9 standard errors: a false-alarm rate of 1e-6 each."""
    sums = np.arange(180_000, dtype=np.int64).reshape(60_000, 3) * 10**6
    ratios, step = np.array([64.0, 500.0, 1e6]), 0.25
    kept = sums.copy()
    found = RoundedNormals(1, 2).added(sums, ratios, step)
    assert np.shares_memory(found, sums)
    noise = found / step - kept
    np.testing.assert_array_equal(noise, np.rint(noise))
    assert (np.abs(noise.std(axis=0) / ratios - 1) < 4.9 / np.sqrt(2 * len(noise))).all()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    np.testing.assert_array_equal(RoundedNormals(1, 2).added(kept.copy(), ratios, step), found)
    source = RoundedNormals(1, 2)
    source.added(kept.copy(), ratios, step)
    assert (source.added(kept.copy(), ratios, step) != found).mean() > 0.9


def test_large_releases_are_drawn_by_the_fast_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    query = algorithm_for(task_for().definition()).query(2)

    def released() -> dict[str, np.ndarray]:
        totals = {release.name: np.zeros(release.shape, dtype=np.int64) for release in query.releases}
        return engine.noisy_release(query, totals, seed=1, round=2)

    exact = released()
    monkeypatch.setattr(engine, "MOST_EXACT", 100)
    fast = released()
    for release in query.releases:
        for drawn in (exact[release.name], fast[release.name]):
            scaled = drawn / release.column_std
            assert abs(scaled.std() - 1) < 6 / np.sqrt(2 * scaled.size)  # six standard errors: 2e-9
        assert (exact[release.name] != fast[release.name]).any()

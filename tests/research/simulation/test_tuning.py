"""The search costs nothing on proxy data, and on private data the sum of all its trials."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from odp.algorithms.dpam.population import DpamPopulation
from odp.datasets import load, synthetic_movielens
from odp.datasets.ratings import Ratings
from odp.datasets.splitting import TimeCut
from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import NoNoise, SeededNoise
from odp.privacy.accounting import epsilon, mu
from odp.privacy.mechanisms import GaussianNoise
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation import tuning
from odp.research.simulation.presets import preset_task
from odp.research.simulation.tuning import noisy_score, tune

DATA = synthetic_movielens(n_users=300, n_items=30, ratings_per_user=12)


def _on_proxy_data(seed: int) -> tuning.Tuning:
    return tune(DATA, epsilon=8.0, delta=1e-4, trials=3, seed=seed, private=False)


@pytest.fixture(scope="module")
def search() -> tuning.Tuning:
    return _on_proxy_data(1)


def test_on_proxy_data_nothing_is_spent_and_the_best_trial_is_the_lowest(search: tuning.Tuning) -> None:
    assert search.epsilon == 0.0
    assert search.best.score == min(trial.score for trial in search.trials)
    assert "no private data was read, ε spent 0" in search.statement
    assert search.to_json()["charges"] == []


def test_the_first_trial_is_the_recommendation_and_the_seed_repeats_the_search(search: tuning.Tuning) -> None:
    first, again, other = search, _on_proxy_data(1), _on_proxy_data(2)
    assert [trial.settings() for trial in first.trials] == [trial.settings() for trial in again.trials]
    assert [trial.settings() for trial in first.trials[1:]] != [trial.settings() for trial in other.trials[1:]]
    assert first.trials[0].task == other.trials[0].task


def test_on_private_data_all_trials_compose_in_one_epsilon() -> None:
    search = tune(DATA, epsilon=2.0, delta=1e-4, trials=3, seed=1, private=True)
    events = [event for trial in search.trials for event in trial.charges]
    assert search.epsilon == epsilon(events, delta=1e-4)
    assert search.epsilon > 1.5 * 2.0
    for trial in search.trials:
        assert [event.name for event in trial.charges].count("validation_score") == 1
        assert epsilon(trial.charges, delta=1e-4) > 2.0
    assert f"3 trials cost ε = {search.epsilon:.4g}" in search.statement
    assert len(json.loads(json.dumps(search.to_json()))["charges"]) == len(events)


def test_no_seed_repeats_the_noise_of_a_private_search() -> None:
    """Whoever knew the seed could subtract it; only what is public may follow from a seed."""
    first, again = (tune(DATA, epsilon=2.0, delta=1e-4, trials=2, seed=1, private=True) for _ in range(2))
    assert [trial.settings() for trial in first.trials] == [trial.settings() for trial in again.trials]
    assert first.events == again.events
    assert all(one.score != other.score for one, other in zip(first.trials, again.trials, strict=True))


def test_a_prediction_that_is_no_number_counts_as_the_largest_error_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum that one user could make none would tell everybody who that is."""

    predict = DpamPopulation.predict

    def broken(self: DpamPopulation, broadcast: ModelVersion, history: Ratings, targets: Ratings) -> np.ndarray:
        found = predict(self, broadcast, history, targets)
        found[targets.users() == 7] = np.nan
        found[targets.users() == 8] = np.inf
        return found

    monkeypatch.setattr(DpamPopulation, "predict", broken)
    asked: list[np.ndarray] = []
    monkeypatch.setattr(
        tuning, "noisy_score", lambda errors, **options: (asked.append(errors), noisy_score(errors, **options))[1]
    )
    tune(DATA, epsilon=2.0, delta=1e-4, trials=1, seed=1, private=True, noise=GaussianNoise(SeededNoise(3)))
    (errors,) = asked
    assert errors.min() >= 0.0
    assert errors.max() == 1.0


def test_a_private_score_is_noisy_but_near_the_truth() -> None:
    """The error of the mean over 20,000 users is below 6 standard deviations of its noise: false alarms below 1e-8."""
    errors = np.random.default_rng(1).random(20_000)
    scores, event = [], None
    for seed in (1, 2):
        score, event = noisy_score(errors, epsilon=1.0, delta=1e-6, noise=GaussianNoise(SeededNoise(seed)))
        scores.append(score)
        # Both sums are noised: the mean moves by at most (1 + mean) std / users, and truncation by a grid step.
        assert abs(score - errors.mean()) < 6 * 1.5 * event.noise_std / len(errors) + 2**-10
    assert scores[0] != scores[1]
    assert event is not None
    assert mu([event]) == pytest.approx(event.sensitivity / event.noise_std)


def test_one_user_moves_a_score_by_at_most_its_sensitivity() -> None:
    _, event = noisy_score(np.array([1.0]), epsilon=1.0, delta=1e-6, noise=NoNoise())
    # The pair (sum of errors, number of users) of one user is at most (1, 1).
    assert np.hypot(1.0, 1.0) <= event.sensitivity * (1 + 1e-12)


def test_the_search_uses_the_features_of_the_data_unless_told_otherwise() -> None:
    with_features, without = (
        tune(DATA, epsilon=8.0, delta=1e-4, trials=2, private=False, features=asked) for asked in (None, False)
    )
    assert {trial.settings()["features"] for trial in with_features.trials} == {DATA.features.shape[1]}
    assert {trial.settings()["features"] for trial in without.trials} == {0}
    assert with_features.trials[0].score != without.trials[0].score
    assert with_features.trials[0].task == preset_task("auto", DATA, epsilon=8.0, delta=1e-4, features=True)


def test_data_without_features_or_without_ratings_are_refused_by_name() -> None:
    bare = dataclasses.replace(DATA, features=None, feature_names=None, titles=None)
    assert tune(bare, epsilon=8.0, delta=1e-4, trials=1, private=False).best.settings()["features"] == 0
    with pytest.raises(DataError, match="no public item features"):
        tune(bare, epsilon=8.0, delta=1e-4, trials=1, private=False, features=True)
    ones = np.ones(DATA.n_ratings)
    seen = Ratings.from_triples("seen", DATA.users(), DATA.items, ones, low=0, high=1, implicit=True)
    with pytest.raises(DataError, match="implicit feedback"):
        tune(seen, epsilon=8.0, delta=1e-4, trials=1, private=False)


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"epsilon": float("inf")}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    keywords = {"epsilon": 1.0, "trials": 1} | wrong
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        tune(DATA, delta=1e-4, private=False, **keywords)


def test_a_search_reads_as_a_table_and_gives_the_best_task(tmp_path: Path) -> None:
    free = tune(DATA, epsilon=8.0, delta=1e-4, trials=2, private=False)
    assert free.task is free.best.task
    head, *table = repr(free).splitlines()
    assert head.startswith(f"trial {free.trials.index(free.best) + 1} of 2 is the best: validation RMSE ")
    assert [line.split()[0] for line in table[:4]] == ["trial", "-----", "1", "2"]
    assert "epsilon" not in free.rows[0]
    charged = tune(DATA, epsilon=2.0, delta=1e-4, trials=2, private=True)
    assert [row["trial"] for row in charged.rows] == [1, 2]
    assert charged.rows[0]["epsilon"] < charged.rows[1]["epsilon"] == charged.epsilon
    assert charged.to_csv(tmp_path / "trials.csv").read_text(encoding="utf-8").startswith("trial,rank,")
    assert "(noisy)" in charged.report(tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("inferred", [("items",), ("scale",), ("items", "scale")])
def test_r355_a_private_search_takes_no_fact_that_was_guessed_from_the_data_as_public(
    inferred: tuple[str, ...], tmp_path: Path
) -> None:
    guessed = dataclasses.replace(DATA, inferred=inferred)
    guessed.save(tmp_path / "saved.npz")
    guessed.save_folder(tmp_path / "folder")
    again = Ratings.load(tmp_path / "saved.npz"), Ratings.open_folder(tmp_path / "folder")
    for data in (guessed, *again, guessed.select_users(np.arange(200))):
        assert data.inferred == inferred
        with pytest.raises(
            DataError, match=f"the {' and the '.join(inferred)} of the data set .* follow from the data"
        ):
            tune(data, epsilon=2.0, delta=1e-4, trials=1, private=True)
    if "items" in inferred:
        with pytest.raises(DataError, match="its items are those of the data"):
            tune(tmp_path / "saved.npz", epsilon=2.0, delta=1e-4, trials=1, private=True)
    tune(guessed, epsilon=2.0, delta=1e-4, trials=1, private=False)


def timed(*, unit: str | None = "s") -> Ratings:
    """``DATA`` with a time for each rating, days apart."""
    times = 10**9 + np.random.default_rng(1).integers(0, 100, DATA.n_ratings) * 86_400
    return dataclasses.replace(DATA, times=times, time_unit=unit)


def test_a_search_with_a_cut_reads_nothing_from_it_on() -> None:
    data = timed()
    cut = TimeCut(number=10**9 + 70 * 86_400)
    assert data.times is not None
    later = np.asarray(data.times) >= 10**9 + 70 * 86_400
    changed = dataclasses.replace(data, values=np.where(later, np.float32(1), data.values))
    found = [tune(one, trials=2, private=False, cut=cut) for one in (data, changed)]
    assert [trial.score for trial in found[0].trials] == [trial.score for trial in found[1].trials]
    assert tune(changed, trials=1, private=False).best.score != tune(data, trials=1, private=False).best.score


@pytest.mark.parametrize("unit", ["s", None])
def test_a_private_search_takes_no_cut_that_follows_from_the_data(unit: str | None) -> None:
    data = timed(unit=unit)
    with pytest.raises(DataError, match="follows from the times of the private data set"):
        tune(data, epsilon=2.0, delta=1e-4, trials=1, private=True, cut=TimeCut(share=0.9))
    date = TimeCut.parse("time:2001-11-20")
    if unit is None:
        with pytest.raises(DataError, match="follows from the times"):
            tune(data, epsilon=2.0, delta=1e-4, trials=1, private=True, cut=date)
    else:
        assert tune(data, epsilon=2.0, delta=1e-4, trials=1, private=True, cut=date).epsilon > 0


def test_r355_what_a_table_or_a_count_of_items_guesses_is_marked(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odp-platform[data]'")
    (tmp_path / "mine.csv").write_text("user,item,rating\n1,2,3.5\n2,3,4\n")
    assert load(tmp_path / "mine.csv").inferred == ("items", "scale")
    declared = load(tmp_path / "mine.csv", low=0.5, high=5.0)
    assert declared.inferred == ("items",)
    with pytest.raises(DataError, match="the items of the data set"):
        tune(declared, epsilon=2.0, delta=1e-4, trials=1, private=True)
    assert Ratings.from_triples("counted", [0], [4], [1.0], low=1, high=5).inferred == ("items",)
    assert Ratings.from_triples("declared", [0], [4], [1.0], low=1, high=5, n_items=9).inferred == ()
    with pytest.raises(DataError, match="Expected inferred="):
        dataclasses.replace(DATA, inferred=("users",))


def test_whether_given_data_are_private_has_to_be_said() -> None:
    with pytest.raises(ConfigurationError, match="Expected private=True or private=False"):
        tune(DATA)

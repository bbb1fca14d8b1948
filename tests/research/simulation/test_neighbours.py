"""Record and replay of everything that charges: with and without one user's data, under the same released numbers.

A neighbour is made by taking all ratings of one user away (``zero_out_user``). The first run writes down what every
release was of, before noise, and what came out; the second one gets the same released numbers. Then its own sums may
differ by the declared sensitivity at most, and all that is stated must be equal: it followed from releases alone.

Victims are the worst that a data set may hold: a user who rated everything, with real values at and between the bounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.implicit import experiment as implicit
from odp.datasets import Ratings, Split, random_split
from odp.datasets.splitting import permutation_split
from odp.evaluation import baselines, dp_sgd
from odp.privacy.events import Event, SampledRound, releases_of
from odp.research.simulation import engine, tuning
from odp.research.simulation.answers import simulate_answers
from odp.research.simulation.presets import preset_task

USERS, ITEMS, HOSTILE, IDLE = 40, 25, 3, 8
VICTIMS = (HOSTILE, 11, IDLE)


def people(*, seen: bool = False) -> Ratings:
    """Users with 0 to 25 real-valued ratings; one has all items, half of them at the bounds, and one has none."""
    random = np.random.default_rng(5)
    counts = random.integers(1, 12, USERS)
    counts[HOSTILE], counts[IDLE] = ITEMS, 0
    items = [np.sort(random.choice(ITEMS, count, replace=False)) for count in counts]
    values = random.uniform(1.0, 5.0, counts.sum())
    hostile = np.repeat(np.arange(USERS), counts) == HOSTILE
    values[hostile] = np.where(np.arange(ITEMS) % 2, np.where(np.arange(ITEMS) % 3, 5.0, 1.0), values[hostile])
    return Ratings(
        "people", np.concatenate(([0], np.cumsum(counts))), np.concatenate(items),
        np.ones(counts.sum()) if seen else values, ITEMS, 0.0 if seen else 1.0, 1.0 if seen else 5.0, implicit=seen,
    )  # fmt: skip


PEOPLE, SEEN = people(), people(seen=True)


@dataclasses.dataclass
class Release:
    """One released tensor: what it is charged as, its exact integers on the grid, and what came out."""

    name: str
    sensitivity: float
    step: float
    weights: np.ndarray  # of each column in the norm
    exact: np.ndarray
    released: Any


class Tape:
    """What a computation released, in order; or the replay of another one's."""

    def __init__(self, replayed: Tape | None = None) -> None:
        self.releases: list[Release] = []
        self._replayed = replayed

    def note(self, release: Release) -> Any:
        """Writes a release down; what comes out of it."""
        if self._replayed is not None:
            release.released = self._replayed.releases[len(self.releases)].released
        self.releases.append(release)
        return release.released

    def of_round(self, query: Any, totals: Any, source: Any) -> dict[str, np.ndarray]:
        """In place of the simulator's release of a round."""
        exact = {release.name: totals[release.name].reshape(release.shape).copy() for release in query.releases}
        out = _RELEASED(query, totals, source)
        return {one.name: self.note(_of(one, exact[one.name], out[one.name])) for one in query.releases}

    def of_event(self, event: Any, exact: np.ndarray, *, step: float, noise: Any) -> np.ndarray:
        """In place of ``noised``."""
        out = _NOISED(event, exact, step=step, noise=noise)
        weights = np.ones(exact.shape[-1])
        return self.note(Release(event.name, event.sensitivity, step, weights, exact.copy(), out))


_RELEASED, _NOISED = engine._released, tuning.noised


def _of(release: DeclaredRelease, exact: np.ndarray, out: np.ndarray) -> Release:
    weights = (release.noise_std / release.column_std) ** 2
    return Release(release.name, release.sensitivity, release.step, weights, exact, out)


def _run(patch: pytest.MonkeyPatch, tape: Tape, compute: Callable[[Ratings], Any], ratings: Ratings) -> Any:
    with patch.context() as planted:
        planted.setattr(engine, "_released", tape.of_round)
        for module in (baselines, dp_sgd, implicit, tuning):
            planted.setattr(module, "noised", tape.of_event)
        return compute(ratings)


def neighbours(
    patch: pytest.MonkeyPatch, compute: Callable[[Ratings], Any], ratings: Ratings, victim: int
) -> tuple[Any, Any, Tape]:
    """(what ``compute`` states with the victim, and without under the same releases, the recorded tape)."""
    tape = Tape()
    stated = _run(patch, tape, compute, ratings)
    again = Tape(tape)
    other = _run(patch, again, compute, ratings.take(ratings.users() != victim))
    assert [(one.name, one.exact.shape) for one in tape.releases] == [
        (one.name, one.exact.shape) for one in again.releases
    ]
    moved: list[float] = []
    for one, less in zip(tape.releases, again.releases, strict=True):
        assert np.issubdtype(one.exact.dtype, np.integer)
        change = (one.exact - less.exact) * one.step
        norm = math.sqrt(float((change**2 * one.weights).sum()))
        assert norm <= one.sensitivity * (1 + 1e-9), f"{one.name} moved by {norm}, charged for {one.sensitivity}"
        assert not norm or victim != IDLE
        moved.append(norm / one.sensitivity)
    assert victim != HOSTILE or max(moved) > 0.5, "the worst user comes close to a bound, or nothing was tested"
    return stated, other, tape


def charged(events: Any) -> list[tuple[str, float, int]]:
    return [(one.name, one.sensitivity, one.coordinates) for event in events for one in releases_of(event)]


def recorded(tape: Tape) -> list[tuple[str, float, int]]:
    return [(one.name, one.sensitivity, one.exact.size) for one in tape.releases]


@pytest.mark.parametrize("victim", VICTIMS)
def test_every_number_of_a_charged_search_follows_from_its_charged_releases(monkeypatch, victim):
    def search(ratings: Ratings) -> Any:
        told: list[Any] = []
        found = odp.research.simulation.tuning.tune(
            ratings, epsilon=2.0, delta=1e-3, trials=4, seed=3, private=True,
            on_trial=lambda number, trial: told.append((number, trial.score, trial.settings())),
        )  # fmt: skip
        return found.to_json(), found.statement, told, found.events

    (*stated, events), (*other, _), tape = neighbours(monkeypatch, search, PEOPLE, victim)
    assert stated == other
    assert charged(events) == recorded(tape)


def _sampled(task: odp.Task) -> odp.Task:
    cohort = odp.Cohort(
        minimum=1, goal=USERS, sampling="enclave_poisson", sampling_probability=0.5, most_contributions=50
    )
    return dataclasses.replace(task, cohort=cohort)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize(
    ("seen", "sampled", "training"),
    [
        (False, False, odp.DPAM(steps=2)),
        (False, True, odp.DPAM(steps=2)),
        (False, True, odp.DPAM(step="gradient", steps=3)),
        (False, True, odp.DPSGD(rounds=4)),
        (True, False, odp.DPSGD(rounds=3, clip=1.0)),
        (True, False, None),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("coarse_composition")
def test_a_simulated_model_and_its_epsilon_follow_from_the_charged_releases(
    monkeypatch, victim, seen, sampled, training
):
    task = preset_task("auto", SEEN if seen else PEOPLE, epsilon=20.0, delta=1e-3)
    task = dataclasses.replace(task, privacy=dataclasses.replace(task.privacy, max_items_per_user=6))
    if training is not None:
        task = dataclasses.replace(task, model=odp.MatrixFactorization(items=ITEMS, rank=3), training=training)
    task = _sampled(task) if sampled else task

    def train(ratings: Ratings) -> Any:
        run = engine.simulate(task, ratings, seed=2)
        tables = [(table.name, table.rows.tobytes()) for table in run.model.tables]
        return tables, run.epsilon, run.charges, run.totals, run.item_counts.tolist(), run.to_json()["charges"]

    stated, other, tape = neighbours(monkeypatch, train, SEEN if seen else PEOPLE, victim)
    assert stated == other
    events: list[Event] = [event for events in stated[2] for event in events]
    assert charged(events) == recorded(tape)
    assert any(isinstance(event, SampledRound) for event in events) == sampled


def test_a_user_who_is_absent_and_not_only_idle_moves_releases_as_little(monkeypatch):
    """Everybody else keeps seed, split and draw: also where the data set has one row less, and other numbers."""
    task = preset_task("auto", PEOPLE, epsilon=8.0, delta=1e-3)
    tapes = []
    for ratings in (PEOPLE, PEOPLE.select_users([user for user in range(USERS) if user != HOSTILE])):
        tape = Tape(tapes[0] if tapes else None)
        _run(monkeypatch, tape, lambda ratings: engine.simulate(task, ratings, seed=2), ratings)
        tapes.append(tape)
    for one, less in zip(tapes[0].releases, tapes[1].releases, strict=True):
        norm = math.sqrt(float((((one.exact - less.exact) * one.step) ** 2 * one.weights).sum()))
        assert 0.0 < norm <= one.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("method", ["item mean", "popularity", "dp_sgd"])
def test_what_a_model_is_compared_with_keeps_its_charges_too(monkeypatch, victim, method):
    ratings = SEEN if method == "popularity" else PEOPLE
    task = preset_task("auto", ratings, epsilon=4.0, delta=1e-3)
    task = dataclasses.replace(task, privacy=dataclasses.replace(task.privacy, max_items_per_user=6))

    def score(ratings: Ratings) -> Any:
        split = random_split(ratings, seed=2)
        if method == "item mean":
            return baselines.dp_item_means(task, split.train, seed=2).tolist()
        if method == "popularity":
            return implicit.noisy_counts(task, split.train, seed=2).tolist()
        return dp_sgd.dp_sgd(split.train, epsilon=4.0, delta=1e-3, seed=2, settings=dp_sgd.DpSgd(rank=2)).charges

    stated, other, tape = neighbours(monkeypatch, score, ratings, victim)
    assert stated == other
    if method == "dp_sgd":
        assert charged(stated) == recorded(tape)
    else:
        mu = math.sqrt(sum((one.sensitivity / _noise_of(method, one, task)) ** 2 for one in tape.releases))
        assert mu == pytest.approx(odp.privacy.mu_for(epsilon=4.0, delta=1e-3, coordinates=ITEMS), rel=1e-6)


def _noise_of(method: str, release: Release, task: odp.Task) -> float:
    if method == "popularity":
        return release.sensitivity / odp.privacy.mu_for(epsilon=4.0, delta=1e-3, coordinates=ITEMS)
    events = baselines.item_mean_events(
        epsilon=4.0, delta=1e-3, low=1.0, high=5.0, n_items=ITEMS, max_items_per_user=task.privacy.bound(ITEMS)
    )
    return next(event.noise_std for event in events if event.name == release.name)


@pytest.mark.parametrize("victim", VICTIMS)
def test_simulated_statistics_move_by_their_charge(victim):
    asked = odp.Statistics(
        name="items",
        queries={"items": odp.Histogram(bins=ITEMS, clip=3.0)},
        privacy=odp.UserLevelDP(epsilon=2.0, delta=1e-3),
        cohort=odp.Cohort(minimum=20, goal=USERS),
    )
    runs = [simulate_answers(asked, ratings, seed=4) for ratings in (PEOPLE, PEOPLE.take(PEOPLE.users() != victim))]
    (event,) = runs[0].charges
    assert runs[1].charges == (event,)
    assert runs[0].epsilon == runs[1].epsilon
    change = runs[0].exact["items"].counts - runs[1].exact["items"].counts
    assert float(np.linalg.norm(change)) <= 3.0 * (1 + 1e-9)
    assert bool(change.any()) == (victim != IDLE)


def test_one_permutation_of_all_ratings_is_what_this_test_is_for(monkeypatch):
    """The split of published comparisons moves everybody's counts: a charge for one user is far too small."""
    task = preset_task("auto", PEOPLE, epsilon=2.0, delta=1e-3)

    def train(ratings: Ratings) -> Any:
        split: Split = permutation_split(ratings, seed=2)
        return engine.simulate(task, split, seed=2).charges

    with pytest.raises(AssertionError, match="masses moved by"):
        neighbours(monkeypatch, train, PEOPLE, 11)

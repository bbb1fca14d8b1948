"""Honest search for settings: free on public or invented data, charged on private data.

A score of a private trial says something about the people it was computed on, and so does the choice of the best one.
On proxy data nothing private is read, and ε stays 0. On private data every trial charges its training releases and the
release of its own score, and all events compose in one list: the printed ε is the whole search, not the best trial.

Guarantee of a private search (``zero_out_user``): every number that it states follows from the charged releases and
from what is public, which is the settings, the seed, the number of users, the list of items and the declared bounds.
All data of one user move no release by more than its charge says: which of a user's ratings are in which part of the
split, and which of them take part, are hashes of that user's identity and of nobody else's (``random_split``,
``user_seeds``). The noise is the operating system's: no seed repeats it. How long a search takes is not covered.

The score is RMSE on the validation part. Of private data it is released as two sums over users, with noise: the mean
over a user's validation ratings of the squared error, cut off at a quarter of the squared range and scaled to [0, 1],
and a 1 for each user that has any. One user moves the pair by at most sqrt(2) in L2.
"""

from __future__ import annotations

import dataclasses
import html
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from odp import _validate
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.terms import DERIVED_FACTORS, MAX_RANK
from odp.algorithms.registry import algorithm_for, recommender_for
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split
from odp.datasets.registry import load
from odp.datasets.splitting import TimeCut, random_split
from odp.errors import ConfigurationError, DataError, OdpError
from odp.evaluation.noise import noised
from odp.pictures import page
from odp.privacy.accounting import epsilon as epsilon_of, mu_for
from odp.privacy.events import Event, GaussianRelease, adjacency_of
from odp.privacy.mechanisms import GaussianNoise, IntegerNoise, OperatingSystemNoise
from odp.research.simulation.engine import RunResult, simulate
from odp.research.simulation.engines.seam import Engine, LocalEngine
from odp.research.simulation.presets import preset_task
from odp.research.simulation.result_tables import html_table, text_table, write_csv, write_page
from odp.tasks.task import Task

_UNITS = 2**10  # grid steps of a score of 1
# Part of a trial's mu^2 that its score costs on top of its training.
_SCORE_SHARE = 0.05

#: Searched where no data are given: invented, and of the shape of a small population.
PROXY = "synthetic:n_users=2000,n_items=400,ratings_per_user=60"

_RANKS = (0, 2, 4, 8, 16)
_STEPS = (2, 3, 4, 5, 6)
_BIAS_SHARES = (0.15, 0.25, 0.35, 0.5)
_USER_RIDGES = (0.4, 0.6, 0.75, 1.0)
_ITEM_RIDGES = (0.5, 1.0, 2.0, 4.0)
_EXPONENTS = (0.0, 0.125, 0.25, 0.375, 0.5)
_BOUNDS = (50, 100, 200, 300, 500)


@dataclass(frozen=True)
class Trial:
    """One set of settings.

    Attributes:
      task: what was trained.
      score: validation RMSE; of private data with noise.
      charges: all releases, the score's included; empty on proxy data.
    """

    task: Task
    score: float
    charges: tuple[Event, ...]

    def settings(self) -> dict[str, Any]:
        """What the search varies."""
        training = cast("DPAM", self.task.training)  # the search makes no other
        features = self.task.factorization.features
        return {
            "rank": self.task.factorization.rank,
            "features": 0 if features is None else features.shape[1],
            "max_items_per_user": self.task.privacy.bound(self.task.factorization.items),
            "steps": training.steps,
            "bias_share": training.bias_share,
            "user_ridge": training.user_ridge,
            "item_ridge": training.item_ridge,
            "weight_exponent": training.weight_exponent,
        }


@dataclass(frozen=True, repr=False)
class Tuning:
    """All trials in order; ``best`` has the lowest score, and ``task`` is its task.

    Attributes:
      private: whether the data were private, so that the trials were charged.
      epsilon: of all trials together at ``delta``; 0 on proxy data.
      notes: how the table was read: what was guessed, and how many rows were left out.
    """

    data: str
    private: bool
    trials: tuple[Trial, ...]
    best: Trial
    epsilon: float
    delta: float
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """The task with the best settings, ready to simulate or to submit."""
        return self.best.task

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per trial, in order: ``trial`` from 1 on, the settings, ``score`` and, of private data, ``epsilon``.

        ``epsilon`` is what the search cost up to that trial.
        """
        rows, charged = [], list[Event]()
        for number, trial in enumerate(self.trials, start=1):
            charged.extend(trial.charges)
            spent = {"epsilon": epsilon_of(charged, delta=self.delta)} if self.private else {}
            rows.append({"trial": number} | trial.settings() | {"score": trial.score} | spent)
        return rows

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Writes ``rows``, and returns the path. Raises DataError where it cannot be written."""
        return write_csv(path, self.rows)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes a page with the best settings and all trials, and returns its path. Raises DataError."""
        title = f"Search for settings on {self.data}"
        parts = [
            page.heading(title, 1),
            page.paragraph(self._verdict(), "verdict"),
            page.table("trials", *self._cells()),
            *map(page.paragraph, (self.statement, *self.notes)),
        ]
        return write_page(path, page.document(title, parts))

    def _verdict(self) -> str:
        place, noisy = self.trials.index(self.best) + 1, " (noisy)" if self.private else ""
        return f"trial {place} of {len(self.trials)} is the best: validation RMSE {self.best.score:.4f}{noisy}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        rows = self.rows
        shown = [["by rule" if value is None else _short(value) for value in row.values()] for row in rows]
        return list(rows[0]), shown

    def __repr__(self) -> str:
        return "\n".join([self._verdict(), text_table(*self._cells()), self.statement, *self.notes])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._verdict())}</p>{html_table(*self._cells())}"

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that was charged, in order."""
        return tuple(event for trial in self.trials for event in trial.charges)

    @property
    def statement(self) -> str:
        """One line for people about the cost of the search."""
        if not self.private:
            return (
                f"searched on proxy data ({self.data}): no private data was read, ε spent 0. "
                "The settings carry over as far as the proxy resembles the population"
            )
        return (
            f"searched on private data ({self.data}): {len(self.trials)} trials cost ε = {self.epsilon:.4g} at "
            f"δ = {self.delta:g} per user in all, scores included ({adjacency_of(self.events).value}; the number of "
            "users, the list of items and the declared bounds count as public); training again with the best settings "
            "costs its own ε on top"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-able summary; of a private search without its seconds, which may depend on the data."""
        return {
            "data": self.data,
            "private": self.private,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "statement": self.statement,
            "best": self.best.settings() | {"score": self.best.score},
            "trials": [trial.settings() | {"score": trial.score} for trial in self.trials],
            "charges": [event.to_json() for event in self.events],
            "notes": list(self.notes),
            **({} if self.private else {"seconds": round(self.seconds, 2)}),
        }


def tune(
    data: Ratings | str | os.PathLike[str] | Any = None,
    *,
    epsilon: float = 8.0,
    delta: float = 1e-6,
    trials: int = 10,
    seed: int = 1,
    private: bool | None = None,
    features: bool | None = None,
    cut: TimeCut | None = None,
    on_trial: Callable[[int, Trial], None] | None = None,
    noise: IntegerNoise | None = None,
    engine: Engine | None = None,
) -> Tuning:
    """Random search; the first trial is ``DPAM.recommended``.

    Args:
      data: proxy data, or the private data themselves: ratings, or what ``odp.load`` reads. By default invented ratings
        of 2,000 users. Of private ratings, neither the items nor the scale may follow from who rated what
        (``Ratings.inferred``): as ``load(.., whole_catalogue=True)`` has it, which is how private data are loaded here.
      epsilon: what one trial's training may spend; finite.
      delta: of each trial, and of the printed total.
      trials: how many.
      seed: of the settings, the split and what users choose; on proxy data of the noise, too.
      private: whether ``data`` are private, so that every trial is charged and its score noised; has to be said of
        given data.
      features: whether all models use the public item features of the data; None is where there are any.
      cut: the moment from which on ratings are left out of the search, for a test that is later than all of it; None
        leaves out a tenth at random. Of private data it has to be a moment that is known without them.
      on_trial: called after each, for progress.
      engine: where trials are computed, several at once on a cluster; None is this machine. A private search stays
        here.
      noise: of a private search; the default is that of the operating system, and the only one that protects anybody.

    Raises:
      ConfigurationError: a number is out of range, or ``private`` is missing.
      DataError: the data set holds implicit feedback, or is asked for features that it does not have; or it is private,
        and its items or its scale were guessed.
      PrivacyError: as ``preset_task``.
    """
    started = time.perf_counter()
    _validate.integer(trials=trials, low=1, high=10_000)
    _validate.positive(epsilon=epsilon)
    if private is None:
        if data is not None:
            raise ConfigurationError(
                "Expected private=True or private=False with data: each trial of a search on private data is a release "
                "about them and is charged; public or invented data cost nothing"
            )
        private = False
    source = PROXY if data is None else data
    ratings = source if isinstance(source, Ratings) else load(source, whole_catalogue=private)
    if private and ratings.inferred:
        raise DataError(
            f"the {' and the '.join(ratings.inferred)} of the data set {ratings.name!r} follow from the data, and a "
            "search on private data takes them as public: declare them, as with "
            "dataclasses.replace(ratings, n_items=.., low=.., high=.., inferred=())"
        )
    if ratings.implicit:
        raise DataError(
            f"the data set {ratings.name!r} holds implicit feedback; the search is for ratings, "
            "and `odp simulate --preset auto` takes the recommended settings"
        )
    used = has_item_features(ratings) if features is None else features
    base = preset_task("auto", ratings, epsilon=epsilon, delta=delta, features=used)
    if private and cut is not None and not cut.is_public(ratings):
        raise DataError(
            f"the cut in time follows from the times of the private data set {ratings.name!r}: give a date, with times "
            "that are dates, or a number of their clock"
        )
    split = random_split(ratings, seed=seed) if cut is None else cut.split(ratings, seed=seed)
    rng = np.random.default_rng([seed, 7])
    secret = None
    if private:
        secret = GaussianNoise(OperatingSystemNoise()) if noise is None else noise
    if private and engine is not None and not isinstance(engine, LocalEngine):
        raise ConfigurationError(
            "Expected no engine with private data: a search on them draws its noise from the operating system here"
        )
    tasks = (base if not number else _random_task(base, rng) for number in range(trials))
    arguments = ((number, (task, split, seed + number, secret)) for number, task in enumerate(tasks))
    by_number: dict[int, Trial] = {}
    for number, trial in (engine or LocalEngine()).each(_trial, arguments):
        by_number[number] = trial
        if on_trial is not None:
            on_trial(number, trial)
    done = [by_number[number] for number in range(trials)]
    events = [event for trial in done for event in trial.charges]
    return Tuning(
        data=ratings.name,
        private=private,
        trials=tuple(done),
        best=min(done, key=lambda trial: trial.score),
        epsilon=epsilon_of(events, delta=delta) if events else 0.0,
        delta=delta,
        seconds=time.perf_counter() - started,
        notes=ratings.notes,
    )


def _trial(task: Task, split: Split, seed: int, secret: IntegerNoise | None) -> Trial:
    run = simulate(task, split, seed=seed, noise=True if secret is None else secret)
    return _scored(task, run, split, noise=secret)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _random_task(base: Task, rng: np.random.Generator) -> Task:
    """A task with random settings; those that the rules refuse are drawn again."""
    items, features = base.factorization.items, base.factorization.features
    # Factors that need no round of their own: with features there may be many of them.
    ready = DERIVED_FACTORS + (0 if features is None else features.shape[1])
    ranks = sorted({*_RANKS, min(ready, MAX_RANK)})
    for _ in range(1000):
        rank = int(rng.choice(ranks))
        steps = 0 if rank == 0 or (rank <= ready and rng.random() < 0.5) else int(rng.choice(_STEPS))
        bound = min(int(rng.choice(_BOUNDS)), items)
        training = DPAM(
            steps=steps,
            bias_share=float(rng.choice(_BIAS_SHARES)),
            user_ridge=float(rng.choice(_USER_RIDGES)),
            item_ridge=float(rng.choice(_ITEM_RIDGES)),
            weight_exponent=float(rng.choice(_EXPONENTS)),
        )
        task = dataclasses.replace(
            base,
            model=dataclasses.replace(base.factorization, rank=min(rank, items)),
            privacy=dataclasses.replace(base.privacy, max_items_per_user=bound),
            training=training,
        )
        try:
            algorithm_for(task.definition()).check()
        except OdpError:
            continue
        return task
    raise ConfigurationError(
        f"Expected epsilon={base.privacy.epsilon!r} and items={items} to admit some settings of the search; "
        "raise epsilon"
    )


def _scored(task: Task, run: RunResult, split: Split, *, noise: IntegerNoise | None) -> Trial:
    if noise is None:
        return Trial(task, run.metrics["validation_rmse"], ())
    privacy, validation = task.privacy, split.validation
    predicted = recommender_for(task.definition()).population().predict(run.model, split.train, validation)
    largest = ((validation.high - validation.low) / 2) ** 2
    # What is no number counts as the largest error: one user's data must not make the sum of all of them none.
    errors = np.nan_to_num((predicted - validation.values) ** 2 / largest, nan=1.0).clip(0.0, 1.0)
    counts = validation.counts()
    means = np.bincount(validation.users(), weights=errors, minlength=validation.n_users) / np.maximum(counts, 1)
    score, event = noisy_score(means[counts > 0], epsilon=privacy.epsilon, delta=privacy.delta, noise=noise)
    charges = tuple(charge for events in run.charges for charge in events)
    return Trial(task, math.sqrt(largest * score), (*charges, event))


def noisy_score(
    errors: np.ndarray, *, epsilon: float, delta: float, noise: IntegerNoise
) -> tuple[float, GaussianRelease]:
    """(noisy mean in [0, 1], its charge) of one number in [0, 1] per user, float64 [users].

    The charge is a fixed small part of the mu^2 of (epsilon, delta).
    """
    mu = math.sqrt(_SCORE_SHARE) * mu_for(epsilon=epsilon, delta=delta, coordinates=2)
    event = GaussianRelease(
        "validation_score", sensitivity=math.sqrt(2.0), noise_std=math.sqrt(2.0) / mu, coordinates=2
    )
    # Truncated per user, so that no rounding adds to the sensitivity.
    exact = np.array([np.trunc(errors * _UNITS).sum(), len(errors) * _UNITS]).astype(np.int64)
    total, users = noised(event, exact, step=1.0 / _UNITS, noise=noise)
    return float(np.clip(total / max(users, 1.0), 0.0, 1.0)), event

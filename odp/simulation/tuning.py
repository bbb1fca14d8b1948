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
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from odp import _validate
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.terms import DERIVED_FACTORS, MAX_RANK
from odp.algorithms.registry import algorithm_for, recommender_for
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split
from odp.datasets.splitting import random_split
from odp.errors import ConfigurationError, DataError, OdpError
from odp.evaluation.noise import noised
from odp.privacy.accounting import epsilon as epsilon_of
from odp.privacy.accounting import mu_for
from odp.privacy.events import Event, GaussianRelease, adjacency_of
from odp.privacy.mechanisms import GaussianNoise, IntegerNoise, OperatingSystemNoise
from odp.simulation.engine import RunResult, simulate
from odp.simulation.presets import preset_task
from odp.task import Task

_UNITS = 2**10  # grid steps of a score of 1
# Part of a trial's mu^2 that its score costs on top of its training.
_SCORE_SHARE = 0.05

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


@dataclass(frozen=True)
class Search:
    """All trials in order; ``best`` has the lowest score.

    Attributes:
      private: whether the data were private, so that the trials were charged.
      epsilon: of all trials together at ``delta``; 0 on proxy data.
    """

    data: str
    private: bool
    trials: tuple[Trial, ...]
    best: Trial
    epsilon: float
    delta: float
    seconds: float

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
            **({} if self.private else {"seconds": round(self.seconds, 2)}),
        }


def tune(
    ratings: Ratings,
    *,
    epsilon: float,
    delta: float,
    trials: int = 10,
    seed: int = 1,
    private: bool,
    features: bool | None = None,
    on_trial: Callable[[int, Trial], None] | None = None,
    noise: IntegerNoise | None = None,
) -> Search:
    """Random search; the first trial is ``DPAM.recommended``.

    Args:
      ratings: proxy data, or the private data themselves. Of private data, the number of items must not follow from who
        rated what: ``load(.., whole_catalogue=True)``.
      epsilon: what one trial's training may spend; finite.
      delta: of each trial, and of the printed total.
      trials: how many.
      seed: of the settings, the split and what users choose; on proxy data of the noise, too.
      private: whether ``ratings`` are private, so that every trial is charged and its score noised.
      features: whether all models use the public item features of the data; None is where there are any.
      on_trial: called after each, for progress.
      noise: of a private search; the default is that of the operating system, and the only one that protects anybody.

    Raises:
      ConfigurationError: a number is out of range.
      DataError: the data set holds implicit feedback, or is asked for features that it does not have.
      PrivacyError: as ``preset_task``.
    """
    started = time.perf_counter()
    _validate.integer(trials=trials, low=1, high=10_000)
    _validate.positive(epsilon=epsilon)
    if ratings.implicit:
        raise DataError(
            f"the data set {ratings.name!r} holds implicit feedback; the search is for ratings, "
            "and `odp simulate --preset auto` takes the recommended settings"
        )
    used = has_item_features(ratings) if features is None else features
    base = preset_task("auto", ratings, epsilon=epsilon, delta=delta, features=used)
    split = random_split(ratings, seed=seed)
    rng = np.random.default_rng([seed, 7])
    secret = None
    if private:
        secret = GaussianNoise(OperatingSystemNoise()) if noise is None else noise
    done: list[Trial] = []
    for number in range(trials):
        task = base if not number else _drawn(base, rng)
        run = simulate(task, split, seed=seed + number, noise=True if secret is None else secret)
        done.append(_scored(task, run, split, noise=secret))
        if on_trial is not None:
            on_trial(number, done[-1])
    events = [event for trial in done for event in trial.charges]
    return Search(
        data=ratings.name,
        private=private,
        trials=tuple(done),
        best=min(done, key=lambda trial: trial.score),
        epsilon=epsilon_of(events, delta=delta) if events else 0.0,
        delta=delta,
        seconds=time.perf_counter() - started,
    )


def _drawn(base: Task, rng: np.random.Generator) -> Task:
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

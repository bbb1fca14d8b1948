"""What a researcher should know before a run: odd data that is handled, and noise that will drown the signal.

What is wrong is refused elsewhere, with a message: non-finite or out-of-range values and item ids by ``Ratings``,
a task that does not fit by ``check_population``. Here is what is allowed and worth a line:

========================  ===================================================================================
users without ratings     take part (their contribution is zero), so that the devices in a round tell nothing
users with one rating     may end up with no training or no test rating; they get the items' values
duplicates                the last of several rows of one (user, item) wins; the count of dropped rows is told
noise above the signal    the model falls back toward user means; told with the population that would do
========================  ===================================================================================
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.datasets.ratings import Ratings, Split
from odp.errors import ConfigurationError
from odp.models.statistics import Statistics
from odp.task import RatingsData, Task

NOT_A_RELEASE = (
    "not a private release: errors, rankings and baselines are computed from the data, without noise and uncharged; ε "
    "is that of the charged releases alone"
)
"""What is said wherever somebody who owns the data evaluates a model on them."""

SIMULATION = f"simulation, {NOT_A_RELEASE}"
"""What every simulation says of its numbers."""

ONE_PERMUTATION = (
    "the split is one permutation of all ratings, and follows from everybody's: ε is that of the parts as given, and "
    "not of the data set"
)
"""What is said of a comparison on ``permutation_split``."""


@dataclass(frozen=True)
class WeakSignal:
    """The noise exceeds the signal of an average item.

    Attributes:
      raters_needed: raters of an average item at which its sum equals the noise.
      raters: what the population has, each counted with its weight.
      users_needed: users at which an average item has enough of them, all else alike.
    """

    raters_needed: float
    raters: float
    users_needed: int

    def __str__(self) -> str:
        """One line that says what happens, and what to do."""
        return (
            f"the noise exceeds the signal: an average item needs {self.raters_needed:,.0f} raters and has "
            f"{self.raters:,.0f}; the model falls back to user means. "
            f"It would work from about {self.users_needed:,} users at this ε, or at a larger ε"
        )


def require_kinds(task: object, population: object) -> None:
    """Raises ConfigurationError, with the way out, unless ``task`` is a task and ``population`` data of users."""
    if not isinstance(task, (Task, Statistics)):
        way = f"; odp.load_task({str(task)!r}) reads a task file" if isinstance(task, (str, os.PathLike)) else ""
        raise ConfigurationError(f"Expected task to be an odp.Task or odp.Statistics, got a {type(task).__name__}{way}")
    if not isinstance(population, (Ratings, Split)):
        named = isinstance(population, (str, os.PathLike))
        way = f"; odp.load({str(population)!r}) loads a data set" if named else ""
        raise ConfigurationError(
            f"Expected population to be odp.Ratings or a Split, got a {type(population).__name__}{way}"
        )


def check_rank(task: Task) -> None:
    """Raises ConfigurationError where the model is wider than it has items: such factors cannot be told apart."""
    if task.model.rank > task.model.items:
        raise ConfigurationError(
            f"Expected rank={task.model.rank} to be at most items={task.model.items}; lower the rank of the model"
        )


def notes(ratings: Ratings) -> list[str]:
    """One line for each oddity of ``ratings`` that is handled without an error; counts only, no data."""
    counts = ratings.counts()
    found = []
    for number, what in (
        (int((counts == 0).sum()), "without ratings: they take part with empty contributions"),
        (int((counts == 1).sum()), "with a single rating: most of them cannot be tested on their own history"),
    ):
        if number:
            found.append(f"{number:,} of {ratings.n_users:,} users {what}")
    if ratings.duplicates:
        found.append(f"{ratings.duplicates:,} rows named a (user, item) pair again: the last one of each pair counts")
    return found


def sampling_note(task: Task) -> list[str]:
    """What a simulation of a sampled task assumes and cannot provide; nothing for full participation."""
    if task.cohort.sampling_probability is None:
        return []
    return [
        f"sampling assumed secret: each user counts in a round with probability {task.cohort.sampling_probability:g}, "
        "and epsilon holds against whoever cannot see which; on the platform the enclave draws them (enclave_poisson)"
    ]


def weak_signal(task: Task, train: Ratings) -> WeakSignal | None:
    """Whether the item sums drown in noise; None where they do not, without noise, or for implicit feedback.

    The rule: a sum with noise of standard deviation s C beats it from about ``s C / rms`` raters of weight 1 on, with
    rms the size of targets: at most C, to which those of a user together are shortened, and by a public guess a 4.5th
    of the declared range. Reads the population's mean number of ratings per user, so it is a diagnostic of a
    simulation, not a release.
    """
    if task.privacy.epsilon == math.inf or not train.n_ratings or not isinstance(task.data, RatingsData):
        return None
    definition = task.definition()
    query = algorithm_for(definition).query(1)
    sums = {event.name: event for event in charges_of(query)}.get("sums")
    if sums is None:
        return None
    needed = sums.noise_std / min((task.data.high - task.data.low) / 4.5, definition.dpam.bias_vector_clip)
    bound = task.privacy.bound(task.model.items)
    used = np.minimum(train.counts(), bound).astype(np.float64)
    # A user's squared weights add up to the bound when weights adapt; uniform weights are 1.
    weights = np.sqrt(used * bound) if task.training.weighting == "adaptive" else used
    # Of a sampled task, only the drawn users' weights are in a sum.
    raters = (task.cohort.sampling_probability or 1.0) * float(weights.sum()) / task.model.items
    if raters >= needed:
        return None
    return WeakSignal(needed, raters, math.ceil(train.n_users * needed / raters))

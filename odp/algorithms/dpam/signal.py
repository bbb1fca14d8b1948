"""Whether noise will drown what a rating model is to learn: a researcher should know it before a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.algorithms.choices import TrainingTask
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.data import RatingsData
from odp.algorithms.dpam.query import DpamQuery
from odp.algorithms.dpam.terms import Terms
from odp.datasets.ratings import Ratings


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


def weak_signal(task: TrainingTask, train: Ratings) -> WeakSignal | None:
    """Whether the item sums drown in noise; None where they do not, without noise, or for implicit feedback.

    The rule: a sum with noise of standard deviation s C beats it from about ``s C / rms`` raters of weight 1 on, with
    rms the size of targets: at most C, to which those of a user together are shortened, and by a public guess a 4.5th
    of the declared range. Reads the population's mean number of ratings per user, so it is a diagnostic of a
    simulation, not a release.
    """
    if (
        task.privacy.epsilon == math.inf
        or not train.n_ratings
        or not (isinstance(task.data, RatingsData) and isinstance(task.training, DPAM))
    ):
        return None
    definition = task.definition()
    query = DpamQuery(Terms.of(definition), 1)
    sums = {release.name: release for release in query.releases}.get("sums")
    if sums is None:
        return None
    needed = sums.noise_std / min((task.data.high - task.data.low) / 4.5, definition.dpam.bias_vector_clip)
    bound = task.privacy.bound(task.factorization.items)
    used = np.minimum(train.counts(), bound).astype(np.float64)
    # A user's squared weights add up to the bound when weights adapt; uniform weights are 1.
    weights = np.sqrt(used * bound) if task.training.weighting == "adaptive" else used
    # Of a sampled task, only the drawn users' weights are in a sum.
    raters = (task.cohort.sampling_probability or 1.0) * float(weights.sum()) / task.factorization.items
    if raters >= needed:
        return None
    return WeakSignal(needed, raters, math.ceil(train.n_users * needed / raters))

"""Simulates a statistics task on one machine: every user's vector, the sum, the noise, and what was there before."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from odp.algorithms.dense.shares import sum_of_shares
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of, draw_noise, to_values
from odp.algorithms.statistics.results import Results, results_of
from odp.algorithms.statistics.terms import RELEASE, ROUND, Terms
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.models.statistics import Statistics
from odp.privacy.accounting import epsilon as epsilon_of
from odp.privacy.events import DistributedRelease, GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise, IntegerNoise
from odp.simulation.inputs import SIMULATION
from odp.simulation.noise import NoNoise, SeededNoise
from odp.simulation.users import user_seeds
from odp.task import check_delta_for


@dataclass(frozen=True)
class StatisticsRun:
    """A simulated statistics task.

    Attributes:
      statistics: What a server would get.
      exact: The same without noise, after clipping and rounding: nobody would ever see it.
      epsilon: What the joint release cost at ``delta``; infinity where noise was off.
      charges: The one event of the ledger, none where noise was off.
    """

    task: Statistics
    statistics: Results
    exact: Results = field(repr=False)
    epsilon: float
    delta: float
    charges: tuple[GaussianRelease | DistributedRelease, ...]
    seconds: float

    def draw(self, path: str | Path) -> None:
        """Saves a picture of the answers, with what was there. Raises DataError where it cannot."""
        self.statistics.draw(path, exact=self.exact)

    def to_json(self) -> dict[str, object]:
        """A JSON-able summary; the keys that scripts may rely on."""
        return {
            "statement": SIMULATION,
            "task": self.task.name,
            "statistics": self.statistics.to_json(),
            "exact": self.exact.to_json(),
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "seconds": round(self.seconds, 3),
            "charges": [event.to_json() for event in self.charges],
        }


def simulate_statistics(
    task: Statistics, population: Ratings, *, seed: int = 1, noise: bool | IntegerNoise = True
) -> StatisticsRun:
    """Asks every user of ``population``; arguments as in ``odp.simulate``.

    Raises:
      DataError: there are no users, or more than the round takes, or fewer than share its noise.
      PrivacyError: delta is no guarantee at this number of users.
    """
    started = time.perf_counter()
    definition = task.definition()
    algorithm = algorithm_for(definition)
    terms = Terms.of(definition)
    maximum = terms.grid.maximum
    if not 0 < population.n_users <= maximum:
        raise DataError(
            f"Expected 1 to {maximum} users, as the cohort's goal allows (got {population.n_users}); "
            "set the goal to the users of the data set"
        )
    if population.n_users < terms.grid.sharers:
        raise DataError(
            f"Expected at least {terms.grid.sharers} users, whose shares together are the charged noise "
            f"(got {population.n_users}); lower the cohort's minimum, or take more users"
        )
    check_delta_for(task.privacy.delta, population.n_users)
    broadcast = algorithm.server().broadcast(b"")
    seeds = user_seeds(population, seed)
    totals = algorithm.population().contribute(broadcast, population, round=ROUND, seeds=seeds)
    query = algorithm.query(ROUND)
    (release,) = query.releases
    silent = noise is False or isinstance(noise, NoNoise)
    source = noise if not isinstance(noise, bool) else GaussianNoise(SeededNoise(seed)) if noise else NoNoise()
    charges = () if silent else charges_of(query)
    epsilon = math.inf if silent else epsilon_of(list(charges), delta=task.privacy.delta)
    exact = totals[RELEASE]
    if terms.grid.sharers and noise is True:
        drawn = sum_of_shares(terms.grid, SeededNoise(seed), sharers=population.n_users)
    else:
        drawn = draw_noise(release, source)

    def results(integers: np.ndarray, *, noisy: bool) -> Results:
        return results_of(
            definition,
            to_values(release, integers),
            contributions=population.n_users,
            epsilon=epsilon if noisy else math.inf,
            noisy=noisy,
        )

    return StatisticsRun(
        task=task,
        statistics=results(exact + drawn, noisy=not silent),
        exact=results(exact, noisy=False),
        epsilon=epsilon,
        delta=task.privacy.delta,
        charges=charges,
        seconds=time.perf_counter() - started,
    )


def require_statistics_options(**given: object) -> None:
    """Raises ConfigurationError for the first option of ``odp.simulate`` that is only for models and was given."""
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(f"Expected no {name} with odp.Statistics: there is one round and no model")

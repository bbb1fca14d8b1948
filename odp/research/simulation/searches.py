"""Simulates a question of several rounds on one machine: each round's counts follow from the releases before it."""

from __future__ import annotations

import math
import time

import numpy as np

from odp.algorithms.capabilities import Answers, Diagnosed
from odp.algorithms.choices import Question
from odp.algorithms.release import draw_noise, round_charges, to_values
from odp.algorithms.seam import NoisyTensors
from odp.datasets.texts import UsersTexts
from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import NoNoise, SeededNoise
from odp.evaluation.users import UInt64Array, user_seeds
from odp.privacy.accounting import epsilon as epsilon_of
from odp.privacy.events import Event
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise, IntegerNoise
from odp.protocol.terms import check_delta_for
from odp.research.simulation.answers import AnswersRun


def simulate_search(
    task: Question, algorithm: Diagnosed, population: object, *, seed: int, noise: bool | IntegerNoise
) -> AnswersRun:
    """Asks every user of ``population`` in every round; arguments as in ``odp.simulate``.

    Raises:
      ConfigurationError: the population has no texts.
      DataError: there are no users, or more than a round takes.
      PrivacyError: delta is no guarantee at this number of users.
    """
    started = time.perf_counter()
    if not isinstance(population, UsersTexts):
        raise ConfigurationError(
            f"Expected odp.data.UsersTexts with odp.{type(task).__name__}, got a {type(population).__name__}"
        )
    most = algorithm.query(0).maximum
    if not 0 < population.n_users <= most:
        raise DataError(
            f"Expected 1 to {most} users, as the cohort's goal allows (got {population.n_users}); "
            "set the goal to the users of the data set"
        )
    check_delta_for(task.privacy.delta, population.n_users)
    silent = noise is False or isinstance(noise, NoNoise)
    source = noise if not isinstance(noise, bool) else GaussianNoise(SeededNoise(seed), compiled=True)
    if silent:
        source = NoNoise()
    seeds = user_seeds(population, seed)
    charges: tuple[Event, ...] = ()
    if not silent:
        rounds = range(len(algorithm.planned_releases()))
        charges = tuple(event for number in rounds for event in round_charges(algorithm.query(number), None))
    epsilon = math.inf if silent else epsilon_of(list(charges), delta=task.privacy.delta)
    exact = _answers(algorithm, population, seeds, NoNoise(), epsilon=math.inf)
    results = exact if silent else _answers(algorithm, population, seeds, source, epsilon=epsilon)
    return AnswersRun(
        task=task,
        results=results,
        exact=exact,
        epsilon=epsilon,
        delta=task.privacy.delta,
        charges=charges,
        seconds=time.perf_counter() - started,
    )


def _answers(
    algorithm: Diagnosed, population: UsersTexts, seeds: UInt64Array, source: IntegerNoise, *, epsilon: float
) -> Answers:
    server, users = algorithm.server(), algorithm.population()
    state = server.start()
    releases: list[NoisyTensors] = []
    for number in range(server.rounds):
        query = algorithm.query(number)
        sums = users.contribute(server.broadcast(state), population, round=number, seeds=seeds)
        tensors = {
            release.name: to_values(release, np.asarray(sums[release.name]) + draw_noise(release, source))
            for release in query.releases
        }
        releases.append(NoisyTensors(number, tensors, population.n_users))
        state = server.step(state, releases[-1])
    return algorithm.diagnosed(releases, epsilon=epsilon)

"""Simulates a question on one machine: every user's vector, their sum, the noise, and the exact sum beside it.

Simulates a question of several rounds on one machine: each round's counts follow from the releases before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from odp.algorithms.capabilities import Answers, Diagnosed, RandomizedInquiry
from odp.algorithms.choices import Question
from odp.algorithms.declared import SharedNoiseSum
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.shares import sum_of_shares
from odp.algorithms.registry import inquiry_for, training_of
from odp.algorithms.release import charges_of, draw_noise, round_charges, to_values
from odp.algorithms.seam import NoisyTensors
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.ratings import Ratings, Split
from odp.datasets.texts import UsersTexts
from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import NoNoise, SeededNoise
from odp.evaluation.users import UInt64Array, user_seeds
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Int64Array
from odp.privacy.accounting import epsilon as epsilon_of
from odp.privacy.events import Event
from odp.privacy.ledger_events import charged
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise, IntegerNoise
from odp.protocol.terms import check_delta_for
from odp.research.simulation.inputs import SIMULATION, reading_notes, run_in_words

_ROUND = 0
_USERS: dict[str, type] = {"ratings": Ratings, "texts": UsersTexts}


@dataclass(frozen=True, repr=False)
class AnswersRun:
    """A simulated question.

    Attributes:
      results: What a server would get.
      exact: The same without noise, after clipping and rounding: no party of the platform sees it.
      epsilon: What the joint release cost at ``delta``; infinity where noise was off.
      charges: The one event of the ledger, none where noise was off.
      left_out: By the name of an answer, how many rows of the users it is not about, and why. Empty where all answers
        are about all rows.
      notes: How the users' table was read: what was guessed, and how many rows were left out.
    """

    task: Question
    results: Answers
    exact: Answers = field(repr=False)
    epsilon: float
    delta: float
    charges: tuple[Event, ...]
    seconds: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        about = [f"{name} {rows.sentence('rows')}" for name, rows in self.left_out.items() if rows.count]
        about += self.notes
        return run_in_words(self.task.name, max(len(self.charges), 1), self.epsilon, self.delta, self.seconds, about)

    def draw(self, path: str | Path) -> None:
        """Saves a picture of the answers beside the exact ones. Raises DataError where it cannot."""
        self.results.draw(path, exact=self.exact)

    def to_json(self) -> dict[str, object]:
        """A JSON-able summary; the keys that scripts may rely on. The answers stand under the name of the training."""
        return {
            "statement": SIMULATION,
            "task": self.task.name,
            str(training_of(self.task.definition())): self.results.to_json(),
            "exact": self.exact.to_json(),
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "seconds": round(self.seconds, 3),
            "left_out": {name: rows.to_json() for name, rows in self.left_out.items()},
            "notes": list(self.notes),
            "charges": [event.to_json() for event in self.charges],
        }


def simulate_answers(
    task: Question,
    population: Ratings | Split | ExamplesSplit | UsersExamples | UsersTexts,
    *,
    seed: int = 1,
    noise: bool | IntegerNoise = True,
) -> AnswersRun:
    """Asks every user of ``population``; arguments as in ``odp.simulate``.

    Raises:
      ConfigurationError: the question is about labelled examples and the population has ratings, or the reverse.
      DataError: there are no users, or more than the round takes, or fewer than share its noise.
      PrivacyError: delta is no guarantee at this number of users.
    """
    started = time.perf_counter()
    algorithm = inquiry_for(task.definition())
    if isinstance(algorithm, RandomizedInquiry):
        return _simulate_reports(task, algorithm, population, seed=seed, noise=noise, started=started)
    wanted = UsersExamples if any(table.features for table in algorithm.local_data) else Ratings
    if not isinstance(population, wanted):
        raise ConfigurationError(
            f"Expected odp.{wanted.__name__} with odp.{type(task).__name__}, not a {type(population).__name__}: all "
            "users are asked"
        )
    query = algorithm.query(_ROUND)
    (release,) = query.releases
    if not 0 < population.n_users <= query.maximum:
        raise DataError(
            f"Expected 1 to {query.maximum} users, as the cohort's goal allows (got {population.n_users}); "
            "set the goal to the users of the data set"
        )
    sharers = release.sharers if isinstance(release, SharedNoiseSum) else 0
    if population.n_users < sharers:
        raise DataError(
            f"Expected at least {sharers} users, whose shares together are the charged noise "
            f"(got {population.n_users}); lower the cohort's minimum, or take more users"
        )
    check_delta_for(task.privacy.delta, population.n_users)
    left_out = algorithm.left_out(population)
    server = algorithm.server(item_features=task.public_matrix)
    broadcast = server.broadcast(server.start())
    seeds = user_seeds(population, seed)
    exact = algorithm.population().contribute(broadcast, population, round=_ROUND, seeds=seeds)[release.name]
    silent = noise is False or isinstance(noise, NoNoise)
    source = noise if not isinstance(noise, bool) else GaussianNoise(SeededNoise(seed)) if noise else NoNoise()
    charges = () if silent else charged(charges_of(query))
    epsilon = math.inf if silent else epsilon_of(list(charges), delta=task.privacy.delta)
    if sharers and noise is True and isinstance(query, DenseQuery):
        noise_integers = sum_of_shares(query.grid, SeededNoise(seed), sharers=population.n_users)
    else:
        noise_integers = draw_noise(release, source)

    def results(integers: Int64Array, *, noisy: bool) -> Answers:
        answers = algorithm.answers(
            {release.name: to_values(release, integers)},
            contributions=population.n_users,
            epsilon=epsilon if noisy else math.inf,
            noisy=noisy,
        )
        return _with_left_out(answers, left_out)

    return AnswersRun(
        task=task,
        results=results(exact + noise_integers, noisy=not silent),
        exact=results(exact, noisy=False),
        epsilon=epsilon,
        delta=task.privacy.delta,
        charges=charges,
        seconds=time.perf_counter() - started,
        left_out=left_out,
        notes=reading_notes(population),
    )


def _simulate_reports(
    task: Question,
    algorithm: RandomizedInquiry,
    population: Ratings | UsersExamples | Split | ExamplesSplit | UsersTexts,
    *,
    seed: int,
    noise: bool | IntegerNoise,
    started: float,
) -> AnswersRun:
    """The same where the randomness is in what devices send: without it, the answers are the exact ones."""
    wanted = _USERS[algorithm.simulates]
    if not isinstance(population, wanted):
        raise ConfigurationError(
            f"Expected odp.{wanted.__name__} with odp.{type(task).__name__}, not a "
            f"{type(population).__name__}: all users are asked"
        )
    users: Any = population
    if not isinstance(noise, (bool, NoNoise)):
        raise ConfigurationError("Expected noise=True or False: the devices draw it, in their reports")
    if users.n_users < algorithm.fewest_users:
        raise DataError(
            f"Expected at least {algorithm.fewest_users} users, among whose reports each is hidden "
            f"(got {users.n_users}); lower the cohort's minimum, or take more users"
        )
    if users.n_users > algorithm.most_users:
        raise DataError(
            f"Expected at most {algorithm.most_users} users, as the cohort's goal allows (got {users.n_users}); "
            "set the goal to the users of the data set"
        )
    left_out = algorithm.left_out(users)
    exact = results = algorithm.exact(users)
    charges: tuple[Event, ...] = ()
    if noise is True:
        results, charges = algorithm.simulated(users, seeds=user_seeds(users, seed))
    return AnswersRun(
        task=task,
        results=_with_left_out(results, left_out),
        exact=_with_left_out(exact, left_out),
        epsilon=results.epsilon,
        delta=results.delta,
        charges=charges,
        seconds=time.perf_counter() - started,
        left_out=left_out,
        notes=reading_notes(users),
    )


def _with_left_out(answers: Any, left_out: Mapping[str, LeftOut]) -> Answers:
    """The answers with what they leave out."""
    complete: Answers = replace(answers, left_out=left_out) if left_out else answers
    return complete


def require_answer_options(kind: str, **options: object) -> None:
    """Raises ConfigurationError for the first option of ``odp.simulate`` that is only for models and was given."""
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(f"Expected no {name} with {kind}: there is one round and no model")


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

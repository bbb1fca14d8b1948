"""What a researcher should know before a run: odd data that is handled, and noise that will drown the signal.

Errors are raised elsewhere: by ``Ratings`` for values that are not finite or out of range and for item ids, by
``check_population`` for a task that does not fit. This module notes what is allowed:

========================  ===================================================================================
users of examples         at least the cohort's minimum, or no round could be released; an error otherwise
users without ratings     take part (their contribution is zero), so who is in a round tells nothing
users with one rating     may end up with no training or no test rating; they get the items' values
repeated rows             several rows of one (user, item) come to one rating; the number of others is noted
tables of one's own       what was guessed of the scale, and bad rows that were left out
noise above the signal    the model falls back to user means; noted with the population that is large enough
========================  ===================================================================================
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from odp._system.extras import advice, is_installed
from odp.algorithms.choices import Question, questions
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.ratings import Ratings, Split
from odp.datasets.texts import UsersTexts
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns
from odp.models.examples import Examples
from odp.tasks.task import Task

NOT_A_RELEASE = (
    "not a private release: errors, rankings and baselines are computed from the data, without noise and uncharged; ε "
    "is that of the charged releases alone"
)
"""Note on every evaluation of a model by the owner of the data."""

SIMULATION = f"simulation, {NOT_A_RELEASE}"
"""Note on the numbers of every simulation."""

ONE_PERMUTATION = (
    "the split is one permutation of all ratings, and follows from everybody's: ε is that of the parts as given, and "
    "not of the data set"
)
"""Note on a comparison on ``permutation_split``."""


#: From here on a simulation without compiled kernels takes long enough to say so.
_MANY_RATINGS = 500_000


def run_in_words(
    task: str, rounds: int, epsilon: float, delta: float, seconds: float, scores: Sequence[str] = ()
) -> str:
    """A finished simulation in one line, for its ``repr``."""
    spent = f"ε = {epsilon:.4g} at δ = {delta:g}" if math.isfinite(epsilon) else "no noise, nothing protected"
    facts = ", ".join([f"{rounds} round{'s' if rounds != 1 else ''}", spent, *scores, f"{seconds:.1f} s"])
    return f"<simulation of task {task!r}: {facts}>"


def require_kinds(task: object, population: object) -> None:
    """Raises ConfigurationError, with the way out, unless ``task`` is a task and ``population`` data of users."""
    kinds: tuple[type, ...] = (Task, *questions().values())
    if not isinstance(task, (Task, Question)):
        way = f"; odp.load_task({str(task)!r}) reads a task file" if isinstance(task, (str, os.PathLike)) else ""
        names = " or ".join(f"odp.{kind.__name__}" for kind in kinds)
        raise ConfigurationError(f"Expected task to be an {names}, got a {type(task).__name__}{way}")
    if not isinstance(population, (Ratings, Split, ExamplesSplit, ExampleColumns, UsersExamples, UsersTexts)):
        named = isinstance(population, (str, os.PathLike))
        loader = "load_examples" if isinstance(task, Task) and isinstance(task.data, Examples) else "load"
        way = f"; odp.{loader}({str(population)!r}) loads a data set" if named else ""
        raise ConfigurationError(
            f"Expected population to be odp.data.Ratings or a Split, got a {type(population).__name__}{way}"
        )
    users = population.train if isinstance(population, ExamplesSplit) else population
    if isinstance(users, UsersExamples) and isinstance(task, Task):
        _require_cohort(task, users)


def _require_cohort(task: Task, users: UsersExamples) -> None:
    if not users.n_users:
        raise ConfigurationError("Expected a population of at least one user (got none)")
    if users.n_users < task.cohort.minimum:
        raise ConfigurationError(
            f"Expected a cohort whose minimum={task.cohort.minimum} is at most the {users.n_users} users of the "
            "population: the enclave would release no round; lower it, or give the simulation more users"
        )


def require_scale(ratings: Ratings) -> None:
    """Raises DataError where values are on no scale, which bounds what a model learns of a person."""
    if not ratings.on_scale:
        raise DataError(
            f"the data set {ratings.name!r} was read as written, on no scale: load it with low=.. and high=.. for a "
            "model"
        )


def check_rank(task: Task) -> None:
    """Raises ConfigurationError where the model is wider than it has items: its factors are then not identified."""
    model = task.factorization
    if model.rank > model.items:
        raise ConfigurationError(
            f"Expected rank={model.rank} to be at most items={model.items}; lower the rank of the model"
        )


def count_note(task: object) -> list[str]:
    """Of a task with a count of usable rows, which part of its budget the simulation is of; nothing of another task."""
    question = task.usable_question() if isinstance(task, Task) else None
    if not isinstance(task, Task) or question is None:
        return []
    return [
        f"of the training alone: the count of usable rows has ε = {question.privacy.epsilon:.3g} of the task's "
        f"{task.privacy.epsilon:g}, and here examples that are left out are counted exactly"
    ]


def notes(users: Ratings | UsersExamples) -> list[str]:
    """One line for each oddity of data that is handled without an error; counts only, no data."""
    if isinstance(users, UsersExamples):
        empty = int((users.offsets[1:] == users.offsets[:-1]).sum())
        about = f"{empty:,} of {users.n_users:,} users without examples: they take part with empty contributions"
        return [about] if empty else []
    return _notes_of_ratings(users)


def _notes_of_ratings(ratings: Ratings) -> list[str]:
    counts = ratings.counts()
    lines = list(ratings.notes)
    for number, what in (
        (int((counts == 0).sum()), "without ratings: they take part with empty contributions"),
        (int((counts == 1).sum()), "with a single rating: most of them cannot be tested on their own history"),
    ):
        if number:
            lines.append(f"{number:,} of {ratings.n_users:,} users {what}")
    if ratings.n_ratings >= _MANY_RATINGS and not is_installed("numba"):
        lines.append(f"{ratings.n_ratings:,} ratings take several times longer, as {advice('numba')}")
    return lines


def reading_notes(users: object) -> tuple[str, ...]:
    """How the table of the users of a simulation was read; none of data that are no table."""
    part = users.train if isinstance(users, Split) else users
    return part.notes if isinstance(part, Ratings) else ()


def sampling_note(task: Task) -> list[str]:
    """What a simulation of a sampled task assumes and cannot provide; nothing for full participation."""
    cohort = task.definition().cohort
    if not cohort.HasField("enclave_poisson"):
        return []
    rates = {block.probability for block in cohort.schedule} or {cohort.enclave_poisson.probability}
    return [
        f"sampling assumed secret: each user counts in a round with probability {_range(rates)}, "
        "and epsilon holds against whoever cannot see which; on the platform the enclave draws them (enclave_poisson)"
    ]


def _range(rates: set[float]) -> str:
    low, high = min(rates), max(rates)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"

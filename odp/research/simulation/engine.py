"""Simulates a task on one machine: the algorithm's own four computations, vectorised over users.

The release path is the enclave's (same query, same grid, same size of noise), so the printed ε is the ε of the same
task on real devices. Rounds of more than ``MOST_EXACT`` numbers draw rounded float normals, not the exact sampler.
The noise comes from a seeded generator, so that a run can be repeated. A simulated model therefore protects nobody
from a person who knows the seed.

The enclave's part of a simulated stream: exact sums are encoded with the same integers; and who comes to a round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from odp.algorithms.capabilities import Diagnosed, Recommender
from odp.algorithms.cohorts import goal_of
from odp.algorithms.declared import NoisySum, ShuffledCounts
from odp.algorithms.experiment import Metrics, evaluation_of
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import draw_noise, round_charges, sampling_of, to_values
from odp.algorithms.seam import Algorithm, NoisyTensors, Query, StreamQuery
from odp.datasets.catalogue import numbered_users
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.ratings import Ratings, Split, merge
from odp.datasets.splitting import random_split
from odp.datasets.texts import UsersTexts
from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import NoNoise, RoundedNormals, SeededNoise
from odp.evaluation.ranking import Ranking
from odp.evaluation.reliability import Reliability
from odp.evaluation.users import draw_users, due_users, first_users, user_seeds
from odp.models.example_columns import ExampleColumns
from odp.models.example_tables import split_for
from odp.models.examples import Examples
from odp.models.intervals import DEFAULT_LEVEL, Intervals
from odp.models.left_out import LeftOut, left_out_in_words
from odp.models.matrix_factorization import MatrixFactorization
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.privacy.accounting import epsilon as epsilon_of
from odp.privacy.events import Event
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.matrix.sensitivity import Participation
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise, IntegerNoise
from odp.protocol.terms import check_delta_for
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation import personal
from odp.research.simulation.answers import simulate_search
from odp.research.simulation.engines.seam import Engine, LocalEngine, current
from odp.research.simulation.inputs import (
    SIMULATION,
    check_rank,
    reading_notes,
    require_kinds,
    require_scale,
    run_in_words,
)
from odp.research.simulation.record import NoisyTotals, noisy_totals
from odp.research.simulation.rounds import (
    Checkpoint,
    Place,
    RoundResult as RoundResult,
    restored_round,
    run_identity,
    saved_round,
)
from odp.serving.classifier import Classifier
from odp.tasks.task import Task

if TYPE_CHECKING:
    from odp.algorithms.choices import Question
    from odp.research.simulation.answers import AnswersRun as AnswersRun


class SimulatedStream:
    """The past sums of a simulation; without a stream, sums stay as they are.

    Args:
      query: of any round.
      state: as ``to_bytes`` gave it; empty before the first round.
    """

    def __init__(self, query: Query, state: bytes = b"") -> None:
        self._encoder: Encoder | None = None
        if isinstance(query, StreamQuery):
            self._encoder = query.encoder(state=state or None)

    def encoded(self, totals: Mapping[str, Int64Array]) -> Mapping[str, Int64Array]:
        """What the round releases of its exact sums, before noise."""
        if self._encoder is None:
            return totals
        return {name: self._encoder.step(total) for name, total in totals.items()}

    def to_bytes(self) -> bytes:
        """The state."""
        return b"" if self._encoder is None else self._encoder.to_bytes()


def participation_of(algorithm: Algorithm) -> Participation | None:
    """How users come to the rounds of a task; None where each is in every round.

    Where a device sends few reports in its life, it comes at equal distances.
    """
    query = algorithm.query(0)
    if isinstance(query, StreamQuery):
        return query.allowed
    if algorithm.local_charge is None:
        return None
    rounds = len(algorithm.planned_releases())
    most = min(algorithm.local_charge.most, rounds)
    return Participation(rounds=rounds, most=most, separation=rounds // most)


MOST_EXACT = 2**24
"""Numbers in a round's releases up to which the simulator draws the enclave's exact noise; some 3 s at most."""


#: The summary of a run has these keys: null where its algorithm has no such metric.
_SUMMARY_METRICS = ("test_rmse", "validation_rmse")


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished simulation.

    Attributes:
      metrics: Of the final model, as its algorithm names them: ``odp.DPAM`` has ``test_rmse`` and ``validation_rmse``,
        each user solved on train and validation ratings for the test, and NaN without such ratings, and
        ``test_intervals``: what the ranges of predictions cover, level by level, over at most 1,024 users;
        ``odp.ImplicitDPAM`` has ``test_ranking`` and ``validation_ranking`` on all users with such items.
      epsilon: Spent by all releases at ``delta``; infinity where noise was off.
      charges: By round; none where the task asks for no noise (epsilon infinite).
      model: The final broadcast, as devices would fetch it.
      totals: Of every release, in order; also of rounds before a checkpoint.
      item_counts: Of the items, as the server knows them from the noisy counts; float64 [m], [0] without items.
      left_out: Of labelled examples, how many of "train" and "test" the model cannot use, and why; empty for ratings.
    """

    task: Task
    rounds: tuple[RoundResult, ...]
    charges: tuple[tuple[Event, ...], ...]
    model: ModelVersion
    metrics: Metrics
    epsilon: float
    delta: float
    seconds: float
    history: Any = field(repr=False)
    totals: tuple[NoisyTotals, ...]
    item_counts: Float64Array = field(repr=False)
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the users' table was read: what was guessed, and how many rows were left out."""
        return reading_notes(self.history)

    def __repr__(self) -> str:
        scores = [f"{name} {value:.4f}" for name, value in self.metrics.items() if isinstance(value, float)]
        scores += filter(None, [left_out_in_words(self.left_out), *self.notes])
        return run_in_words(self.task.name, len(self.rounds), self.epsilon, self.delta, self.seconds, scores)

    @property
    def noisy(self) -> bool:
        """Whether there was noise; without it ``charges`` are what noise would have cost, and nothing was protected."""
        return math.isfinite(self.epsilon)

    def recommend(self, user: int, *, count: int = 10) -> list[tuple[int, float]]:
        """The ``count`` items with the highest predicted value that ``user`` has not rated, best first.

        Values are within the declared range of ratings. ``user`` and items count as those of the data set do.
        """
        return personal.recommend(self.task, self.model, self.history, user, count=count)

    def intervals(self, user: int, items: Sequence[int], *, level: float = DEFAULT_LEVEL) -> Intervals:
        """What ``user`` predicts of ``items``, with ranges that cover the values at ``level``, from .5 to .99.

        Raises:
          ConfigurationError: the level is out of range, or the model predicts no values, as of implicit feedback.
          DataError: there is no such user or item.
        """
        return personal.intervals(self.task, self.model, self.history, user, items, level=level)

    def classify(self, columns: Mapping[str, npt.ArrayLike]) -> npt.NDArray[Any]:
        """The likeliest class of each labelled example: the name that the task's ``classes`` give it, or its number.

        Raises:
          ConfigurationError: the model predicts no classes.
          DataError: a column is missing, or an example cannot be used.
        """
        return Classifier.of(self.task.definition(), self.model, {}).classify(columns)

    def to_json(self) -> dict[str, object]:
        """A JSON-able summary; the keys that scripts may rely on."""
        metrics = dict.fromkeys(_SUMMARY_METRICS) | {name: _plain(value) for name, value in self.metrics.items()}
        return {
            "statement": SIMULATION,
            "task": self.task.name,
            **metrics,
            "epsilon": _plain(self.epsilon),
            "delta": self.delta,
            "rounds": len(self.rounds),
            "seconds": round(self.seconds, 3),
            "left_out": {part: rows.to_json() for part, rows in self.left_out.items()},
            "notes": list(self.notes),
            "charges": [event.to_json() for events in self.charges for event in events] if self.noisy else [],
        }


def _plain(value: Any) -> Any:
    """A metric as JSON has it; None for a number that is not finite: no noise, or no ratings to test on."""
    if isinstance(value, (Ranking, Reliability)):
        return value.to_json()
    return value if math.isfinite(value) else None


@overload
def simulate(
    task: Task,
    population: Ratings | Split | ExamplesSplit | ExampleColumns,
    *,
    seed: int = 1,
    noise: bool | IntegerNoise = True,
    on_round: Callable[[RoundResult], None] | None = None,
    on_release: Callable[[NoisyTensors, tuple[NoisySum, ...]], None] | None = None,
    on_users: Callable[[int, int, int], None] | None = None,
    checkpoint: Path | None = None,
    engine: Engine | None = None,
) -> RunResult: ...


@overload
def simulate(
    task: Question,
    population: Ratings | UsersExamples | UsersTexts,
    *,
    seed: int = 1,
    noise: bool | IntegerNoise = True,
) -> AnswersRun: ...


def simulate(
    task: Task | Question,
    population: Ratings | Split | ExamplesSplit | ExampleColumns | UsersExamples | UsersTexts,
    *,
    seed: int = 1,
    noise: bool | IntegerNoise = True,
    on_round: Callable[[RoundResult], None] | None = None,
    on_release: Callable[[NoisyTensors, tuple[NoisySum, ...]], None] | None = None,
    on_users: Callable[[int, int, int], None] | None = None,
    checkpoint: Path | None = None,
    engine: Engine | None = None,
) -> RunResult | AnswersRun:
    """Runs ``task`` on every user of ``population``.

    A question, such as an ``odp.Statistics``, gives an ``AnswersRun``; it asks all users of Ratings, and takes seed and
    noise alone.

    Args:
      task: What to train; ``task.model.items`` must be the population's number of items.
      population: Ratings, which are split 80/10/10 at random by ``seed``; or a Split, taken as it is; or, for a model
        of labelled examples, an ExamplesSplit, or ExampleColumns, of which a tenth is for tests. Of a task that names a
        catalogue, items get its numbers by key, and ratings of items that it does not have are left out and counted.
      seed: Decides the split, the users' samples and the noise: the same seed repeats the run.
      noise: True for seeded noise of the declared size; False for none (then ε is infinite); or an IntegerNoise.
      on_round: Called after each round, for progress.
      on_release: Called with what each round released and how it was declared.
      on_users: Called within a round, after each block of users, with the round, the users done and the rounds in all.
      checkpoint: A folder; the run is saved there after every round, and the same call resumes it. For rounds that were
        done before, ``on_round`` is called again, ``on_release`` is not.
      engine: Where the users are summed, as ``odp.research.simulation.engines.ray_cluster.RayEngine``; None is this
      machine. A
        question is asked here.

    Raises DataError where the data does not fit the task or no example can be used, PrivacyError for a delta that is no
    guarantee at its size, StateError where the checkpoint is another run's, ConfigurationError for a checkpoint with an
    IntegerNoise, and for a task or a population of another type.
    """
    require_kinds(task, population)
    if isinstance(population, ExampleColumns):
        population = _split_columns(task, population, seed=seed)
    catalogue = getattr(getattr(task, "model", None), "catalogue", None)
    population = numbered_users(population, catalogue)
    if not isinstance(task, Task):
        from odp.research.simulation import answers

        kind = f"odp.{type(task).__name__}"
        answers.require_answer_options(
            kind, on_round=on_round, on_release=on_release, on_users=on_users, checkpoint=checkpoint
        )
        algorithm = algorithm_for(task.definition())
        if isinstance(algorithm, Diagnosed):
            return simulate_search(task, algorithm, population, seed=seed, noise=noise)
        return answers.simulate_answers(task, population, seed=seed, noise=noise)
    if isinstance(population, UsersTexts):
        raise ConfigurationError(
            "Expected odp.data.UsersTexts with a question about words, such as an odp.HeavyHitters"
        )
    if isinstance(population, UsersExamples):
        raise ConfigurationError("Expected an odp.data.ExamplesSplit, whose test examples are public, with an odp.Task")
    started = time.perf_counter()
    split = random_split(population, seed=seed) if isinstance(population, Ratings) else population
    definition = task.definition()
    algorithm = algorithm_for(definition)
    history: Ratings | UsersExamples
    if isinstance(split, ExamplesSplit):
        check_users(task, split.train, name=split.name)
        history = split.train
    else:
        check_population(task, split.train)
        history = merge(split.train, split.validation)
    silent = task.privacy.epsilon == math.inf
    if silent:
        noise = False
    source = _Source(noise, seed)
    seeds = user_seeds(split.train, seed)

    evaluation = evaluation_of(definition)
    left_out = evaluation.left_out(split)
    features = task.public_matrix
    server = algorithm.server(item_features=features)
    summing = (engine or current() or LocalEngine()).sums(task, split.train, seeds)
    state = server.start()
    rounds: list[RoundResult] = []
    totals: list[NoisyTotals] = []
    saved, past = None, b""
    if checkpoint is not None:
        saved = Checkpoint(checkpoint, run_identity(definition, split, seed=seed, noise=source.kind))
        place, names = saved.read(), evaluation.round_metrics
        if isinstance(algorithm, Diagnosed):
            names += algorithm.figure_names
        if place is not None:
            past = place.stream
            state, rounds = place.state, [restored_round(record, names, left_out) for record in place.rounds]
            totals = [NoisyTotals(**total) for total in place.totals]
    broadcast = server.broadcast(state)
    stream = SimulatedStream(algorithm.query(0), past)
    allowed = participation_of(algorithm)
    charges: list[tuple[Event, ...]] = []
    for number, done in enumerate(rounds):
        query = algorithm.query(number)
        charges.append(() if silent else round_charges(query, sampling_of(definition, number)))
        source.skip(number, query)
        if on_round is not None:
            on_round(done)
    for number in range(len(rounds), server.rounds):
        began = time.perf_counter()
        query = algorithm.query(number)
        progress = None if on_users is None else partial(_tell, on_users, number, server.rounds)
        selected: Int64Array | None = None
        contributions = split.train.n_users
        if (sampling := sampling_of(definition, number)) is not None:
            selected = draw_users(split.train, sampling, round=number, seed=seed)
        elif definition.cohort.schedule:
            selected = first_users(split.train, goal_of(definition.cohort, number), round=number, seed=seed)
            contributions = len(selected)
        if allowed is not None:
            selected = due_users(split.train, allowed, round=number, seed=seed)
            contributions = len(selected)
        sums = summing.of(broadcast, selected, round=number, progress=progress)
        # Where no noise was asked for, no charge would be true.
        charges.append(() if silent else round_charges(query, sampling))
        tensors = _released(query, stream.encoded(sums), source.of(number, query))
        del sums
        released = NoisyTensors(number, tensors, contributions)
        declared = tuple(release for release in query.releases if isinstance(release, NoisySum))
        totals += noisy_totals(released, declared)
        if on_release is not None:
            on_release(released, declared)
        figures = algorithm.figures(broadcast, released, noisy=source.noisy) if isinstance(algorithm, Diagnosed) else {}
        state = server.step(state, released)
        broadcast = server.broadcast(state)
        rounds.append(
            RoundResult(
                round=number,
                contributions=contributions,
                epsilon=_spent(charges, definition.privacy.delta, noise),
                seconds=time.perf_counter() - began,
                metrics=evaluation.after_round(broadcast, split, history) | figures,
                left_out=left_out,
            )
        )
        if saved is not None:
            saved.write(
                Place(
                    [saved_round(result) for result in rounds],
                    [asdict(total) for total in totals],
                    state,
                    stream.to_bytes(),
                )
            )
        if on_round is not None:
            on_round(rounds[-1])
    return RunResult(
        task=task,
        rounds=tuple(rounds),
        charges=tuple(charges),
        model=broadcast,
        epsilon=rounds[-1].epsilon,
        delta=task.privacy.delta,
        seconds=time.perf_counter() - started,
        history=history,
        totals=tuple(totals),
        item_counts=_item_counts(algorithm, state, features),
        metrics=evaluation.after_training(broadcast, split, history, last=rounds[-1].metrics),
        left_out=left_out,
    )


def _item_counts(algorithm: Algorithm, state: bytes, features: Float32Array | None) -> Float64Array:
    if not isinstance(algorithm, Recommender):
        return np.zeros(0)
    return algorithm.server(item_features=features).counts(state)


class _Source:
    """The noise of each round: the enclave's exact sampler from one seeded stream, or of millions of numbers, normals.

    Raises ConfigurationError, on asking its kind, for noise that a later run could not repeat.
    """

    def __init__(self, noise: bool | IntegerNoise, seed: int) -> None:
        self._chosen = noise if not isinstance(noise, bool) else None if noise else NoNoise()
        self._stream = GaussianNoise(SeededNoise(seed), compiled=True)
        self._seed = seed

    @property
    def kind(self) -> str:
        """Part of a run's identity."""
        if self._chosen is not None and not isinstance(self._chosen, NoNoise):
            raise ConfigurationError("Expected noise=True or False with a checkpoint: other noise cannot be repeated")
        return "seeded" if self._chosen is None else "none"

    @property
    def noisy(self) -> bool:
        """Whether there is any."""
        return not isinstance(self._chosen, NoNoise)

    def of(self, round: int, query: Query) -> IntegerNoise:
        """What to draw the noise of ``round`` from."""
        if self._chosen is not None:
            return self._chosen
        if sum(release.coordinates for release in query.releases) > MOST_EXACT:
            return RoundedNormals(self._seed, round)
        return self._stream

    def skip(self, round: int, query: Query) -> None:
        """Draws and drops the noise of a round that was done before, so that the stream stands where it stood."""
        if self.of(round, query) is self._stream:
            for release in query.releases:
                draw_noise(release, self._stream)


def noisy_release(query: Query, totals: Mapping[str, Int64Array], *, seed: int, round: int) -> dict[str, Float64Array]:
    """What a simulated ``round`` of few rounds releases: exact sums plus noise; for benchmarks of a single round.

    ``totals`` may be overwritten.
    """
    return _released(query, totals, _Source(True, seed).of(round, query))


def _released(query: Query, totals: Mapping[str, Int64Array], source: IntegerNoise) -> dict[str, Float64Array]:
    """The values of a round's releases; ``totals`` may be overwritten."""
    tensors: dict[str, Float64Array] = {}
    for release in query.releases:
        sums = totals[release.name].reshape(release.shape)
        if isinstance(source, RoundedNormals | GaussianNoise) and not isinstance(release, ShuffledCounts):
            sums = np.require(sums, np.int64, ["C", "W"])
            tensors[release.name] = source.added(sums, release.column_std / release.step, release.step)
            continue
        noisy = draw_noise(release, source)
        noisy += sums
        tensors[release.name] = to_values(release, noisy)
    return tensors


def _tell(on_users: Callable[[int, int, int], None], round: int, rounds: int, users: int) -> None:
    on_users(round, users, rounds)


def check_population(task: Task, ratings: Ratings) -> None:
    """Raises DataError where ``ratings`` do not fit the task, PrivacyError where delta is too large for them.

    Raises ConfigurationError where the model's rank exceeds its number of items.
    """
    if not ratings.n_ratings:
        raise DataError(f"the data set {ratings.name!r} has no ratings to train on; check the file or the split")
    items = task.factorization.items
    if ratings.n_items != items:
        raise DataError(
            f"the data set {ratings.name!r} has {ratings.n_items} items, the task's model items={items}; "
            f"set items={ratings.n_items} in the model"
        )
    require_scale(ratings)
    task.data.check(ratings)
    check_users(task, ratings, name=ratings.name)
    check_rank(task)


def _split_columns(task: object, columns: ExampleColumns, *, seed: int) -> ExamplesSplit:
    """The parts of labelled examples. Raises ConfigurationError for a task that reads none."""
    if not isinstance(task, Task) or not isinstance(task.data, Examples):
        raise ConfigurationError("Expected an odp.Task of odp.Examples for labelled examples")
    split = split_for(task.data, columns, seed=seed)
    require_kinds(task, split)
    return split


def check_users(task: Task, users: Ratings | UsersExamples, *, name: str) -> None:
    """Raises DataError where a round would not take all users, PrivacyError where delta is too large for them.

    Raises ConfigurationError for labelled examples of a task of ratings.
    """
    if isinstance(users, UsersExamples) and isinstance(task.model, MatrixFactorization):
        raise ConfigurationError(f"Expected odp.data.Ratings for task {task.name!r}, not labelled examples")
    most, way = task.cohort.most_contributions, "raise it"
    taken = f"most_contributions={most} of the task's cohort"
    cohort = task.definition().cohort
    if most is None and not isinstance(users, Ratings) and not cohort.schedule:
        algorithm = algorithm_for(task.definition())
        query, allowed = algorithm.query(0), participation_of(algorithm)
        most, way = query.maximum, "raise the goal of the task's cohort"
        taken = f"the {most} contributions of a round"
        if allowed is not None:
            most *= allowed.separation
            taken = f"the {query.maximum} contributions of each of {allowed.separation} rounds"
    if not isinstance(users, Ratings) and users.n_users < cohort.goal:
        raise DataError(
            f"the data set {name!r} has {users.n_users} users, fewer than goal={cohort.goal} of the cohort: no round "
            "would reach it; lower the goal"
        )
    if most is not None and users.n_users > most:
        raise DataError(f"the data set {name!r} has {users.n_users} users, more than {taken}; {way}")
    check_delta_for(task.privacy.delta, users.n_users)


def _spent(charges: list[tuple[Event, ...]], delta: float, noise: bool | IntegerNoise) -> float:
    if noise is False or isinstance(noise, NoNoise):
        return math.inf
    return epsilon_of([event for events in charges for event in events], delta=delta)

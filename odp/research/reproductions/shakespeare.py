"""Next-character prediction on plays by Shakespeare with privacy for whole speakers, beside published numbers without.

One speaker is one client. The first four fifths of what a speaker says are for training, and every tenth character of
the rest is for tests. An example is a character and the few before it; a multinomial model reads each of these one-hot.

What is compared is not the same experiment twice: the published one has more speakers, all the plays, a recurrent
network that reads 80 characters, and no privacy. The numbers show what a small private model reaches beside it.

The choices in ``task_of`` were found by trials on these data, which are not charged.

Source: Reddi et al. 2021, "Adaptive federated optimization", on the data of McMahan et al. 2017, "Communication-
efficient learning of deep networks from decentralized data".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odp import _validate
from odp.algorithms.declared import NoisySum
from odp.algorithms.dpftrl.config import DPFTRL
from odp.algorithms.federated.terms import Terms
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import DataError
from odp.models.examples import Examples
from odp.models.features import Category
from odp.models.glm import Glm
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.terms import Cohort, UserLevelDP
from odp.research.simulation.engine import RoundResult, simulate
from odp.research.simulation.inputs import SIMULATION
from odp.tasks.task import Task

CHARACTERS = tuple("\n !\"#$%&'()*,-./0123456789:;?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz")
"""Fixed before any text is read, so that they tell nothing of it. Other characters are left out of the text."""
CONTEXT = 3
"""Characters that the model reads."""
EPSILON, DELTA = 8.0, 1e-3
ROUNDS = 60
_FEWEST = 8
_FILE = "input.txt"
_TRAINING_SHARE, _TEST_STEP = 0.8, 10


@dataclass(frozen=True)
class Published:
    """What was published: training without privacy, of a recurrent network."""

    accuracy: float
    clients: int
    rounds: int
    clients_per_round: int
    context: int


PUBLISHED = Published(accuracy=0.57, clients=715, rounds=1200, clients_per_round=10, context=80)


@dataclass(frozen=True)
class Result:
    """One run; ``accuracies`` are by round.

    Attributes:
      training_examples, test_examples: characters that are predicted, of all speakers.
      most_frequent: test accuracy of always naming the most frequent character of the tests.
      noise_multiplier: standard deviation of the noise that the stream adds, over its sensitivity.
      upload_bytes, download_bytes: of one client in one round.
      without_noise: the accuracy of the same training without noise; None where it was not run.
    """

    clients: int
    seed: int
    context: int
    training_examples: int
    test_examples: int
    accuracies: tuple[float, ...]
    most_frequent: float
    epsilon: float
    delta: float
    noise_multiplier: float
    communications: int
    parameters: int
    upload_bytes: int
    download_bytes: int
    seconds: float
    without_noise: float | None

    @property
    def accuracy(self) -> float:
        """On the test characters, after the last round."""
        return self.accuracies[-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"statement": SIMULATION, "accuracy": self.accuracy, "published": asdict(PUBLISHED)} | asdict(self)


def task_of(clients: int, *, context: int = CONTEXT, rounds: int = ROUNDS) -> Task:
    """The task of some number of speakers, who all take part in every round.

    Raises:
      ConfigurationError: there are fewer than 8 clients, or a number is out of range.
    """
    _validate.integer(low=_FEWEST, high=10**6, clients=clients)
    _validate.integer(low=1, high=16, context=context)
    return Task(
        name="shakespeare",
        model=Glm("multinomial", features=context * len(CHARACTERS), classes=len(CHARACTERS)),
        data=data_of(context),
        privacy=UserLevelDP(epsilon=EPSILON, delta=DELTA),
        training=DPFTRL(
            rounds=rounds,
            rate=0.3,
            batch=10,
            most_examples=1000,
            clip=1.0,
            server_momentum=0.9,
        ),
        cohort=Cohort(minimum=clients, goal=clients),
    )


def data_of(context: int = CONTEXT) -> Examples:
    """An example: the characters before the next one, the furthest first, and the number of the next one."""
    return Examples({f"before-{place}": Category(CHARACTERS) for place in range(context, 0, -1)}, label="next")


def speeches(text: str) -> dict[str, list[str]]:
    """What each speaker says, by name: a speech is a line ``NAME:`` and the lines up to an empty one.

    Raises:
      DataError: there is none.
    """
    by_speaker: dict[str, list[str]] = {}
    for block in text.replace("\r\n", "\n").split("\n\n"):
        name, _, said = block.strip("\n").partition("\n")
        if len(name) > 1 and name.endswith(":"):
            by_speaker.setdefault(name[:-1], []).append(said)
    if not by_speaker:
        raise DataError("Expected speeches: a line 'NAME:', the lines that are spoken, and an empty line")
    return by_speaker


def population(path: Path, *, context: int = CONTEXT) -> ExamplesSplit:
    """The speakers of a text, each with the first four fifths of their own characters; tests are of the rest.

    Args:
      path: the text, or a folder that has it as ``input.txt``.

    Raises:
      DataError: it cannot be read, or holds no speeches.
    """
    file = path / _FILE if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{file}: not a readable text; take the plays as speeches, one after the other") from None
    try:
        return split_of(speeches(text), context=context)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None


def split_of(said: Mapping[str, Sequence[str]], *, context: int = CONTEXT) -> ExamplesSplit:
    """``population`` of the speeches of each speaker.

    Raises:
      DataError: nobody says enough for both parts.
    """
    training, tests, owners = [], [], []
    for user, name in enumerate(sorted(said)):
        windows = np.concatenate([_windows(speech, context) for speech in said[name]])
        cut = int(_TRAINING_SHARE * len(windows))
        training.append(windows[:cut])
        tests.append(windows[cut::_TEST_STEP])
        owners.append(np.full(cut, user))
    if not sum(map(len, training)) or not sum(map(len, tests)):
        raise DataError("Expected speeches of more than a few characters")
    return ExamplesSplit(
        _users(training, np.concatenate(owners), users=len(said)),
        _users(tests, np.zeros(sum(map(len, tests)), dtype=np.int64), users=1),
        name=f"{len(said)} speakers",
    )


def reproduce(
    task: Task,
    people: ExamplesSplit,
    *,
    seed: int,
    baseline: bool = False,
    on_round: Callable[[RoundResult], None] | None = None,
) -> Result:
    """Trains ``task_of`` the speakers on their ``population``.

    Args:
      seed: of order and noise.
      baseline: whether to train once more without noise.

    Raises:
      DataError: the population does not fit the task.
    """
    _validate.integer(seed=seed, low=0, high=2**63)
    terms = Terms.of(task.definition())
    declared: list[NoisySum] = []
    run = simulate(task, people, seed=seed, on_round=on_round, on_release=lambda _, releases: declared.extend(releases))
    without = simulate(task, people, seed=seed, noise=False).metrics["test_accuracy"] if baseline else None
    targets = people.test.targets
    return Result(
        clients=people.train.n_users,
        seed=seed,
        context=people.train.features.shape[1],
        training_examples=len(people.train.rows),
        test_examples=len(people.test.rows),
        accuracies=tuple(result.metrics["test_accuracy"] for result in run.rounds),
        most_frequent=float(np.bincount(targets.astype(np.int64)).max() / len(targets)),
        epsilon=run.epsilon,
        delta=run.delta,
        noise_multiplier=declared[0].noise_std / declared[0].sensitivity,
        communications=sum(result.contributions for result in run.rounds),
        parameters=terms.model.size,
        upload_bytes=len(terms.upload(0).payload(np.zeros(terms.model.size))),
        download_bytes=sum(4 * table.size for table in run.model.dense.values()),
        seconds=run.seconds,
        without_noise=without,
    )


def _windows(speech: str, context: int) -> Int64Array:
    """Numbers of each character of a speech and of those before it, int64 [n, context + 1]; line ends stand before."""
    number_of = {character: number for number, character in enumerate(CHARACTERS)}
    numbers = [number_of[character] for character in speech if character in number_of]
    padded = np.array([number_of["\n"]] * context + numbers, dtype=np.int64)
    return (
        np.lib.stride_tricks.sliding_window_view(padded, context + 1) if numbers else padded[:0].reshape(0, context + 1)
    )


def _users(windows: Sequence[Int64Array], owners: Int64Array, *, users: int) -> UsersExamples:
    windows_of_all = np.concatenate(windows)
    features: Float32Array = np.ascontiguousarray(windows_of_all[:, :-1], dtype=np.float32)
    counts = np.bincount(owners, minlength=users)
    return UsersExamples(
        features,
        windows_of_all[:, -1].astype(np.float32),
        np.arange(len(windows_of_all), dtype=np.int64),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
    )

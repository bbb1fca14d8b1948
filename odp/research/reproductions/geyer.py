"""Federated training on MNIST with privacy for whole clients, beside the published numbers.

As published: 60,000 pictures sorted by digit, cut into two shards per client, so that most clients have two digits;
600 pictures per client, repeated over clients where there are more than 100; ε = 8.

Otherwise here: every client takes part in every round, so no sampling has to be secret; one clip norm over all
parameters, enforced; it follows the median of the norms, and that is charged; the noise is what the accountant asks
for; and the model is a multinomial regression on fixed features of a picture
(``odp.research.reproductions.gradient_features``).

The choices in ``task_of`` were found by trials on MNIST, which are not charged. That is how published numbers are
found too.

Source: Geyer, Klein, Nabi 2017, "Differentially private federated learning: a client level perspective", table 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from odp import _validate
from odp.algorithms.declared import NoisySum
from odp.algorithms.dense.update_spread import Spread, SpreadTerms
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import RELEASE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.mnist import Images, load_mnist
from odp.errors import ConfigurationError, DataError
from odp.evaluation.users import user_seeds
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.numerics.arrays import Float32Array, Int64Array, UInt64Array
from odp.privacy.adaptive_clip import ClipState
from odp.protocol.terms import Cohort, UserLevelDP
from odp.research.reproductions.gradient_features import GradientFeatures
from odp.research.simulation.engine import RoundResult, simulate
from odp.research.simulation.inputs import SIMULATION
from odp.tasks.task import Task

PICTURES = 600
"""Of each client."""
CLASSES = 10
EPSILON = 8.0
_FEATURES, _LARGEST = 100, 20.0
_Release = tuple[NoisyTensors, tuple[NoisySum, ...]]
_BLOCK = 128  # clients whose differences are held at once


@dataclass(frozen=True)
class Published:
    """A row of the published table; ``communications`` counts uploads.

    ``epsilon`` is that of its rounds with its noise of standard deviation 1 clip norm, by the accountant used here:
    for secret Poisson samples, ``epsilon_fixed`` at least for the samples of a fixed size that it draws.
    """

    accuracy: float
    rounds: int
    communications: int
    epsilon: float
    epsilon_fixed: float


@dataclass(frozen=True)
class Setting:
    """What is trained here with some number of clients."""

    delta: float
    rounds: int
    published: Published


SETTINGS: Mapping[int, Setting] = MappingProxyType(
    {
        100: Setting(1e-3, 5, Published(0.78, 11, 550, 7.79, 24.9)),
        1000: Setting(1e-5, 11, Published(0.92, 54, 11_880, 11.58, 43.6)),
        10_000: Setting(1e-6, 20, Published(0.96, 412, 209_500, 7.85, 40.4)),
    }
)


@dataclass(frozen=True)
class Result:
    """One run; lists are by round.

    Attributes:
      communications: uploads of all rounds together.
      noise_multiplier: standard deviation of the noise on the sum of a round, in units of the bound of a contribution.
      clips: the clip norm of each round, as released.
      scales: estimates of the update scale of clipped updates and the standard deviation of their noise, from releases.
      spread_first, spread_last: exact, of updates that are not clipped, before the first and after the last round:
        simulation only.
      upload_bytes, download_bytes: of one client in one round.
      without_noise: the accuracy of the same training without noise; None where it was not run.
    """

    clients: int
    seed: int
    accuracies: tuple[float, ...]
    clips: tuple[float, ...]
    scales: tuple[tuple[float, float], ...]
    epsilon: float
    delta: float
    noise_multiplier: float
    communications: int
    parameters: int
    upload_bytes: int
    download_bytes: int
    spread_first: Spread
    spread_last: Spread
    seconds: float
    without_noise: float | None

    @property
    def accuracy(self) -> float:
        """On the test pictures, after the last round."""
        return self.accuracies[-1]

    @property
    def setting(self) -> Setting:
        """Of its number of clients."""
        return SETTINGS[self.clients]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        published = asdict(self.setting.published)
        return {"statement": SIMULATION, "accuracy": self.accuracy, "published": published} | asdict(self)


def task_of(clients: int, *, features: int = _FEATURES) -> Task:
    """The task of some number of clients.

    Raises:
      ConfigurationError: nothing was published for that number of clients.
    """
    if clients not in SETTINGS:
        published = ", ".join(map(str, SETTINGS))
        raise ConfigurationError(f"Expected clients={clients} to be one of {published}, as published")
    setting = SETTINGS[clients]
    return Task(
        name=f"geyer-{clients}",
        model=Glm("multinomial", features=features, classes=CLASSES),
        data=Examples({"picture": Tensor((features,), -_LARGEST, _LARGEST)}, label="digit"),
        privacy=UserLevelDP(epsilon=EPSILON, delta=setting.delta),
        training=DPFedAvg(
            rounds=setting.rounds,
            rate=0.02,
            batch=10,
            epochs=1,
            most_examples=PICTURES,
            server_rate=3.0,
            clip=1.0,
            clip_quantile=0.5,
        ),
        cohort=Cohort(minimum=clients, goal=clients),
    )


def shards(labels: Int64Array, clients: int, *, seed: int) -> tuple[Int64Array, Int64Array]:
    """(rows int64 [clients * 600], offsets) of clients: two shards each of the pictures in the order of their labels.

    Where there are more shards than pictures for them, each digit's pictures are repeated, in a new order each time.

    Raises:
      DataError: pictures times a whole number are not 600 per client.
    """
    repeats, rest = divmod(clients * PICTURES, len(labels)) if len(labels) else (0, 1)
    if rest or not repeats:
        raise DataError(
            f"Expected {PICTURES} of the {len(labels)} pictures per client: {clients} do not share them out"
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    sorted_rows = np.concatenate(
        [
            generator.permutation(np.flatnonzero(labels == label))
            for label in np.unique(labels)
            for _ in range(repeats)
        ]
    )  # fmt: skip
    cut = sorted_rows.reshape(2 * clients, PICTURES // 2)
    rows = cut[generator.permutation(2 * clients)].reshape(-1)
    return rows.astype(np.int64), np.arange(clients + 1, dtype=np.int64) * PICTURES


def population(folder: Path, clients: int, *, seed: int) -> ExamplesSplit:
    """The clients' pictures by their features, and the test pictures.

    Raises:
      DataError: ``folder`` does not hold MNIST.
    """
    train, test = load_mnist(folder), load_mnist(folder, part="test")
    layer = GradientFeatures.whitened(_FEATURES)
    rows, offsets = shards(train.labels.astype(np.int64), clients, seed=seed)
    return ExamplesSplit(
        UsersExamples(layer.of(train.images), train.labels.astype(np.float32), rows, offsets),
        _of_one(layer.of(test.images), test),
        name=f"MNIST of {clients} clients",
    )


def reproduce(
    task: Task,
    people: ExamplesSplit,
    *,
    seed: int,
    baseline: bool = False,
    on_round: Callable[[RoundResult], None] | None = None,
    on_users: Callable[[int, int, int], None] | None = None,
) -> Result:
    """Trains ``task_of`` some number of clients on their ``population``.

    Args:
      seed: of order and noise.
      baseline: whether to train once more without noise.

    Raises:
      DataError: the population does not fit the task.
    """
    _validate.integer(seed=seed, low=0, high=2**63)
    terms = Terms.of(task.definition())
    releases: list[_Release] = []
    run = simulate(
        task, people, seed=seed, on_round=on_round, on_users=on_users,
        on_release=lambda tensors, declared: releases.append((tensors, declared)),
    )  # fmt: skip
    clips, scales = _released(terms, releases)
    first = releases[0][1][0]
    seeds = user_seeds(people.train, seed)
    final = run.model.dense["parameters"][:, 0]
    without = simulate(task, people, seed=seed, noise=False).metrics["test_accuracy"] if baseline else None
    numbers = math.prod(first.shape)
    return Result(
        clients=people.train.n_users,
        seed=seed,
        accuracies=tuple(result.metrics["test_accuracy"] for result in run.rounds),
        clips=clips,
        scales=scales,
        epsilon=run.epsilon,
        delta=run.delta,
        noise_multiplier=first.noise_std / first.sensitivity,
        communications=sum(result.contributions for result in run.rounds),
        parameters=terms.model.size,
        upload_bytes=len(terms.upload(0).payload(np.zeros(numbers))),
        download_bytes=sum(4 * table.size for table in run.model.dense.values()),
        spread_first=exact_spread_at(terms, people.train, terms.model.start(), round=0, seeds=seeds),
        spread_last=exact_spread_at(terms, people.train, final, round=terms.rounds, seeds=seeds),
        seconds=run.seconds,
        without_noise=without,
    )


def exact_spread_at(
    terms: Terms, users: UsersExamples, parameters: Float32Array, *, round: int, seeds: UInt64Array
) -> Spread:
    """How large and how different the updates of all users are from these ``parameters`` on; simulation only.

    Memory is that of a block of users.
    """
    usable, size = UsableTable.of(terms.model, terms.examples, users).usable(users), terms.model.size
    total, squares = np.zeros(size), 0.0
    moved = np.empty((_BLOCK, size), dtype=np.float32)
    for first in range(0, users.n_users, _BLOCK):
        chosen = slice(first, min(first + _BLOCK, users.n_users))
        updates = moved[: chosen.stop - first]
        terms.model.differences(
            parameters, usable, terms.local, seeds=seeds[chosen], round=round, users=chosen, out=updates
        )  # fmt: skip
        total += updates.sum(axis=0, dtype=np.float64)
        squares += float(np.square(updates, dtype=np.float64).sum())
    mean = total / users.n_users
    scale = float(np.square(mean).mean())
    return Spread(scale, 0.0, squares / users.n_users / size - scale, 0.0)


def _released(terms: Terms, releases: list[_Release]) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
    """The clip norm of each round, and the estimated scale of its updates with its deviation."""
    if terms.adaptive is None:
        raise ConfigurationError("Expected an adaptive clip norm")
    state, size, clips, scales = ClipState.initial(terms.clip_terms()), terms.model.size, [], []
    for tensors, declared in releases:
        released, clip = tensors.tensors[RELEASE], state.clip
        spread = SpreadTerms(size=size, clip=clip, weight=0.0).estimates(
            released[:size] * clip, cohort=terms.cohort, noise_std=declared[0].noise_std * clip
        )
        clips.append(clip)
        scales.append((spread.scale, spread.scale_std))
        state = state.step(float(released[-1]) / terms.adaptive.weight)
    return tuple(clips), tuple(scales)


def _of_one(features: Float32Array, images: Images) -> UsersExamples:
    everything = np.arange(len(images), dtype=np.int64)
    return UsersExamples(
        features, images.labels.astype(np.float32), everything, np.array([0, len(images)], dtype=np.int64)
    )

"""Draw and Discard on MNIST, beside what was published: instances, batches, epsilon, and other servers.

As published: multinomial regression of 7,850 weights on 6,000 clients of 10 pictures each, 20 passes, rate .001 or
.0001; without noise the instances begin as if epsilon were 1. Pictures are dealt to clients at random. Source: Pihur et
al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section V-A, figures 2 to 4, whose claims are
about shapes: no numbers are printed there.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.features import LocalFeatures, Number
from odp.algorithms.draw_and_discard.model import scores
from odp.algorithms.draw_and_discard.simulation import EncodedUsers, simulate
from odp.algorithms.draw_and_discard.terms import Spam, Terms, resolved
from odp.crypto.keyed_hash import splitmix64
from odp.datasets.mnist import Images, load_mnist
from odp.errors import DataError
from odp.models.glm.shape import Family
from odp.numerics.arrays import Float32Array

CLIENTS, PICTURES, CLASSES, PASSES = 6_000, 10, 10, 20
RATE, SLOW_RATE = 0.001, 0.0001
INSTANCES = (1, 10, 20, 50, 100)
BATCHES = (10, 20, 50, 100, 1_000, 10_000)
#: e^epsilon per feature; infinite is no noise.
LEVELS = (3.0, 8.0, 16.0, 32.0, math.inf)
SERVERS = ("discard", "same", "accept", "average")
#: Accuracies that differ by no more than this are called equal.
EQUAL = 0.02


@dataclass(frozen=True, order=True)
class Run:
    """What is trained: ``level`` is e^epsilon per feature; ``group`` as of ``Instances``."""

    instances: int = 1
    level: float = math.inf
    server: str = "discard"
    group: int = 1
    rate: float = RATE


@dataclass(frozen=True)
class Claim:
    """What was published, what was found, and whether the former holds here."""

    published: str
    found: str
    holds: bool

    @property
    def verdict(self) -> str:
        """For people."""
        return "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class Result:
    """Test accuracy of every run."""

    accuracies: dict[Run, float]
    seed: int
    passes: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain values; no noise is None."""
        runs = [
            vars(run) | {"level": run.level if math.isfinite(run.level) else None, "accuracy": accuracy}
            for run, accuracy in sorted(self.accuracies.items())
        ]
        return {"runs": runs, "claims": [vars(claim) | {"verdict": claim.verdict} for claim in claims(self)],
                "seed": self.seed, "passes": self.passes, "seconds": self.seconds}  # fmt: skip


@dataclass(frozen=True, eq=False)
class People:
    """Clients, and pictures to test on: float32 [n, 785] with a 1 first, and digits."""

    clients: EncodedUsers
    test: Float32Array
    digits: Float32Array


def population(folder: Path, *, seed: int, clients: int = CLIENTS) -> People:
    """The pictures of MNIST, dealt to clients. Raises DataError: a file is missing, or there are too few pictures."""
    train, test = load_mnist(folder), load_mnist(folder, part="test")
    held = clients * PICTURES
    if held > len(train):
        raise DataError(f"Expected {held} pictures for {clients} clients (got {len(train)})")
    stream = splitmix64(np.array([seed], dtype=np.uint64))
    places = np.add(stream, np.arange(len(train), dtype=np.uint64), dtype=np.uint64)
    chosen = np.argsort(splitmix64(places), kind="stable")[:held]
    numbers, digits = _numbers(train)
    dealt = EncodedUsers(numbers[chosen], digits[chosen], np.arange(0, held + 1, PICTURES, dtype=np.int64))
    return People(dealt, *_numbers(test))


def runs() -> tuple[Run, ...]:
    """All runs of the figures, each once."""
    figures = itertools.chain(
        (Run(instances, level) for instances in INSTANCES for level in LEVELS),
        (Run(server="batch", group=group) for group in BATCHES),
        (_other(server, level, rate) for server in SERVERS for level in (16.0, math.inf) for rate in (RATE, SLOW_RATE)),
        (Run(10, level, rate=SLOW_RATE) for level in LEVELS),
    )
    return tuple(dict.fromkeys(figures))


def _other(server: str, level: float, rate: float) -> Run:
    return Run(1, level, server, 10, rate) if server == "accept" else Run(10, level, server, 1, rate)


def terms_of(run: Run) -> Terms:
    """The numbers of a run."""
    noisy = math.isfinite(run.level)
    return resolved(
        LocalFeatures({"pixels": Number(size=784)}), Family.MULTINOMIAL, classes=CLASSES, instances=run.instances,
        rate=run.rate, clip=1.0, epsilon=math.log(run.level) if noisy else 1.0, per_model=False, spam=Spam(),
        start=None, seed=1, most_updates=2**40, most_reports=PASSES, most_examples=PICTURES, noisy=noisy,
    )  # fmt: skip


def accuracy(run: Run, people: People, *, seed: int, passes: int = PASSES) -> float:
    """Share of the test pictures whose digit the mean of the instances predicts."""
    terms = terms_of(run)
    clients = people.clients
    simulated = simulate(
        terms, clients, updates=passes * clients.users, seed=seed, server=run.server, group=run.group
    )  # fmt: skip
    predictors = people.test @ simulated.weights.astype(np.float32).reshape(CLASSES, -1).T
    return scores(Family.MULTINOMIAL, predictors.astype(np.float64), people.digits.astype(np.float64))["accuracy"]


def reproduce(
    people: People, *, seed: int = 1, passes: int = PASSES, chosen: Iterable[Run] | None = None,
    on_run: Callable[[int, int], None] | None = None, threads: int = 2,
) -> Result:  # fmt: skip
    """All runs, or those that are ``chosen``. Raises ConfigurationError for a number out of range."""
    _validate.integer(low=1, high=10_000, passes=passes)
    _validate.integer(low=1, high=256, threads=threads)
    selected = runs() if chosen is None else tuple(chosen)
    started, accuracies = time.perf_counter(), {}
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda run: accuracy(run, people, seed=seed, passes=passes), selected)
        for number, (run, share) in enumerate(zip(selected, results, strict=True), start=1):
            accuracies[run] = share
            if on_run is not None:
                on_run(number, len(selected))
    return Result(accuracies, seed, passes, time.perf_counter() - started)


def claims(result: Result) -> list[Claim]:
    """What was published, beside what was found."""
    accuracies = result.accuracies
    plain = {instances: accuracies[Run(instances)] for instances in INSTANCES}
    best = max(plain, key=lambda instances: plain[instances])
    listed = ", ".join(f"{share:.3f} at {instances}" for instances, share in plain.items())
    made = [Claim("without noise, one instance is best (figure 3)", listed, best == 1)]
    for instances in (10, 100):
        square, same = (
            accuracies[Run(server="batch", group=instances**2)],
            accuracies[Run(server="batch", group=instances)],
        )
        made.append(
            Claim(
                f"{instances} instances learn as server batches of {instances**2:,} (figure 3)",
                f"{plain[instances]:.3f} with instances, {square:.3f} with these batches, {same:.3f} with batches of "
                f"{instances}",
                abs(plain[instances] - square) <= EQUAL,
            )
        )
    for rate in (RATE, SLOW_RATE):
        at = {level: accuracies[Run(10, level, rate=rate)] for level in LEVELS}
        shown = ", ".join(f"{at[level]:.3f} at {_level(level)}" for level in LEVELS)
        made.append(
            Claim(
                f"ε of log 16 and more costs nothing (figure 2), 10 instances, rate {rate:g}",
                shown,
                at[math.inf] - at[16.0] <= EQUAL,
            )
        )
    cost = accuracies[Run(10)] - accuracies[Run(10, 3.0)]
    made.append(Claim("ε of log 3 hurts (figure 2)", f"costs {cost:.3f}", cost > EQUAL))
    for level, rate in itertools.product((16.0, math.inf), (RATE, SLOW_RATE)):
        share = {server: accuracies[_other(server, level, rate)] for server in SERVERS}
        shown = ", ".join(f"{server} {value:.3f}" for server, value in share.items())
        equal = max(abs(share["discard"] - share[server]) for server in ("same", "accept"))
        made.append(
            Claim(
                f"discarding learns as the same instance, and as one report in 10 (figure 4), {_level(level)}, rate "
                f"{rate:g}",
                shown,
                equal <= EQUAL,
            )
        )
        made.append(
            Claim(
                f"averaging on overwrite learns worse (figure 4), {_level(level)}, rate {rate:g}",
                f"{share['discard'] - share['average']:+.3f}",
                share["average"] < share["discard"],
            )
        )
    return made


def _level(level: float) -> str:
    return f"ε = log {level:g}" if math.isfinite(level) else "no noise"


def _numbers(pictures: Images) -> tuple[Float32Array, Float32Array]:
    """Float32 [n, 785] and [n]."""
    numbers = np.ones((len(pictures), 785), dtype=np.float32)
    numbers[:, 1:] = pictures.images.reshape(len(pictures), 784) * np.float32(1.0 / 255.0)
    return numbers, pictures.labels.astype(np.float32)

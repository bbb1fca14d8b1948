"""Two towers on ratings, trained by DP-SGD, beside DPAM at an equal budget, on one split of the ratings.

The user's tower reads what a person's own ratings say of public item features (genres, years): a number for each
feature, computed on the device from the person's *other* ratings, so that no example reads its own label. The label is
the rating without the person's mean of the others, which stays on the device too. The item's tower is a table of one
row per item.

The choices in ``task_of`` were found by trials on the validation part of MovieLens-1M, which are not charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from odp.algorithms.dpsgd.config import DPSGD
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.item_features import item_features
from odp.datasets.ratings import Ratings, Split
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.litert.two_tower import TwoTower
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.terms import Cohort, UserLevelDP
from odp.research.simulation.engine import RoundResult, RunResult, simulate
from odp.research.simulation.presets import preset_task
from odp.tasks.task import Task

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 5
"""Numbers of a vector; the first of a user's starts as 1, so that the first of an item's is its bias."""
_MEAN_RIDGE, _FEATURE_RIDGE = 2.0, 5.0
_SCALE = 100.0  # of the item table: a row's gradient is small, as few of a person's ratings are of one item
_MOST_ABOUT = 4.0
_FACTORS_STD = 0.1


@dataclass(frozen=True)
class Result:
    """Test RMSE of one split and one budget.

    ``own_mean`` is that of each person's mean, which nothing is released for; ``without_noise`` that of the towers
    without noise, None where it was not asked for.
    """

    epsilon: float
    delta: float
    users: int
    items: int
    rounds: int
    weights: int
    towers: float
    without_noise: float | None
    dpam: float
    dpam_with_features: float
    own_mean: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def table(self) -> Table:
        """For a terminal."""
        from rich.table import Table

        table = Table("method", "privacy", "test RMSE", title=f"ε = {self.epsilon:g}, δ = {self.delta:g}")
        table.add_row("user mean", "nothing leaves the device", f"{self.own_mean:.4f}")
        table.add_row(f"two towers, {self.weights:,} weights, {self.rounds} rounds", "ε, δ", f"{self.towers:.4f}")
        if self.without_noise is not None:
            table.add_row("two towers", "none", f"{self.without_noise:.4f}")
        table.add_row("DPAM", "ε, δ", f"{self.dpam:.4f}")
        table.add_row("DPAM with public item features", "ε, δ", f"{self.dpam_with_features:.4f}")
        return table


def examples_of(history: Ratings, ratings: Ratings, features: Float32Array) -> tuple[UsersExamples, Float64Array]:
    """Examples of ``ratings``, and the mean of each one's person, float64 [n], which its label is without.

    Everything about a person is of ``history`` without the rating itself, if it is one of ``history``.

    Args:
      history: what devices hold.
      ratings: with the users and items of ``history``.
      features: of the items, float32 [items, p].

    Returns:
      Examples of p + 1 numbers: what the person's ratings say of each feature, and the item.
    """
    users, items = ratings.users(), np.asarray(ratings.items, dtype=np.int64)
    own_values = _values(history)
    matrices = [scipy.sparse.csr_array((v, history.items, history.offsets), shape=(history.n_users, history.n_items))
                for v in (own_values, np.ones_like(own_values))]  # fmt: skip
    sums, counts = (np.asarray(matrix.sum(axis=1)).reshape(-1) for matrix in matrices)
    weighted, plain = (matrix @ features.astype(np.float64) for matrix in matrices)
    values, inside = _values(ratings), 0.0 if ratings is not history else 1.0
    count = counts[users] - inside
    mean = (sums[users] - inside * values) / (count + _MEAN_RIDGE)
    about = np.empty((len(users), features.shape[1] + 1), dtype=np.float32)
    for column in range(features.shape[1]):
        feature = inside * features[items, column].astype(np.float64)
        without = weighted[users, column] - values * feature - mean * (plain[users, column] - feature)
        about[:, column] = without / np.sqrt(count + _FEATURE_RIDGE)
    about[:, -1] = items
    targets = (values - mean).astype(np.float32)
    return UsersExamples(about, targets, np.arange(len(users)), np.asarray(ratings.offsets, dtype=np.int64)), mean


def towers_of(items: int, *, features: int, batch: int) -> TwoTower:
    """The model, whose table of items starts with zeros: every prediction is the person's own mean."""
    import keras

    layers = keras.layers
    user = keras.Sequential([keras.Input((features,)), layers.Dense(WIDTH)])
    generator = np.random.default_rng(1)
    kernel = generator.normal(0.0, _FACTORS_STD, (features, WIDTH)).astype(np.float32)
    kernel[:, 0] = 0.0
    user.set_weights([kernel, np.eye(WIDTH, dtype=np.float32)[0]])
    item = keras.Sequential([
        keras.Input((1,), dtype="int32"), layers.Embedding(items, WIDTH, embeddings_initializer="zeros"),
        layers.Flatten(), layers.Rescaling(_SCALE),
    ])  # fmt: skip
    return TwoTower(user=user, item=item, items=items, loss="mean_squared_error", batch=batch)


def task_of(
    model: TwoTower, ratings: Ratings, *, features: int, epsilon: float, delta: float, rounds: int, examples: int
) -> Task:
    """Training by all users in every round; a gradient is the mean over ``examples`` ratings."""
    most = ratings.high - ratings.low
    return Task(
        name="towers",
        model=model,
        data=Examples(
            {"about": Tensor((features,), -_MOST_ABOUT, _MOST_ABOUT), "item": Tensor((1,), 0, ratings.n_items - 1)},
            label="rating",
            label_low=-most,
            label_high=most,
        ),
        privacy=UserLevelDP(epsilon=epsilon, delta=delta),
        training=DPSGD(
            rounds=rounds, most_examples=examples, clip=_CLIP, server_rate=_SERVER_RATE, server_momentum=_MOMENTUM
        ),
        cohort=Cohort(minimum=min(100, ratings.n_users), goal=ratings.n_users),
    )


_CLIP, _SERVER_RATE, _MOMENTUM = 1.0, 0.5, 0.7


def compare(
    split: Split,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 16,
    examples: int = 128,
    seed: int = 1,
    baseline: bool = False,
    on_round: Callable[[RoundResult], None] | None = None,
) -> Result:
    """Trains the towers and DPAM on the same split at the same budget.

    Raises:
      ConfigurationError: TensorFlow is missing, or a number is out of range.
      DataError: items have no public features.
    """
    began = time.perf_counter()
    train, test = split.train, split.test
    features = item_features(train)
    width = features.shape[1]
    training, _ = examples_of(train, train, features)
    tested, means = examples_of(train, test, features)
    people = ExamplesSplit(train=training, test=tested, name=train.name)
    model = towers_of(train.n_items, features=width, batch=examples)
    task = task_of(
        model, train, features=width, epsilon=epsilon, delta=delta, rounds=rounds, examples=examples
    )  # fmt: skip
    run = simulate(task, people, seed=seed, on_round=on_round)
    exact = simulate(task, people, seed=seed, noise=False, on_round=on_round) if baseline else None
    peers = [
        simulate(preset_task("auto", train, epsilon=epsilon, delta=delta, features=with_features), split, seed=seed)
        for with_features in (False, True)
    ]
    return Result(
        epsilon=epsilon, delta=delta, users=train.n_users, items=train.n_items, rounds=rounds, weights=model.size,
        towers=_rmse(run), without_noise=None if exact is None else _rmse(exact),
        dpam=float(peers[0].metrics["test_rmse"]), dpam_with_features=float(peers[1].metrics["test_rmse"]),
        own_mean=float(np.sqrt(np.mean((_values(test) - means) ** 2))), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _rmse(run: RunResult) -> float:
    """Of ratings: the loss is the mean square of what is left of them."""
    return float(np.sqrt(run.metrics["test_loss"]))


def _values(ratings: Ratings) -> Float64Array:
    """Ratings from the middle of their range."""
    return np.asarray(ratings.values, dtype=np.float64) - (ratings.low + ratings.high) / 2.0

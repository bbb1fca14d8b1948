"""Invented labelled examples of a declared shape, for a first run without data."""

from __future__ import annotations

import numpy as np

from odp import _validate
from odp.datasets.examples import DeclaredExamples, ExamplesSplit, UsersExamples
from odp.numerics.arrays import Float32Array

_TEST_SHARE = 5  # one test example for five training examples, of other users
_MOST_NUMBERS = 2**31


def synthetic_examples(
    terms: DeclaredExamples,
    *,
    classes: int | None,
    n_users: int = 1000,
    examples_per_user: int = 20,
    labels_per_user: int = 0,
    seed: int = 0,
) -> ExamplesSplit:
    """Examples whose label a linear rule knows nine times in ten.

    Features are uniform in their range, categories and tokens among all of them.

    Args:
      terms: shapes and ranges.
      classes: how many, for labels that are classes; None for numbers, which spread over the label's range.
      n_users, examples_per_user: of the training part.
      labels_per_user: with classes, the number of different labels that a user has about; 0 for all alike.
      seed: of everything.

    Raises:
      ConfigurationError: a number is out of range, or the examples would have more than 2^31 numbers.
    """
    _validate.integer(low=1, high=10**7, n_users=n_users)
    _validate.integer(low=1, high=10**5, examples_per_user=examples_per_user)
    _validate.integer(low=0, high=classes or 0, labels_per_user=labels_per_user)
    total = n_users * examples_per_user
    _validate.integer(low=1, high=_MOST_NUMBERS, numbers=total * terms.width)
    generator = np.random.default_rng(seed)
    rule = generator.normal(size=(terms.width, classes or 1)).astype(np.float32)
    train = _draw_examples(terms, rule, total, generator)
    test = _draw_examples(terms, rule, max(1, total // _TEST_SHARE), generator)
    owners = np.arange(total) // examples_per_user
    if labels_per_user and classes:
        owners = _by_label(train[1], owners, labels_per_user, generator)
    return ExamplesSplit(
        _users(terms, *train, owners), _users(terms, *test, np.zeros(len(test[1]), dtype=np.int64)), name="synthetic"
    )


def _users(
    terms: DeclaredExamples, features: Float32Array, labels: Float32Array, owners: np.typing.NDArray[np.int64]
) -> UsersExamples:
    named = np.array(terms.classes)[labels.astype(np.int64)] if terms.classes else labels
    return UsersExamples.of_users(features, named, owners)


def _draw_examples(
    terms: DeclaredExamples, rule: Float32Array, examples: int, generator: np.random.Generator
) -> tuple[Float32Array, Float32Array]:
    spread = generator.uniform(-1.0, 1.0, (examples, terms.width)).astype(np.float32)
    scores = spread @ rule / np.float32(np.sqrt(terms.width / 3.0))
    follows_rule = generator.random(examples) < 0.9
    if rule.shape[1] > 1:
        guessed = generator.integers(0, rule.shape[1], examples)
        labels = np.where(follows_rule, scores.argmax(axis=1), guessed).astype(np.float32)
    else:
        low, high = terms.label_range
        wanted = (low + high) / 2 + (high - low) / 4 * np.where(
            follows_rule, scores[:, 0], generator.normal(size=examples)
        )
        labels = np.clip(wanted, low, high).astype(np.float32)
    start = 0
    for feature in terms.features.values():
        feature.spread(spread[:, start : start + feature.size])
        start += feature.size
    return spread, labels


def _by_label(
    labels: Float32Array, owners: np.typing.NDArray[np.int64], kinds: int, generator: np.random.Generator
) -> np.typing.NDArray[np.int64]:
    """Deals examples that are sorted by label: as many shards per user as ``kinds``."""
    order = np.argsort(labels, kind="stable")
    users = int(owners[-1]) + 1
    shards = np.array_split(order, users * kinds)
    dealt = np.empty(len(labels), dtype=np.int64)
    for place, shard in enumerate(generator.permutation(len(shards))):
        dealt[shards[int(shard)]] = place // kinds
    return dealt

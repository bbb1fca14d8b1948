"""Labelled examples by name or as arrays of a file, in the shape that a task declares.

=====================================  =======================================================================
``"synthetic"``                        invented examples, no download
``"synthetic:n_users=50,seed=3"``      the same with arguments of ``synthetic_examples``
``"file.npz"``                         arrays of equal length n: one per feature [n, *shape] or text [n], the label [n]
                                       as numbers or names of classes,
                                       ``user`` [n] whole numbers from 0; ``test`` bool [n] if there are test
                                       examples: else a tenth is for tests, each drawn by a keyed hash
                                       of its user and its place among the user's own
=====================================  =======================================================================

Invented labelled examples of a declared shape, for a first run without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import fraction_of, key_of, keyed_hash
from odp.datasets.examples import DeclaredExamples, ExamplesSplit, UsersExamples, label_column
from odp.datasets.synthetic import parse_arguments
from odp.errors import DataError
from odp.numerics.archives import arrays_of
from odp.numerics.arrays import Float32Array

_SYNTHETIC = "synthetic"
_USER, _TEST = "user", "test"
_LARGEST_USER = 10**8
_TESTS = 10  # where a file names no tests, one example in ten is for tests


def examples_of_name(
    name_or_path: str, terms: DeclaredExamples, *, classes: int | None, seed: int = 1
) -> ExamplesSplit:
    """The examples of a name or a file, as the module lists them.

    Args:
      name_or_path: a name or a path.
      terms: shapes and ranges that the task declares.
      classes: how many, for labels that are classes; None for numbers.
      seed: of the draw of test examples, where the file names none; of ``"synthetic"`` without ``seed=``.

    Raises:
      DataError: there is no such file, or its arrays are missing, malformed or of other shapes.
      ConfigurationError: an argument of ``synthetic`` is unknown or out of range.
    """
    name, _, arguments = name_or_path.partition(":")
    if name == _SYNTHETIC:
        options = parse_arguments(arguments, synthetic_examples, where=name_or_path)
        return synthetic_examples(terms, classes=classes, **options)
    path = Path(name_or_path).expanduser()
    if path.suffix != ".npz" or not path.is_file():
        raise DataError(
            f"{name_or_path!r} holds no labelled examples: give a table (.csv, .tsv, .parquet, .jsonl) or an .npz file "
            f"with {', '.join((*terms.features, terms.label, _USER))}, or 'synthetic'"
        )
    return _split(_arrays(path, terms), terms, path=path, seed=seed)


def _arrays(path: Path, terms: DeclaredExamples) -> dict[str, npt.NDArray[Any]]:
    wanted = (*terms.features, terms.label, _USER)
    with arrays_of(path, "not a readable npz file") as file:
        arrays = {name: np.asarray(file[name]) for name in (*wanted, _TEST) if name in file.files}
    for name in wanted:
        if name not in arrays:
            raise DataError(f"{path}: the array {name!r} is missing; a file has {', '.join(wanted)}")
        if arrays[name].dtype.kind not in ("biuf" if name == _USER else "biufU"):
            raise DataError(f"{path}: expected {name!r} to be numbers (got {arrays[name].dtype})")
    users = arrays[_USER]
    count = users.size
    read = {name: feature.numbers(arrays[name]) for name, feature in terms.features.items() if arrays[name].ndim}
    arrays |= {name: numbers for name, numbers in read.items() if numbers is not None}
    shapes: Mapping[str, tuple[int, ...]] = {name: tuple(feature.shape) for name, feature in terms.features.items()}
    for name, array in arrays.items():
        if array.dtype.kind == "U" and name != terms.label:
            raise DataError(f"{path}: expected {name!r} to be numbers, as the task declares it (got {array.dtype})")
        if array.shape != (count, *shapes.get(name, ())):
            raise DataError(
                f"{path}: expected {name!r} to be of shape {[count, *shapes.get(name, ())]} (got {list(array.shape)})"
            )
        if read.get(name, array) is None:
            raise DataError(f"{path}: expected {name!r} to be as the task declares it (got {array.dtype})")
    if not count or users.dtype.kind not in "iu" or users.min() < 0 or users.max() > _LARGEST_USER:
        raise DataError(f"{path}: expected {_USER!r} to be whole numbers from 0 to {_LARGEST_USER}, one per example")
    if _TEST in arrays and arrays[_TEST].dtype != np.bool_:
        raise DataError(f"{path}: expected {_TEST!r} to be bool (got {arrays[_TEST].dtype})")
    return arrays


def _split(arrays: dict[str, npt.NDArray[Any]], terms: DeclaredExamples, *, path: Path, seed: int) -> ExamplesSplit:
    users = arrays[_USER].astype(np.int64)
    columns = [arrays[name].reshape(len(users), -1) for name in terms.features]
    dtype = np.uint8 if len(columns) == 1 and columns[0].dtype == np.uint8 else np.float32
    features = np.concatenate(columns, axis=1).astype(dtype, copy=False)
    labels = label_column(arrays[terms.label])
    people = UsersExamples.of_users(features, labels, users)
    if _TEST not in arrays:
        return split_examples(people, drawn_tests(people, seed=seed), name=path.stem, where=str(path))
    split = split_examples(people, arrays[_TEST][people.rows], name=path.stem, where=str(path))
    # People whom the file has for tests alone come last, and take no part.
    last = int(np.flatnonzero(np.diff(split.train.offsets))[-1]) + 1
    return replace(split, train=split.train.select_users(np.arange(last)))


def drawn_tests(users: UsersExamples, *, seed: int) -> npt.NDArray[np.bool_]:
    """Which examples of users are for tests, bool [k]: about a tenth.

    Each is drawn by a keyed hash of its user and its place among the user's own: who else is there changes nothing.
    """
    counts = np.diff(users.offsets)
    places = np.arange(len(users.rows)) - np.repeat(users.offsets[:-1], counts)
    coins = keyed_hash(key_of("tests of examples", seed), np.repeat(users.user_keys, counts), places)
    return fraction_of(coins) < 1.0 / _TESTS


def split_examples(users: UsersExamples, tests: npt.NDArray[np.bool_], *, name: str, where: str) -> ExamplesSplit:
    """The examples of users in two parts.

    Args:
      users: of whom all take part in the training, with what is left to them.
      tests: bool [k], which of their examples are for tests.
      name: what reports call the data set.
      where: the data set in messages.

    Raises:
      DataError: one of the parts would be empty.
    """
    if tests.all() or not tests.any():
        raise DataError(f"{where}: expected some examples for training and some for tests")
    ends = np.concatenate(([0], np.cumsum(~tests)))[users.offsets]
    everybody = np.array([0, int(tests.sum())], dtype=np.int64)
    return ExamplesSplit(
        _part(users, users.rows[~tests], ends, keys=users.user_keys),
        _part(users, users.rows[tests], everybody, keys=None),
        name=name,
    )


def _part(
    users: UsersExamples,
    rows: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    *,
    keys: npt.NDArray[np.int64] | None,
) -> UsersExamples:
    """Some rows of a table as a table of their own."""
    places = np.arange(len(rows), dtype=np.int64)
    return UsersExamples(users.features[rows], users.targets[rows], places, offsets, users.scale, keys)


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
    shards = np.array_split(order, (int(owners[-1]) + 1) * kinds)
    dealt = np.empty(len(labels), dtype=np.int64)
    for place, shard in enumerate(generator.permutation(len(shards))):
        dealt[shards[int(shard)]] = place // kinds
    return dealt

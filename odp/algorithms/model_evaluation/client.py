"""The measurements of one device.

From models and examples to users' vectors: for one user, or for a block of them.

A user's numbers depend on its own examples and seed alone, so that devices and simulator agree up to float rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from odp.algorithms.dense.grid import NUMBER, quantise_rows
from odp.algorithms.dense.records import ROUND, check_round
from odp.algorithms.federated.reading import ROWS
from odp.algorithms.model_evaluation.terms import Scalar, Terms
from odp.algorithms.seam import LocalData, ProgramClient
from odp.crypto.keyed_hash import round_hashes
from odp.models.left_out import Tested
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array, UInt64Array
from odp.protocol.wire.model import Slices

if TYPE_CHECKING:
    from odp.models.litert.trainer import ProgramTrainer
    from odp.models.trained import TrainedModel

Labelled = tuple[Float32Array, Float32Array]
"""Features float32 [n, width] and targets float32 [n] of examples."""

_ROUND = 0
#: Draws of examples have the numbers from here on; places of a vector are smaller, draws of a training larger.
_DRAWS = 1 << 32
_PARAMETERS = 2**20  # of personal models in memory at once


# Reads the usable examples at some places.
Gather = Callable[[Int64Array], Labelled]
# Trains a model further on the examples (features, targets) of users, ``counts`` int64 [users] after each other, from
# the start and with the seeds: what training moves the parameters by, float32 [users, size].
Train = Callable[[Float32Array, tuple[Float32Array, Float32Array], Int64Array, UInt64Array], Float32Array]


class Test(Protocol):
    """Tests a model on examples: ``TrainedModel.tested``, or ``tested_here``."""

    def __call__(
        self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool
    ) -> Tested: ...


def vectors_of_users(
    terms: Terms,
    models: Float32Array,
    gather: Gather,
    test: Test,
    train: Train,
    *,
    counts: Int64Array,
    seeds: UInt64Array,
) -> Float64Array:
    """What users send before it is rounded, float64 [users, size]; zeros of users without an example to test on.

    Args:
      models: the published parameters, float32 [models, size].
      gather: reads examples, which lie user after user: the first ``counts[0]`` are of the first one.
      test: of the models; of one user's examples at a time where it ranks items.
      train: of personal models.
      counts: examples of each user, int64 [users].
      seeds: of each user.
    """
    user = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    rank = _ranks(user, counts, seeds)
    taken = np.minimum(counts, terms.most_examples)
    half = terms.halves(seeds)
    if terms.personal is not None:
        numbers, taken = _personal_numbers(terms, models[0], gather, test, train, user, rank, taken, seeds)
        return _assembled(terms, numbers, taken > 0, half)
    places = np.flatnonzero(rank < terms.most_examples)
    numbers = np.zeros((1, len(counts), len(terms.scalars) + 2 * terms.layout.bins))
    for index, vector in enumerate(models):
        members = places[half[user[places]] == index]
        for start in range(0, len(members), terms.examples_at_once):
            chosen = members[start : start + terms.examples_at_once]
            _add(terms, test, vector, gather(chosen), user[chosen], numbers[0])
    numbers /= np.maximum(taken, 1)[None, :, None]
    return _assembled(terms, numbers, taken > 0, half)


def _personal_numbers(
    terms: Terms,
    start: Float32Array,
    gather: Gather,
    test: Test,
    train: Train,
    user: Int64Array,
    rank: Int64Array,
    taken: Int64Array,
    seeds: UInt64Array,
) -> tuple[Float64Array, Int64Array]:
    """Numbers [models, users, scalars + 2 bins] of the model and each user's own, and examples to test on [users].

    Those of low rank are trained on. A user with too few examples for both has none.
    """
    held_out = 0.0 if terms.personal is None else terms.personal.held_out
    tested = np.maximum(1, np.floor(taken * held_out)).astype(np.int64)
    trained = np.maximum(taken - tested, 0)
    tested[trained == 0] = 0
    numbers = np.zeros((2, len(taken), len(terms.scalars) + 2 * terms.layout.bins))
    block = max(1, _PARAMETERS // len(start))
    for first in range(0, len(taken), block):
        block_users = slice(first, min(first + block, len(taken)))
        inside = np.arange(*np.searchsorted(user, (block_users.start, block_users.stop)))
        owner = user[inside]
        moved = train(start, gather(inside[rank[inside] < trained[owner]]), trained[block_users], seeds[block_users])
        testing = inside[(rank[inside] >= trained[owner]) & (rank[inside] < taken[owner]) & (tested[owner] > 0)]
        ends = np.searchsorted(user[testing], np.arange(block_users.start, block_users.stop + 1))
        # Every user has parameters of its own.
        for user_number in (block_users.start + np.flatnonzero(tested[block_users])).tolist():
            held = testing[ends[user_number - first] : ends[user_number - first + 1]]
            for begin in range(0, len(held), terms.examples_at_once):
                part = gather(held[begin : begin + terms.examples_at_once])
                same = np.zeros(len(part[1]), dtype=np.int64)
                for index, vector in enumerate((start, start + moved[user_number - first])):
                    _add(terms, test, vector, part, same, numbers[index, user_number : user_number + 1])
    return numbers / np.maximum(tested, 1)[None, :, None], tested


def _ranks(user: Int64Array, counts: Int64Array, seeds: UInt64Array) -> Int64Array:
    """The place of each example in the drawn order of its user's, int64 [n]."""
    starts = np.cumsum(counts) - counts
    place = np.arange(len(user), dtype=np.int64) - starts[user]
    order = np.lexsort((round_hashes(seeds[user], _ROUND, place + _DRAWS), user))
    rank = np.empty(len(user), dtype=np.int64)
    rank[order] = place
    return rank


def _add(
    terms: Terms, test: Test, vector: Float32Array, examples: Labelled, user: Int64Array, out: Float64Array
) -> None:
    """Adds the numbers of examples to those of their users, ``out`` [users, scalars + 2 bins]."""
    users, (features, targets) = len(out), examples
    if not len(targets):
        return
    with np.errstate(all="ignore"):
        tested = test(vector, features, targets, ranked=terms.ranked)
    probabilities = None if tested.probabilities is None else _probabilities(tested.probabilities)
    for column, scalar in enumerate(terms.scalars):
        values = _values(scalar, targets, tested, probabilities)
        out[:, column] += np.bincount(user, weights=(values - scalar.middle) / scalar.half, minlength=users)
    bins = terms.layout.bins
    if bins and probabilities is not None:
        if terms.classes == 2:
            score, without = probabilities[:, 1], targets != 1
        else:
            score, without = probabilities.max(axis=1), probabilities.argmax(axis=1) != targets
        place = np.minimum((score * bins).astype(np.int64), bins - 1) + bins * without
        cells = np.bincount(user * (2 * bins) + place, minlength=users * 2 * bins)
        out[:, len(terms.scalars) :] += cells.reshape(users, 2 * bins)


def _probabilities(outputs: Float64Array) -> Float64Array:
    """Of each class, float64 [n, classes], from 0 to 1; all alike where the model's are not finite."""
    finite = np.where(np.isfinite(outputs).all(axis=1, keepdims=True), outputs, 1.0 / outputs.shape[1])
    return np.clip(finite, 0.0, 1.0)


def _values(scalar: Scalar, targets: Float32Array, tested: Tested, probabilities: Float64Array | None) -> Float64Array:
    """The number of each example, float64 [n], within its range; a loss that is not a number is the largest one."""
    if tested.places is not None:
        return np.asarray(tested.places < scalar.top, dtype=np.float64)
    if not scalar.top or probabilities is None:
        losses = tested.losses
        return np.clip(np.where(np.isnan(losses), scalar.high, losses), scalar.low, scalar.high)
    label = targets.astype(np.int64)
    label_probability = probabilities[np.arange(len(label)), label][:, None]
    # Of equal probabilities, the lower class is the likelier one.
    before = (probabilities == label_probability) & (np.arange(probabilities.shape[1]) < label[:, None])
    place = ((probabilities > label_probability) | before).sum(axis=1)
    return np.asarray(place < scalar.top, dtype=np.float64)


def _assembled(
    terms: Terms, numbers: Float64Array, present: np.ndarray[tuple[int], np.dtype[np.bool_]], half: Int64Array
) -> Float64Array:
    """Vectors [users, size] of numbers [models, users, scalars + 2 bins]."""
    layout, scalars = terms.layout, len(terms.scalars)
    vectors = np.zeros((len(half), layout.size))
    for index in range(layout.halves):
        members = np.flatnonzero(present & (half == index))
        rows = np.zeros((len(members), layout.width))
        rows[:, 0] = 1.0
        for model in range(layout.models):
            rows[:, layout.means(model)] = numbers[model, members, :scalars]
            rows[:, layout.histogram(model)] = numbers[model, members, scalars:]
        if layout.compared:
            compared = numbers[0, members, :scalars]
            if layout.models == 2:
                compared = 0.5 * (numbers[1, members, :scalars] - compared)
            rows[:, layout.spread] = 0.5 * np.square(compared)
        vectors[members, index * layout.width : (index + 1) * layout.width] = rows
    return vectors * terms.factor


class EvaluationClient(ProgramClient):
    """``odp.algorithms.seam.ProgramClient`` of one task; it keeps no local parameters."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def run_by(self, trainer: ProgramTrainer | None) -> EvaluationClient:
        """This client, whose model has its program run by ``trainer``.

        Raises:
          ConfigurationError: the model has a program that cannot be run here.
        """
        model = self._terms.model.on_device(trainer, self._terms.device_work)
        return EvaluationClient(dataclasses.replace(self._terms, model=model))

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where parameters are missing, of another shape, or not finite."""
        self._terms.vectors(dense)

    def empty(self, round: int) -> bytes:
        """Zeros."""
        check_round(round)
        return bytes(self._terms.grid.payload_bytes)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device without examples to test on contributes zeros.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        check_round(round)
        terms = self._terms
        features, targets = terms.read(data[ROWS])
        testable = terms.testable(targets)
        features, targets = features[testable], targets[testable]
        seeds, counts = np.array([seed], dtype=np.uint64), np.array([len(targets)], dtype=np.int64)
        values = vectors_of_users(
            terms, terms.vectors(slices.dense), lambda places: (features[places], targets[places]),
            terms.model.tested, self._train, counts=counts, seeds=seeds,
        )  # fmt: skip
        return quantise_rows(terms.grid, values, round=round, seeds=seeds)[0].astype(NUMBER).tobytes(), b""

    def _train(
        self,
        start: Float32Array,
        examples: tuple[Float32Array, Float32Array],
        counts: Int64Array,
        seeds: UInt64Array,
        /,
    ) -> Float32Array:
        """``Train`` of one user."""
        training = self._terms.local_training
        model = cast("TrainedModel", self._terms.model)  # ``Terms.of`` lets personal models be of no other
        return model.difference(start, *examples, training, seed=int(seeds[0]), round=ROUND)[None]

"""Draw and Discard in one process: the update of ``client.py`` for many users, and servers to compare it with.

Weights are float32 here and noise is continuous: differences of 2^-24 of a weight, far below the noise. The random
numbers of a simulation are no secret.

=============  ========================================================================================
server         what it does with a report
=============  ========================================================================================
``discard``    overwrites an instance at random, independently of the one that was drawn: Draw and Discard
``same``       overwrites the instance that was drawn
``accept``     has one instance, and takes one report in ``group``
``average``    overwrites an instance at random with the mean of it and the report
``batch``      has one instance, and moves it by the mean of ``group`` reports at once
=============  ========================================================================================

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section V-A.

Thresholds of the test for spam, so that honest reports are refused with a stated probability.

The published rule, weights within t standard deviations of the mean of the instances, is for one weight and a normal
law. Here the two statistics of ``kernels.compare`` are simulated for reports of pure noise, with this number of
instances and of weights: their tails are heavy, and the weights share one genealogy of instances. Half of the false
alarms belong to the largest deviation, half to the spread; by the union bound both together refuse no more than asked.

The stated share is for reports whose gradients are small beside the noise, as those of a model that has converged:
gradients that move all reports add to what is refused.

Source: Pihur et al. 2018, section III-D4, whose thresholds hold for one weight alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.model import LocalModel, UsableRows
from odp.algorithms.draw_and_discard.server import first_instances
from odp.algorithms.draw_and_discard.terms import MOST_INSTANCES, MOST_UPDATES, MOST_WEIGHTS, Spam, Terms
from odp.crypto.keyed_hash import splitmix64
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns
from odp.models.glm.shape import Family
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array, UInt64Array

#: What a server does with reports, by name; the number is that of ``kernels``.
SERVERS: Mapping[str, int] = MappingProxyType({"discard": 0, "same": 1, "accept": 2, "average": 3, "batch": 4})
_SINGLE = ("accept", "batch")
_FAMILIES = tuple(Family)


@dataclass(frozen=True, eq=False)
class EncodedUsers:
    """The usable rows of many users: ``features`` float32 [n, inputs], ``targets`` float32 [n], user after user.

    ``offsets`` int64 [users + 1]: user u has the rows from ``offsets[u]`` to ``offsets[u + 1]``. ``left_out`` counts
    the rows of people that are none of these, and why; None where the rows were made without any other.
    """

    features: Float32Array = field(repr=False)
    targets: Float32Array = field(repr=False)
    offsets: Int64Array = field(repr=False)
    left_out: LeftOut | None = None

    @classmethod
    def of(cls, terms: Terms, people: ExampleColumns) -> Self:
        """What devices of these people would read.

        Raises:
          DataError: a column is missing, a label is none of the model's classes, or no row can be used.
        """
        table = UsableRows.of(terms, people.columns, people.rows)
        keep, left_out = table.reason[people.rows] == 0, table.left_out(people.rows)
        if not left_out.used:
            raise DataError(f"none of the {left_out.total:,} examples can be used; {left_out}")
        # A device reads its last rows, usable or not.
        ends = np.repeat(people.offsets[1:], np.diff(people.offsets))
        newest = ends - np.arange(len(ends)) <= terms.most_examples
        unread = f"beyond the newest {terms.most_examples:,} of a user, which a device reads"
        left_out = left_out.without(int((keep & ~newest).sum()), unread)
        keep &= newest
        after = np.concatenate(([0], np.cumsum(keep)))
        rows = people.rows[keep]
        features = np.ascontiguousarray(table.numbers[rows], dtype=np.float32)
        return cls(features, table.targets[rows].astype(np.float32), after[people.offsets], left_out)

    @property
    def users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1


class Instances:
    """The instances of a simulated server, and the updates that it takes.

    Args:
      server: one of ``SERVERS``.
      group: of the servers that have one instance, how many reports make one step, or of how many one is taken.
      seed: of all draws.

    Raises:
      ConfigurationError: a value is out of range.
    """

    def __init__(self, terms: Terms, *, server: str = "discard", group: int = 1, seed: int = 1) -> None:
        from odp.algorithms.draw_and_discard import kernels

        _validate.one_of(SERVERS, server=server)
        _validate.integer(low=1, high=2**31, group=group)
        _validate.integer(low=0, high=2**63 - 1, seed=seed)
        self.terms, self.updates = terms, 0
        self._number, self._family = SERVERS[server], _FAMILIES.index(terms.family)
        rows = (first_instances(terms) * terms.step).astype(np.float32)
        if server in _SINGLE:
            rows = rows[:1]
        waiting = np.zeros((1, terms.weights), dtype=np.float32)
        self._rows = np.concatenate((rows, waiting)) if server == "batch" else rows
        self._count = len(rows)
        self._batch = np.array([group, 0], dtype=np.int64)
        self._lanes: UInt64Array = np.empty(terms.weights, dtype=np.uint64)
        kernels.start_lanes(np.uint64(seed), self._lanes)
        self._state = splitmix64(np.array([seed], dtype=np.uint64))

    @property
    def rows(self) -> Float32Array:
        """The instances, float32 [k, weights]."""
        return self._rows[: self._count]

    @property
    def model(self) -> Float64Array:
        """Their mean, float64 [weights]."""
        mean: Float64Array = self.rows.mean(axis=0, dtype=np.float64)
        return mean

    def advance(self, people: EncodedUsers, users: Int64Array) -> None:
        """One update for each of ``users`` int64 [n], in this order."""
        from odp.algorithms.draw_and_discard import kernels

        terms = self.terms
        kernels.advance(
            self._number, self._family, self._rows, self._batch, people.features, people.targets, people.offsets, users,
            terms.rate, terms.clip, terms.noise_scale * terms.step, self._lanes, self._state,
        )  # fmt: skip
        self.updates += len(users)


def simulate(
    terms: Terms, people: ExampleColumns | EncodedUsers, *, updates: int, seed: int = 1, server: str = "discard",
    group: int = 1, on_pass: Callable[[int, Instances], None] | None = None,
) -> LocalModel:  # fmt: skip
    """The model after ``updates`` reports: each pass has every user once, in a drawn order.

    Args:
      seed: of the order, the server's draws and the noise.
      server, group: as ``Instances``.
      on_pass: called after each pass with its number and the instances.

    Raises:
      ConfigurationError: a value is out of range.
      DataError: a column is missing, or there is no user.
    """
    _validate.integer(low=1, high=MOST_UPDATES, updates=updates)
    encoded = people if isinstance(people, EncodedUsers) else EncodedUsers.of(terms, people)
    if not encoded.users:
        raise DataError("Expected at least one user")
    instances = Instances(terms, server=server, group=group, seed=seed)
    number = 0
    while instances.updates < updates:
        instances.advance(encoded, _order(encoded.users, seed, number)[: updates - instances.updates])
        if on_pass is not None:
            on_pass(number, instances)
        number += 1
    rows = instances.rows
    deviation = math.sqrt(float(rows.var(axis=0, ddof=1, dtype=np.float64).mean())) if len(rows) > 1 else 0.0
    return LocalModel(terms, instances.model, instances.updates, deviation, trained_without=encoded.left_out)


def _order(users: int, seed: int, number: int) -> Int64Array:
    """A permutation of 0 .. users - 1, of a seed and the number of the pass."""
    stream = splitmix64(np.array([seed], dtype=np.uint64)) ^ splitmix64(np.array([number], dtype=np.uint64))
    places = np.add(stream, np.arange(users, dtype=np.uint64), dtype=np.uint64)
    return np.argsort(splitmix64(places), kind="stable")


_NUMBERS = 1 << 31  # drawn noise at most: some seconds
_CHEAP = 1 << 27
_TAIL = 20  # simulated reports beyond each threshold, at least
_BURN = 2  # times k^2 updates, four times what the variance needs to settle
_SEED = 20261123


def honest_statistics(
    *, instances: int, weights: int, updates: int, seed: int = _SEED
) -> tuple[Float64Array, Float64Array]:
    """(largest deviations, spreads), float64 [updates] each, of honest reports without data.

    Raises:
      ConfigurationError: a number is out of range.
    """
    from odp.algorithms.draw_and_discard import kernels
    from odp.algorithms.factorization.public_normals import public_normals

    _validate.integer(low=2, high=MOST_INSTANCES, instances=instances)
    _validate.integer(low=1, high=MOST_WEIGHTS, weights=weights)
    # Near the law of the chain's end already: the variance over instances of scale-1 noise is instances * 2 / 2.
    rows = (math.sqrt(instances) * public_normals(seed, (instances, weights))).astype(np.float32)
    largest, spread = np.empty(updates), np.empty(updates)
    kernels.honest_statistics(rows, _BURN * instances * instances, np.uint64(seed), largest, spread)
    return largest, spread


def thresholds(*, instances: int, weights: int, false_alarms: float) -> Spam:
    """The rule that refuses the share ``false_alarms`` of honest reports at most.

    ``false_alarms`` 0 is no rule. With one instance there is no spread to compare with, so there is no rule either.

    Raises:
      ConfigurationError: so rare alarms cannot be simulated for this number of weights and instances.
    """
    _validate.within(low=0.0, high=0.5, false_alarms=false_alarms)
    if not false_alarms or instances < 2:
        return Spam()
    updates = math.ceil(2 * _TAIL / false_alarms)
    most_updates = _NUMBERS // weights - _BURN * instances * instances
    if updates > most_updates:
        least = 2 * _TAIL / most_updates if most_updates > 2 * _TAIL else math.inf
        raise ConfigurationError(
            f"Expected false_alarms={false_alarms!r} to be 0, for no test, or at least {least:.2g}: rarer "
            f"alarms cannot be simulated for {instances} instances of {weights} weights"
        )
    # Longer where it is cheap: reports in a row share their instances, which renew themselves every k^2 / 2 updates.
    updates = max(updates, min(_CHEAP // weights, 50 * updates + 200 * instances * instances))
    largest, spread = honest_statistics(instances=instances, weights=weights, updates=updates)
    level = 1.0 - false_alarms / 2
    return Spam(float(np.quantile(largest, level)), float(np.quantile(spread, level)), false_alarms)

"""What a device computes, for any number of devices at once: ``client.py`` runs it for one, ``population.py`` for all.

A device solves its own bias and row on the slices that it has, forms the gradient of its squared error with respect to
the item table (downhill), and scales it down to the clip. Nothing but that gradient leaves it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from odp.algorithms.dpam.terms import BIAS_COLUMN, FACTOR_COLUMNS, Terms as RatingTerms
from odp.algorithms.factorization.codec import shortened
from odp.algorithms.item_gradients.codec import LIMIT, UNITS, Contributions
from odp.algorithms.item_gradients.terms import Terms
from odp.algorithms.seam import LocalRows
from odp.numerics.arrays import Float64Array, Int64Array

_TINY = 1e-300


@dataclass(frozen=True)
class Entries:
    """Local data of ``users`` devices, one entry after the other: each device's in its order of use.

    Attributes:
      user: of each entry, int64 [E], ascending.
      items, values: int64 and float64 [E].
      rows: of the items, float64 [E, width].
    """

    users: int
    user: Int64Array
    items: Int64Array
    values: Float64Array
    rows: Float64Array

    @property
    def bounds(self) -> Int64Array:
        """Device ``i`` has the entries ``bounds[i] : bounds[i + 1]``, int64 [users + 1]."""
        return np.searchsorted(self.user, np.arange(self.users + 1))

    @property
    def place(self) -> Int64Array:
        """Of each entry among its device's, int64 [E] from 0."""
        return np.arange(len(self.user)) - self.bounds[self.user]

    def squares(self, numbers: Float64Array) -> Float64Array:
        """Sum of outer products over each device's entries, float64 [users, k, k] of [E, k].

        One product per device, so that rounding does not depend on who else is there.
        """
        total = np.empty((self.users, numbers.shape[1], numbers.shape[1]))
        for user, (first, last) in enumerate(itertools.pairwise(self.bounds.tolist())):
            np.matmul(numbers[first:last].T, numbers[first:last], out=total[user])
        return total

    @classmethod
    def of(cls, held: LocalRows, rows: Float64Array) -> Entries:
        """Those of one device."""
        return cls(1, np.zeros(len(held.items), dtype=np.int64), held.items, held.values.astype(np.float64), rows)


def solve(terms: Terms[RatingTerms], entries: Entries, ridges: Float64Array) -> tuple[Float64Array, Float64Array]:
    """(bias and row of each device, float64 [users, 1 + rank], errors of the entries [E]), both before any clip.

    Ridge regression of values less centre and item bias on (1, factors), in closed form; ``ridges`` [2] are on the row
    and on the bias.
    """
    width = 1 + terms.model.rank
    design = np.ones((len(entries.user), width + 1))
    design[:, 1:width] = entries.rows[:, FACTOR_COLUMNS:]
    design[:, width] = residual = entries.values - terms.model.centre - entries.rows[:, BIAS_COLUMN]
    squares = entries.squares(design)
    normal, right = squares[:, :width, :width], squares[:, :width, width:]
    normal[:, range(width), range(width)] += np.concatenate((ridges[1:], np.repeat(ridges[:1], width - 1)))
    local = np.asarray(np.linalg.solve(normal, right)[:, :, 0], dtype=np.float64)
    return local, np.asarray(residual - np.einsum("ed,ed->e", local[entries.user], design[:, :width]))


def masses(terms: Terms[Any], entries: Entries) -> Contributions:
    """What leaves the devices in the round of masses: a vector of length 1, equal on the items that are sent."""
    items, used, _ = places(terms, entries, np.zeros(len(entries.user)))
    each = np.trunc(UNITS / np.sqrt(np.maximum(used.sum(axis=1, keepdims=True), 1))).astype(np.int64)
    nothing = np.zeros((entries.users, 0), dtype=np.int64)
    return Contributions(nothing, items, used, each * used, nothing)


def contributions(
    terms: Terms[RatingTerms], entries: Entries, ridges: Float64Array
) -> tuple[Contributions, Float64Array]:
    """(what leaves the devices in a round of gradients; bias and row of each, which do not)."""
    local, error = solve(terms, entries, ridges)
    items, used, errors = places(terms, entries, error / terms.unit)
    rows = np.concatenate((np.ones((entries.users, 1)), clipped_rows(local[:, 1:], terms.row_clip)), axis=1)
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    targets = shortened(errors * norm * (UNITS / terms.clip), LIMIT)
    nothing = np.zeros((entries.users, 0), dtype=np.int64)
    return Contributions(shortened(rows / norm * UNITS, LIMIT), items, used, targets, nothing), local


def places(terms: Terms[Any], entries: Entries, numbers: Float64Array) -> tuple[Int64Array, Int64Array, Float64Array]:
    """(items int64, whether there is one, ``numbers`` [E]) of the first entries of each device, [n, K]."""
    sent = entries.place < terms.model.max_items
    at, shape = (entries.user[sent], entries.place[sent]), (entries.users, terms.model.max_items)
    items, used, placed = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), np.zeros(shape)
    items[at], used[at], placed[at] = entries.items[sent], 1, numbers[sent]
    return items, used, placed


def clipped_rows(rows: Float64Array, clip: float) -> Float64Array:
    """Rows [n, rank] scaled down to L2 norm ``clip`` where longer."""
    return np.asarray(rows * np.minimum(1.0, clip / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _TINY)))

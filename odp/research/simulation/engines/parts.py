"""The users of a simulation in parts, each of which can go to another machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Int64Array, UInt64Array


class Part(NamedTuple):
    """Consecutive users, and their seeds uint64."""

    users: Ratings | UsersExamples
    seeds: UInt64Array


def edges_of(users: int, parts: int) -> Int64Array:
    """The first user of each of at most ``parts`` parts of about one size, and the end; int64."""
    return np.unique(np.linspace(0, users, min(parts, max(users, 1)) + 1).astype(np.int64))


def parts_of(users: Ratings | UsersExamples, seeds: UInt64Array, edges: Int64Array) -> Iterator[Part]:
    """The parts between ``edges``, one in memory at a time."""
    for first, end in itertools.pairwise(edges):
        some = users.select_users(np.arange(first, end))
        yield Part(_own_rows(some) if isinstance(some, UsersExamples) else some, seeds[first:end])


def selected_of(selected: Int64Array | None, edges: Int64Array) -> list[Int64Array | None]:
    """For each part the users of ``selected`` (ascending), counted from its first; None for all of them."""
    if selected is None:
        return [None] * (len(edges) - 1)
    bounds = np.searchsorted(selected, edges)
    return [selected[start:end] - edges[number] for number, (start, end) in enumerate(itertools.pairwise(bounds))]


def _own_rows(users: UsersExamples) -> UsersExamples:
    """The same users with a table of their own rows alone: a part does not carry everybody's."""
    rows, places = np.unique(users.rows, return_inverse=True)
    features: Any = users.features[rows]
    return UsersExamples(
        np.ascontiguousarray(features), users.targets[rows], places.astype(np.int64).ravel(), users.offsets,
        users.scale,
    )  # fmt: skip

"""Random draws about simulated users: each is a keyed hash of that user's identity alone.

A simulation without one user therefore draws the same for all others, and its releases move by at most one user's
bound, which is what their charges state.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.datasets.ratings import Ratings
from odp.privacy.events import Sampling
from odp.privacy.matrix.sensitivity import Participation

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


class Users(Protocol):
    """A data set of users."""

    @property
    def user_keys(self) -> Int64Array:
        """The identity of each, int64 [n_users]."""


def user_seeds(ratings: Users, seed: int) -> UInt64Array:
    """Seeds uint64 [n_users] of simulated users; a real device draws its own from the operating system."""
    return keyed_hash(key_of("seeds of users", seed), ratings.user_keys)


def draw_users(ratings: Users, sampling: Sampling, *, round: int, seed: int) -> Int64Array:
    """The users int64 [k], ascending, whose contributions count in ``round``: none of a draw beyond the cap.

    Unlike the enclave's draw it is no secret. A function of its arguments, so that a run that goes on from a checkpoint
    draws as it would have.
    """
    coins = keyed_hash(key_of("coins of users", seed, round), ratings.user_keys)
    selected = np.flatnonzero(coins < np.uint64(int(Fraction(sampling.probability) * 2**64)))
    return selected if len(selected) <= sampling.cap else selected[:0]


def first_users(ratings: Users, goal: int, *, round: int, seed: int) -> Int64Array:
    """The users int64 [goal], ascending, whose contributions come first in ``round`` and close it; no secret.

    A user who is left out of the data set gives its place to another one. One whose data are left out keeps it: that
    is the adjacency of every charge (``odp.privacy.adjacency``).
    """
    order = np.argsort(keyed_hash(key_of("arrivals of users", seed, round), ratings.user_keys), kind="stable")
    return np.sort(order[:goal])


def due_users(ratings: Users, allowed: Participation, *, round: int, seed: int) -> Int64Array:
    """The users int64 [k], ascending, who come to ``round`` of a stream: in turn, as often as they may.

    Each user has one of ``allowed.separation`` turns, drawn by ``seed``.
    """
    cycle, turn = divmod(round, allowed.separation)
    user_turns = keyed_hash(key_of("turns of users", seed), ratings.user_keys) % np.uint64(allowed.separation)
    return np.flatnonzero((user_turns == turn) & (cycle < allowed.most))


def chosen_entries(ratings: Ratings, most: int, *, seed: int) -> Int64Array:
    """At most ``most`` random entries of each user: their indices int64 [k], by user."""
    hashes = keyed_hash(user_seeds(ratings, seed)[ratings.users()], ratings.item_keys[ratings.items])
    order = np.lexsort((hashes, ratings.users()))
    place = np.arange(ratings.n_ratings) - np.repeat(ratings.offsets[:-1], ratings.counts())
    return order[place < most]


def spread_users(ratings: Ratings, most: int) -> Int64Array:
    """At most ``most`` users int64 [k], ascending, evenly spread over the numbers: for a quick look during training."""
    return np.unique(np.linspace(0, ratings.n_users - 1, min(most, ratings.n_users)).astype(np.int64))


def per_round_note(ratings: Ratings, most: int) -> list[str]:
    """That figures after each round are of ``most`` users, a line for people; nothing where these are all."""
    if ratings.n_users <= most:
        return []
    return [f"figures after each round are of {most:,} of {ratings.n_users:,} users, those of the result of all"]

"""The binary tree as an encoder matrix: one node per round, the sum of the rounds (t - lowbit(t), t] for t = 1, 2, ...

These are the nodes that prefix sums need (a Fenwick tree): that of t is the sum of popcount(t) of them. The nodes of a
full binary tree that are right children are not released, which no prefix sum would use. Entries are 0 and 1, so an
encoded sum stays on the grid of the sums: bits = 0. Both halves keep one vector per level.

The mechanism for streams of unknown return times, and the oracle of the others: banded matrices have less noise.

Sources: Dwork et al. 2010, "Differential privacy under continual observation"; Kairouz et al. 2021, section 4.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.matrix import encoding, sensitivity
from odp.privacy.matrix.sensitivity import MOST_ROUNDS, Participation


class TreeMatrix:
    """``odp.privacy.matrix.encoding.EncoderMatrix`` of a binary tree over ``rounds`` rounds.

    Raises ConfigurationError where ``rounds`` is out of range.
    """

    bits = 0
    rounding = 0.0

    def __init__(self, rounds: int) -> None:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=rounds)
        self.rounds = rounds

    def __repr__(self) -> str:
        return f"TreeMatrix(rounds={self.rounds})"

    @property
    def levels(self) -> int:
        """Sizes of nodes: 1, 2, 4, .. up to the number of rounds."""
        return self.rounds.bit_length()

    @property
    def digest(self) -> bytes:
        """SHA-256 of the kind and the number of rounds."""
        return encoding.digest_of("tree", 0, [np.array([self.rounds])])

    def matrix(self) -> Float64Array:
        """C, float64 [rounds, rounds]."""
        return sensitivity.tree_matrix(self.rounds).astype(np.float64)

    def squared_sensitivity(self, allowed: Participation) -> Fraction:
        """Exact up to 8 rounds per user, else an upper bound. Raises ConfigurationError for other rounds."""
        _validate.integer(low=self.rounds, high=self.rounds, rounds=allowed.rounds)
        return Fraction(sensitivity.of_tree(allowed))

    def sensitivity(self, allowed: Participation) -> float:
        """The root of ``squared_sensitivity``, rounded upwards."""
        return sensitivity.root_upwards(self.squared_sensitivity(allowed))

    def encoder(self, size: int, *, limit: int, state: bytes | None = None) -> TreeEncoder:
        return TreeEncoder(self, size, limit, state)

    def decoder(self, size: int, *, state: bytes | None = None) -> TreeDecoder:
        return TreeDecoder(self, size, state)


class TreeEncoder:
    """``Encoder`` that keeps the last node of each size, exact sums in 64 bits."""

    def __init__(self, matrix: TreeMatrix, size: int, limit: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        encoding.require_limit(limit, matrix.rounds)
        self._matrix, self._size, self._limit = matrix, size, limit
        self._nodes = np.zeros((matrix.levels, size), dtype=np.int64)
        self.round = 0
        if state is not None:
            self.round = encoding.unpacked(b"TREE", matrix.digest, size, [self._nodes], state, rounds=matrix.rounds)

    def step(self, total: Int64Array) -> Int64Array:
        encoding.checked(total, size=self._size, round=self.round, rounds=self._matrix.rounds, limit=self._limit)
        level = _level(self.round + 1)
        node = total + self._nodes[:level].sum(axis=0)
        self._nodes[:level] = 0  # part of the new node, and of no later one
        self._nodes[level] = node
        self.round += 1
        encoded: Int64Array = node
        return encoded

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"TREE", self._matrix.digest, self.round, self._size, [self._nodes])

    @property
    def state_bytes(self) -> int:
        return encoding.packed_bytes([self._nodes])


class TreeDecoder:
    """``Decoder`` that keeps the last released node of each size."""

    def __init__(self, matrix: TreeMatrix, size: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        self._matrix, self._size = matrix, size
        self._nodes = np.zeros((matrix.levels, size))
        self.round = 0
        if state is not None:
            self.round = encoding.unpacked(b"TDEC", matrix.digest, size, [self._nodes], state, rounds=matrix.rounds)

    def step(self, release: npt.NDArray[np.number]) -> Float64Array:
        encoding.checked(release, size=self._size, round=self.round, rounds=self._matrix.rounds)
        level = _level(self.round + 1)
        self._nodes[:level] = 0.0
        self._nodes[level] = release
        self.round += 1
        estimate: Float64Array = self._nodes.sum(axis=0)
        return estimate

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"TDEC", self._matrix.digest, self.round, self._size, [self._nodes])


def _level(end: int) -> int:
    """Number of zeros at the end of ``end`` in binary: the node that ends there has 2^level rounds."""
    return (end & -end).bit_length() - 1

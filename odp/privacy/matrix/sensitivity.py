"""The most that one user moves an encoded stream, over all rounds that it may be in: exact, in whole numbers.

Let C be the encoder matrix, and let a user add a vector of norm at most 1 in each round of a set p of rounds. It moves
C G by at most ``max over allowed p of |sum over i in p of C[:, i]|`` in the Frobenius norm if no entry of C'C is
negative, and whatever the signs if columns that can meet are orthogonal. Entries of C are whole numbers over 2^bits, so
squared sensitivities are whole numbers over 4^bits: nothing here is rounded, but for the last root, upwards.

====================  =======================  ============================================================
matrix                result                   by
====================  =======================  ============================================================
Toeplitz, entries     exact                    the earliest rounds, as close as allowed, are the worst
not rising
banded, separation    exact                    columns of a pattern have no row in common: their norms add up
>= bands
binary tree           exact up to 8 rounds     dynamic programming over blocks (counts, first and last round)
                      per user, where that
                      is quick; then a bound   the last line of this table; 1 to 3 % above in the cases compared
any, entries >= 0     upper bound              each round of a pattern with its own worst companions
====================  =======================  ============================================================

Sources: Choquette-Choo et al. 2023 (theorem 2.1: signs; section 4: bands), arXiv 2405.13763 (theorem 2: Toeplitz),
Kairouz et al. 2021 (trees).

How often, and how far apart, one user may take part in a stream; and the record that refuses everything else.

The noise of a stream is not charged by the round: its sensitivity is a maximum over the rounds that one user can be in.
So the two numbers that it is computed from are enforced, by the enclave and by the device (rule P27).

Source: Choquette-Choo et al. 2023, "Multi-epoch matrix factorization mechanisms for private machine learning"
(b-min-separation), Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling".
"""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.numerics.arrays import Float64Array, Int64Array

MOST_ROUNDS = 2**20

_HEADER = struct.Struct("<4sIIIQ")  # magic, rounds, most, separation, participants
_MAGIC = b"OPR1"
_ENTRY = struct.Struct("<III")  # count, last round, least distance (0: none yet)
_ID_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Participation:
    """At most ``most`` of ``rounds`` rounds per user, any two of them at least ``separation`` apart.

    Rounds i < j are j - i apart: with a separation of 1, a user may be in every round, and with 2 in every second.

    Raises:
        ConfigurationError: a number is out of range.
    """

    rounds: int
    most: int
    separation: int

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=self.rounds)
        _validate.integer(low=1, high=self.rounds, most=self.most, separation=self.separation)

    @property
    def largest(self) -> int:
        """The most rounds that a user can really be in: ``most``, or what the separation leaves."""
        return min(self.most, -(-self.rounds // self.separation))

    def until(self, rounds: int) -> Participation:
        """The same rule for the first ``rounds`` rounds."""
        return Participation(rounds=rounds, most=min(self.most, rounds), separation=min(self.separation, rounds))


class ParticipationRecord:
    """Who was in which rounds of one stream, as far as the rule needs it: per user a count and the last round.

    It grows by 44 bytes per user that took part, and never shrinks: a user that is forgotten could come back. It is as
    secret as the contributions, and belongs to the sealed state of the stream.

    Args:
        allowed: the rule of the stream.
    """

    def __init__(self, allowed: Participation) -> None:
        self.allowed = allowed
        self._users: dict[bytes, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        """Number of users that took part."""
        return len(self._users)

    def admits(self, user: bytes, round: int) -> bool:
        """Whether the user may be in ``round``, given the rounds on record."""
        if not 0 <= round < self.allowed.rounds:
            return False
        count, last, _ = self._users.get(user, (0, -self.allowed.separation, 0))
        return count < self.allowed.most and round - last >= self.allowed.separation

    def record(self, round: int, users: Collection[bytes]) -> None:
        """Puts the users of one round on record: all of them, or none where one may not take part.

        Args:
            round: of the stream, from 0; not before one on record.
            users: 32-byte pseudonyms of the task, pairwise distinct.

        Raises:
            ConfigurationError: a round out of range, a pseudonym of another length, or one twice.
            PrivacyError: a user was in too many rounds, or in one too close; the message says how many users.
        """
        _validate.integer(low=0, high=self.allowed.rounds - 1, round=round)
        if any(len(user) != _ID_BYTES for user in users) or len(set(users)) != len(users):
            _validate.integer(low=len(users), high=len(users), distinct_pseudonyms=len(set(users)))
            _validate.integer(low=_ID_BYTES, high=_ID_BYTES, bytes_of_pseudonym=min(map(len, users)))
            _validate.integer(low=_ID_BYTES, high=_ID_BYTES, bytes_of_pseudonym=max(map(len, users)))
        if refused := sum(not self.admits(user, round) for user in users):
            raise PrivacyError(
                f"{refused} of {len(users)} contributions to round {round} are refused: a user takes part at most "
                f"{self.allowed.most} times, at least {self.allowed.separation} rounds apart"
            )
        for user in users:
            count, last, least = self._users.get(user, (0, round, 0))
            apart = round - last
            nearest = apart if not least else min(least, apart)
            self._users[user] = (count + 1, round, nearest if count else 0)

    def after(self, round: int, users: Collection[bytes]) -> ParticipationRecord:
        """A copy with the users of one round on record. Raises as ``record``."""
        copy = ParticipationRecord(self.allowed)
        copy._users = dict(self._users)
        copy.record(round, users)
        return copy

    def to_bytes(self) -> bytes:
        """Everything, in an order that tells nothing but the pseudonyms'."""
        rule = self.allowed
        parts = [_HEADER.pack(_MAGIC, rule.rounds, rule.most, rule.separation, len(self._users))]
        parts += [user + _ENTRY.pack(*self._users[user]) for user in sorted(self._users)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, allowed: Participation, data: bytes) -> ParticipationRecord:
        """The record that ``to_bytes`` wrote. Raises StateError for other bytes, or those of another rule."""
        wanted = (_MAGIC, allowed.rounds, allowed.most, allowed.separation)
        header = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0, 0, 0)
        width = _ID_BYTES + _ENTRY.size
        if header[:4] != wanted or len(data) != _HEADER.size + header[4] * width:
            raise StateError("The record of participations is of another stream, or was cut: restore a backup")
        record = cls(allowed)
        for start in range(_HEADER.size, len(data), width):
            user = data[start : start + _ID_BYTES]
            count, last, least = _ENTRY.unpack_from(data, start + _ID_BYTES)
            record._users[user] = (count, last, least)
        return record


_EXACT, _EXACT_SINGLE = 2**53, 2**24
_MOST_EXACT = 8  # rounds per user: with more, the blocks of a tree have too many different squares
# Numbers that either way may touch: about two seconds. A party computes this for whatever a stranger's task asks.
_MOST_WORK = 2**30
_MOST_BOUND_WORK = 2**27
_OPERATION = 4096  # numbers that numpy touches in the time of starting one operation
_ROWS = 512  # of a Gram matrix at once
_NEVER = np.int64(2**40)


def root_upwards(square: Fraction) -> float:
    """A float that is at least the root of ``square``, and at most a part in 1e15 above it.

    >>> root_upwards(Fraction(9, 4))
    1.5
    """
    scale = 1 << 128
    whole = square.numerator * scale * scale
    root = math.isqrt(whole // square.denominator)
    exact = root * root * square.denominator == whole
    root_bound = Fraction(root if exact else root + 1, scale)
    nearest = float(root_bound)
    return nearest if Fraction(nearest) >= root_bound else math.nextafter(nearest, math.inf)


def of_toeplitz(coefficients: Sequence[int], allowed: Participation) -> int:
    """Squared sensitivity of the Toeplitz matrix with these first numbers of its first column; the others are 0.

    Raises:
        PrivacyError: a coefficient is negative or above the one before it: the closed form is not for those.
    """
    if any(later > earlier for earlier, later in itertools.pairwise(coefficients)):
        raise PrivacyError("Expected the coefficients of a Toeplitz matrix to be non-increasing")
    if not coefficients or coefficients[-1] < 0:
        raise PrivacyError("Expected the coefficients of a Toeplitz matrix to be non-negative")
    numbers = [int(value) for value in coefficients[: allowed.rounds]]
    # No place of the column is a sum of more numbers than there are: most often, 64 bits hold it.
    kind = np.int64 if max(numbers) * len(numbers) < 2**62 else object
    column, values = np.zeros(allowed.rounds, dtype=kind), np.array(numbers, dtype=kind)
    for start in range(0, allowed.largest * allowed.separation, allowed.separation):
        width = min(len(values), allowed.rounds - start)
        column[start : start + width] += values[:width]
    return sum(value * value for value in column.tolist())


def of_disjoint_columns(squares: Sequence[int], allowed: Participation) -> int:
    """Squared sensitivity where columns at least ``separation`` apart have no row in common.

    ``squares`` are the squared norms of the columns. Holds whatever the signs.
    """
    best = [0] * (allowed.rounds + 1)
    for _ in range(allowed.largest):
        after = [0] * (allowed.rounds + 1)
        for place, square in enumerate(squares, start=1):
            after[place] = max(after[place - 1], best[max(0, place - allowed.separation)] + square)
        best = after
    return best[-1]


def upper_bound(matrix: Int64Array | Float64Array, allowed: Participation) -> int:
    """Upper bound of the squared sensitivity of any matrix of whole numbers [rows, rounds] without negative ones.

    With X = C'C, a pattern p has the square ``sum over i in p of (X[i,i] + sum over j in p, j != i, of X[i,j])``. Each
    bracket is at most its maximum over all patterns through i, and then one pattern of rounds is the worst. Equal to
    the truth where X[i,j] is 0 for all rounds that can meet. Time O(rounds^2 most), memory 8 rounds^2 bytes.

    Raises:
        PrivacyError: an entry is negative.
        ConfigurationError: entries are so large that sums of their products are not exact in float64.
    """
    if matrix.min() < 0:
        raise PrivacyError("Expected the entries of an encoder matrix to be non-negative")
    floats, rounds = matrix.astype(np.float64, copy=False), np.arange(allowed.rounds)
    # No entry of C'C is above the largest square of a column, and the square of a pattern is the sum of as many of them
    # as its rounds have pairs: whole numbers, which a double holds exactly, and for a tree a single float, too.
    largest = float(np.square(floats).sum(axis=0).max()) * allowed.largest**2
    if largest >= _EXACT:
        raise ConfigurationError("Expected smaller entries of the encoder matrix: take fewer bits")
    if largest < _EXACT_SINGLE:
        floats = floats.astype(np.float32)
    weights = np.empty(allowed.rounds, dtype=floats.dtype)
    for start in range(0, allowed.rounds, _ROWS):
        block_rounds = rounds[start : start + _ROWS]
        gram = floats[:, block_rounds].T @ floats
        square = gram[np.arange(len(block_rounds)), block_rounds]
        gram[np.abs(block_rounds[:, None] - rounds[None, :]) < allowed.separation] = 0.0
        weights[block_rounds] = square + _heaviest(gram, allowed, allowed.largest - 1)
    return int(_heaviest(weights[None, :], allowed, allowed.largest)[0])


def _heaviest(values: NDArray[np.floating], allowed: Participation, most: int) -> NDArray[np.floating]:
    """For each row of ``values`` [m, rounds], the largest sum over a pattern of at most ``most`` rounds, [m]."""
    columns = np.ascontiguousarray(values.T)
    best = np.zeros((allowed.rounds + 1, len(values)), dtype=values.dtype)
    after = np.zeros_like(best)
    for _ in range(most):
        for place, (row, column) in enumerate(zip(after[1:], columns, strict=True), 1):
            np.add(best[max(0, place - allowed.separation)], column, out=row)
            np.maximum(after[place - 1], row, out=row)
        best, after = after, best
    heaviest: NDArray[np.floating] = best[-1]
    return heaviest


# For blocks of a tree: (rounds of the user in the block, sum of squares) -> the earliest possible last round of the
# user, by the round before which it may not take part; both counted from the start of the block, ``_NEVER`` for none.
_Block = dict[tuple[int, int], NDArray[np.int64]]


def of_tree(allowed: Participation) -> int:
    """Squared sensitivity of the binary tree with the nodes that prefix sums need: (t - lowbit(t), t] for t = 1, 2, ...

    Of two sibling blocks, only the left one is a node. A user with c rounds below a node moves it by c.

    Raises:
        ConfigurationError: more rounds, or more of one user, than either way takes some seconds for.
    """
    if allowed.largest <= _MOST_EXACT:
        with contextlib.suppress(_TooMuch):
            return _of_tree(allowed, _Work())
    if allowed.rounds**2 * allowed.largest > _MOST_BOUND_WORK:
        raise ConfigurationError(
            f"Expected rounds^2 * participations of a tree to be at most {_MOST_BOUND_WORK} (got rounds="
            f"{allowed.rounds} and {allowed.largest} participations): take a larger separation, or banded matrices"
        )
    return upper_bound(tree_matrix(allowed.rounds).astype(np.float64), allowed)


class _TooMuch(Exception):
    """The exact way takes too long."""


class _Work:
    """Counts what the exact way touches: the same on every machine, so that all parties take the same way."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def count(self, numbers: int) -> None:
        """Counts one operation. Raises _TooMuch."""
        self._left -= numbers + _OPERATION
        if self._left < 0:
            raise _TooMuch


def _of_tree(allowed: Participation, work: _Work) -> int:
    """Raises _TooMuch."""
    sizes = [1 << bit for bit in reversed(range(allowed.rounds.bit_length())) if allowed.rounds >> bit & 1]
    blocks = _complete_blocks(allowed, max(sizes), work)
    whole, start = _as_node(blocks[sizes[0]]), sizes[0]
    for size in sizes[1:]:
        whole = _joined(whole, start, _as_node(blocks[size]), size, allowed, work)
        start += size
    return max((square for _, square in whole), default=0)


def tree_matrix(rounds: int) -> Int64Array:
    """The encoder matrix of that tree, 0 or 1, int64 [rounds, rounds]; row t - 1 is the node that ends at t."""
    matrix = np.zeros((rounds, rounds), dtype=np.int64)
    for end in range(1, rounds + 1):
        matrix[end - 1, end - (end & -end) : end] = 1
    return matrix


def _complete_blocks(allowed: Participation, largest: int, work: _Work) -> dict[int, _Block]:
    """Blocks of 1, 2, 4, .. rounds, without their own node."""
    size = 1
    blocks: dict[int, _Block] = {1: {(1, 0): np.array([0, _NEVER], dtype=np.int64)}}
    while size < largest:
        blocks[2 * size] = _joined(_as_node(blocks[size]), size, blocks[size], size, allowed, work)
        size *= 2
    return blocks


def _as_node(block: _Block) -> _Block:
    return {(count, square + count * count): last for (count, square), last in block.items()}


def _joined(
    left: _Block, left_size: int, right: _Block, right_size: int, allowed: Participation, work: _Work
) -> _Block:
    """Two neighbouring blocks as one of ``left_size + right_size`` rounds."""
    joined: _Block = {}
    floors, largest = np.arange(left_size + right_size + 1), allowed.largest
    in_right = np.maximum(floors - left_size, 0)

    def offer(count: int, square: int, last: NDArray[np.int64]) -> None:
        previous = joined.get((count, square))
        joined[count, square] = last if previous is None else np.minimum(previous, last)

    padding = np.full(right_size, _NEVER)
    for (count, square), last in left.items():
        offer(count, square, np.concatenate((last, padding)))
    for (count, square), last in right.items():
        offer(count, square, left_size + last[in_right])
    for (count, square), last in left.items():
        # Where the right part may begin, after the last round in the left one; beyond the block where there is none.
        resumes = np.minimum(np.maximum(last + allowed.separation - left_size, 0), right_size)
        for (more, squares), last_right in right.items():
            if count + more <= largest:
                work.count(left_size + right_size)
                both = np.concatenate((left_size + last_right[resumes], padding))
                offer(count + more, square + squares, both)
    return _undominated({key: np.minimum(last, _NEVER) for key, last in joined.items()}, work)


def _undominated(block: _Block, work: _Work) -> _Block:
    """Without the entries that another one, of as many rounds and a larger square, makes useless."""
    undominated: _Block = {}
    for (count, square), last in sorted(block.items(), key=lambda item: (item[0][0], -item[0][1])):
        if last[0] >= _NEVER:
            continue
        better = [other for (rounds, _), other in undominated.items() if rounds == count]
        work.count(len(better) * (len(last) + _OPERATION))
        if not any((other <= last).all() for other in better):
            undominated[count, square] = last
    return undominated

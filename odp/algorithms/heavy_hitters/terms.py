"""The numbers of one task, read from its definition and checked: one source for every party.

The cell of a word in round 0 is its first ``first`` characters as digits, the first one most significant. In a later
round it is ``row * base + next character``, where row is that of its prefix in the model; a word whose prefix is not in
the model, or that has ended, has no cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.grid import MAX_SIZE, Grid
from odp.algorithms.dense.records import check_question
from odp.algorithms.heavy_hitters.words import END, WordTerms
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.aggregation.table import mode_of
from odp.v1 import common_pb2

RELEASE = "prefixes"
PREFIXES, WORDS, COUNTS = "prefixes", "words", "counts"
MOST_WORDS = 2**14
MOST_PREFIXES = 2**14
#: Of unused rows and places of the model's tables.
UNUSED = -1.0
_CLIP = 1.0


@dataclass(frozen=True)
class Terms:
    """A :class:`odp.v1.TaskDefinition` that asks for frequent words, checked; fields as of its message."""

    words: WordTerms
    first: int
    prefixes: int
    most_words: int
    threshold: float
    grid: Grid

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task asks something else, a field is out of range, or its aggregation has no rounds.
        """
        check_question(definition, "heavy_hitters")
        if mode_of(definition.cohort).in_session:
            raise ConfigurationError(
                f"Expected aggregation={mode_of(definition.cohort).name!r} to be of an enclave: a "
                "search takes rounds, and each asks by what the ones before it released"
            )
        message = definition.heavy_hitters
        words = WordTerms.of(message.words)
        _validate.integer(low=1, high=words.length, first=message.first)
        _validate.integer(low=1, high=MOST_PREFIXES, prefixes=message.prefixes)
        _validate.integer(low=1, high=MOST_WORDS, most_words=message.most_words)
        _validate.within(low=0.0, high=100.0, threshold=message.threshold)
        _validate.within(low=_CLIP, high=_CLIP, clip=message.dense.clip)
        size = size_of(base=words.base, first=message.first, prefixes=message.prefixes)
        grid = Grid.of(message.dense, definition.cohort, size=size)
        return cls(words, message.first, message.prefixes, message.most_words, message.threshold, grid)

    @property
    def rounds(self) -> int:
        """Round 0, and one for each further character."""
        return rounds_of(length=self.words.length, first=self.first)

    def depth(self, round: int) -> int:
        """Characters of the prefixes that devices have in a round."""
        return 0 if round == 0 else self.first + round - 1

    def check_round(self, round: int) -> None:
        """Raises ConfigurationError unless the task has this round."""
        if not 0 <= round < self.rounds:
            raise ConfigurationError(f"Expected round={round!r} to be from 0 to {self.rounds - 1}")

    def cells(self, numbers: Int64Array, table: Float32Array, *, round: int) -> Int64Array:
        """The cell of each word, int64 [n]; -1 where it has none.

        Args:
          numbers: int64 [n, length], words as ``WordTerms.numbers`` gives them.
          table: float32 [prefixes, length], the model's.
          round: of the task.
        """
        base, depth = self.words.base, self.depth(round)
        if round == 0:
            return _code(numbers[:, : self.first], base)
        prefixes = usable_prefixes(table, depth, base)
        # Longer prefixes than 64 bits hold are compared by their ranks among the words and the prefixes.
        word_ranks, codes = _ranks(numbers[:, :depth], prefixes)
        order = np.argsort(codes, kind="stable")
        place = np.minimum(np.searchsorted(codes, word_ranks, sorter=order), max(len(codes) - 1, 0))
        cells: Int64Array = np.full(len(numbers), -1, dtype=np.int64)
        if len(codes):
            row = order[place]
            hit = (codes[row] == word_ranks) & (prefixes[row, 0] > END)
            cells[hit] = row[hit] * base + numbers[hit, depth]
        return cells


def usable_prefixes(table: Float32Array, depth: int, base: int) -> Int64Array:
    """The prefixes of a model as int64 [rows, depth]; rows that are none have END everywhere.

    Whatever an untrusted server wrote there: a device computes with it.
    """
    values = table[:, :depth].astype(np.float64)
    # A prefix that is followed up has no end in it.
    usable: npt.NDArray[np.bool_] = np.all(np.isfinite(values) & (values >= 1) & (values < base), axis=1)
    return np.where(usable[:, None], np.where(np.isfinite(values), values, 0.0), END).astype(np.int64)


def size_of(*, base: int, first: int, prefixes: int) -> int:
    """Numbers of a vector. Raises ConfigurationError where they are more than one vector may have."""
    size = int(max(base**first, base * prefixes))
    if size > MAX_SIZE:
        raise ConfigurationError(f"Expected vectors of at most {MAX_SIZE:,} numbers (got {size:,}): lower prefixes")
    return size


def rounds_of(*, length: int, first: int) -> int:
    """Rounds of a task."""
    return 1 + length - first


def _code(digits: Int64Array, base: int) -> Int64Array:
    code: Int64Array = np.zeros(len(digits), dtype=np.int64)
    for place in range(digits.shape[1]):
        code = code * base + digits[:, place]
    return code


def _ranks(words: Int64Array, prefixes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Numbers that are equal where rows are equal: int64 [len(words)] and [len(prefixes)]."""
    rows = np.ascontiguousarray(np.concatenate((words, prefixes)).astype(np.uint8))
    keys = rows.view(np.dtype((np.void, rows.shape[1])))[:, 0]
    ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    return ranks[: len(words)], ranks[len(words) :]

"""The numbers of one task, read from its definition and checked: one source for every party.

The cell of a word in round 0 is its first ``first`` characters as digits, the first one most significant. In a later
round it is ``row * base + next character``, where row is that of its prefix in the model; a word whose prefix is not in
the model, or that has ended, has no cell.

Words as numbers: what is a word, and which one a user contributes. The same for a device and a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.grid import MAX_SIZE, Grid
from odp.algorithms.dense.records import check_question
from odp.crypto.keyed_hash import round_hashes
from odp.errors import ConfigurationError
from odp.models.computing_cost import SORTED_SECONDS
from odp.models.events_query import EventsTerms
from odp.numerics.arrays import Float32Array, Int64Array, UInt64Array
from odp.protocol.aggregation import mode_of
from odp.v1 import common_pb2, heavy_hitters_pb2

#: The number that ends a word.
END = 0
MOST_CHARACTERS = 255
LONGEST = 32
#: Of a character, in a text or a prefix.
CHARACTER_SECONDS = 3e-8
#: Name of the declared local table, and of its column of texts.
ROWS, TEXT = "words", "text"


@dataclass(frozen=True)
class WordTerms:
    """A checked :class:`odp.v1.WordTerms`; fields as there."""

    table: str
    events: EventsTerms
    alphabet: str
    length: int

    @classmethod
    def of(cls, message: heavy_hitters_pb2.WordTerms) -> WordTerms:
        """Reads and checks the message. Raises ConfigurationError."""
        _validate.identifier(table=message.table)
        if (events := EventsTerms.of(message, aggregates=("each",))) is None:
            raise ConfigurationError(
                f"Expected table={message.table!r} to be events.SERVICE: words are texts of events"
            )
        if len(events.item_columns) != 1 or events.buckets or events.edges is not None or events.value_column:
            raise ConfigurationError("Expected events of one column of texts, without buckets, edges or a value")
        check_alphabet(message.alphabet)
        _validate.integer(low=1, high=LONGEST, length=message.length)
        return cls(message.table, events, message.alphabet, message.length)

    @property
    def base(self) -> int:
        """Numbers that a character can be, the end of a word included."""
        return len(self.alphabet) + 1

    def numbers(self, texts: npt.NDArray[np.str_]) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """(int64 [n, length], bool [n]): the characters of each text in lower case, and which texts are words."""
        if not len(texts):
            return np.zeros((0, self.length), dtype=np.int64), np.zeros(0, dtype=np.bool_)
        # One character more than the longest word: whoever has it, is none.
        cut = np.char.lower(np.asarray(texts, dtype=np.str_)).astype(f"U{self.length + 1}")
        codes = np.ascontiguousarray(cut).view(np.uint32).reshape(len(cut), self.length + 1)
        character_numbers = np.full(max(map(ord, self.alphabet)) + 2, -1, dtype=np.int64)
        character_numbers[[ord(character) for character in self.alphabet]] = np.arange(1, self.base)
        character_numbers[0] = END
        numbers = character_numbers[np.minimum(codes, len(character_numbers) - 1)]
        ended = np.logical_or.accumulate(numbers == END, axis=1)
        usable = (numbers[:, 0] > END) & (numbers >= END).all(axis=1) & ended[:, -1]
        usable &= ~(ended & (numbers != END)).any(axis=1)
        return numbers[:, : self.length], usable

    def text(self, characters: Sequence[int]) -> str:
        """The text of a word or prefix, up to its end."""
        letters = []
        for character in characters:
            if character == END:
                break
            letters.append(self.alphabet[character - 1])
        return "".join(letters)


def word_seconds(words: WordTerms) -> float:
    """What finding one text among the words takes, as of ``odp.models.computing_cost``."""
    return SORTED_SECONDS + CHARACTER_SECONDS * words.length


def check_alphabet(alphabet: str) -> None:
    """Raises ConfigurationError unless characters are distinct, none of them upper case or a control character."""
    _validate.integer(low=1, high=MOST_CHARACTERS, characters_of_alphabet=len(alphabet))
    if len(set(alphabet)) != len(alphabet) or alphabet != alphabet.lower() or min(map(ord, alphabet)) < 32:
        raise ConfigurationError("Expected alphabet to be distinct characters in lower case, no control characters")


def chosen(user: Int64Array, usable: npt.NDArray[np.bool_], seeds: UInt64Array) -> Int64Array:
    """The row of each user's word, int64 [users]; -1 of a user without words.

    Drawn by a hash of the user's seed and the row's number within the user: the same in every round, and of no other
    user's data.

    Args:
      user: int64 [n], ascending; whose rows these are.
      usable: bool [n], which rows are words.
      seeds: uint64 [users].
    """
    rows = np.flatnonzero(usable)
    owner = user[rows]
    first = np.searchsorted(owner, np.arange(len(seeds)))
    number = np.arange(len(rows)) - first[owner]
    order = np.lexsort((round_hashes(seeds[owner], 0, number), owner))
    chosen_rows: Int64Array = np.full(len(seeds), -1, dtype=np.int64)
    has = np.searchsorted(owner, np.arange(len(seeds)), side="right") > first
    chosen_rows[has] = rows[order[first[has]]]
    return chosen_rows


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
    if (size := int(max(base**first, base * prefixes))) > MAX_SIZE:
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

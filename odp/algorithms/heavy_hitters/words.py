"""Words as numbers: what is a word, and which one a user contributes. The same for a device and a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import round_hashes
from odp.errors import ConfigurationError
from odp.models.computing_cost import SORTED_SECONDS
from odp.models.events_query import EventsTerms
from odp.numerics.arrays import Int64Array, UInt64Array
from odp.v1 import heavy_hitters_pb2

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
        events = EventsTerms.of(message, aggregates=("each",))
        if events is None:
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

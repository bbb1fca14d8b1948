"""Texts of many users, for simulations of tasks that count words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import DataError
from odp.numerics.arrays import Int64Array

_CONSONANTS, _VOWELS = "bcdfghklmnprstvz", "aeiou"


@dataclass(frozen=True, eq=False, repr=False)
class UsersTexts:
    """Texts, one user after the other; treat the arrays as read-only.

    Attributes:
      texts: text [n].
      offsets: int64 [users + 1], from 0 to n, never decreasing; user u has ``texts[offsets[u]:offsets[u + 1]]``.

    Raises:
      DataError: an array has another type or shape.
    """

    texts: npt.NDArray[np.str_]
    offsets: Int64Array

    def __post_init__(self) -> None:
        if self.texts.ndim != 1 or self.texts.dtype.kind != "U":
            raise DataError(f"Expected texts [n] (got {self.texts.dtype} {list(self.texts.shape)})")
        ends = self.offsets
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or ends[-1] != len(self.texts) or (np.diff(ends) < 0).any():
            raise DataError(f"Expected offsets to go from 0 to {len(self.texts)} without decreasing")

    def __repr__(self) -> str:
        """Sizes only: what a person wrote stays out of logs and tracebacks."""
        return f"UsersTexts({self.n_users} users, {len(self.texts)} texts)"

    @property
    def n_users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    @property
    def user_keys(self) -> Int64Array:
        """The number of each user, int64 [n_users]."""
        return np.arange(self.n_users, dtype=np.int64)

    def users(self) -> Int64Array:
        """The user of each text, int64 [n]."""
        return np.repeat(self.user_keys, np.diff(self.offsets))

    def frequencies(self) -> dict[str, int]:
        """How many texts each text has, the most frequent first."""
        distinct, counts = np.unique(self.texts, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return dict(zip(distinct[order].tolist(), counts[order].tolist(), strict=True))


def synthetic_words(*, n_users: int, vocabulary: int = 20_000, exponent: float = 1.0, seed: int = 1) -> UsersTexts:
    """One invented word per user; the word of rank r is drawn with a probability in proportion to r^-exponent.

    Words have 4 to 10 letters, consonants and vowels in turn, and are distinct.

    Raises:
      ConfigurationError: a number is out of range.
    """
    _validate.integer(low=1, high=10**8, n_users=n_users)
    _validate.integer(low=1, high=10**6, vocabulary=vocabulary)
    _validate.within(low=0.0, high=10.0, exponent=exponent)
    generator = np.random.default_rng(seed)
    letters = np.empty((2 * vocabulary + 64, 10), dtype="U1")
    letters[:, ::2] = generator.choice(list(_CONSONANTS), size=(len(letters), 5))
    letters[:, 1::2] = generator.choice(list(_VOWELS), size=(len(letters), 5))
    lengths = generator.integers(4, 11, len(letters))
    letters[np.arange(10) >= lengths[:, None]] = ""
    words = np.array(["".join(row) for row in letters.tolist()])
    _, first = np.unique(words, return_index=True)
    words = words[np.sort(first)][:vocabulary]
    if len(words) < vocabulary:
        raise DataError(f"Expected a vocabulary of {vocabulary} distinct words (got {len(words)}): ask for fewer")
    weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent
    ranks = generator.choice(vocabulary, size=n_users, p=weights / weights.sum())
    return UsersTexts(words[ranks], np.arange(n_users + 1, dtype=np.int64))

"""The four places of a vote. A device's vote follows from two numbers: its stored rows, and those that are usable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.numerics.arrays import Int64Array

#: What each place counts, in the order of a vector.
NO_ROWS, NONE, SOME, ALL = range(4)
SIZE = 4
#: By place: the key in JSON, and what people read.
KEYS = ("no_rows", "none_usable", "some_usable", "all_usable")
WORDS = (
    "have no rows that the task reads",
    "have rows of which none is usable",
    "have rows of which some are usable",
    "have rows of which all are usable",
)


def places_of(stored: npt.ArrayLike, usable: npt.ArrayLike) -> Int64Array:
    """The place of each vote, int64 [users]: of ``stored`` rows of a user, ``usable`` ones can be trained on.

    >>> places_of([0, 3, 3, 3], [0, 0, 2, 3]).tolist()
    [0, 1, 2, 3]
    """
    rows, used = np.asarray(stored, dtype=np.int64), np.asarray(usable, dtype=np.int64)
    return np.select([rows <= 0, used <= 0, used < rows], [NO_ROWS, NONE, SOME], default=ALL).astype(np.int64)

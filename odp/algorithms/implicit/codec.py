"""Layout and integer units of a contribution: little-endian, fixed length, nothing optional.

===========  =======================================================================================================
round        fields
===========  =======================================================================================================
counts       ``items`` uint32 [K]; an unused place holds ``NO_ITEM``
factors      ``row`` int16 [rank], ``items`` uint32 [K], ``weights`` uint16 [K]; weight 0 is padding
===========  =======================================================================================================

Units: row_clip / 2^11 and sqrt(K) / 2^10 (rows, weights). Every target is 1, so none travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from odp.algorithms.factorization.codec import NO_ITEM, Contributions, decoded, payloads_of
from odp.algorithms.implicit.terms import COUNTS_ROUND, Terms


def layout(terms: Terms, round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    places = (terms.max_items,)
    if round == COUNTS_ROUND:
        return np.dtype([("items", "<u4", places)])
    return np.dtype([("row", "<i2", (terms.rank,)), ("items", "<u4", places), ("weights", "<u2", places)])


def encode(terms: Terms, round: int, contributions: Contributions) -> list[bytes]:
    """One payload per user."""
    record = np.zeros(len(contributions.items), dtype=layout(terms, round))
    record["items"] = np.where(contributions.weights > 0, contributions.items, NO_ITEM)
    if round != COUNTS_ROUND:
        record["row"] = contributions.rows
        record["weights"] = contributions.weights
    return payloads_of(record)


def empty_payload(terms: Terms, round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.max_items), dtype=np.int64)
    (payload,) = encode(terms, round, Contributions(np.zeros((1, terms.rank), dtype=np.int64), places, places))
    return payload


def decode(terms: Terms, round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    return decoded(layout(terms, round), payloads)[1]

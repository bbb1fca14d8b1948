"""Layout and integer units of a contribution: little-endian, fixed length, nothing optional.

===========  =======================================================================================================
round        fields
===========  =======================================================================================================
masses       ``items`` uint32 [K], ``targets`` int16 [K]; an unused place holds ``NO_ITEM``
gradients    ``row`` int16 [1 + rank], then as masses
===========  =======================================================================================================

A gradient is the outer product of targets and row, and its norm the product of theirs. The row's is 1, in units of
2^-14; that of the targets is at most the round's bound, in units of bound / 2^14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.factorization import codec
from odp.algorithms.factorization.codec import NO_ITEM
from odp.algorithms.item_gradients.terms import Terms

UNITS = 2**14
#: Largest sum of squares of a row, and of targets.
LIMIT = UNITS**2


def layout(terms: Terms, round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    places = (terms.model.max_items,)
    fields: list[Any] = [("items", "<u4", places), ("targets", "<i2", places)]
    if width := terms.width_of(round):
        fields.insert(0, ("row", "<i2", (width,)))
    return np.dtype(fields)


def encode(terms: Terms, round: int, contributions: Contributions) -> list[bytes]:
    """One payload per user."""
    record = np.zeros(len(contributions.items), dtype=layout(terms, round))
    used = contributions.weights > 0
    record["items"] = np.where(used, contributions.items, NO_ITEM)
    record["targets"] = np.where(used, contributions.targets, 0)
    if terms.width_of(round):
        record["row"] = contributions.rows
    return codec.payloads_of(record)


def empty_payload(terms: Terms, round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.model.max_items), dtype=np.int64)
    rows = np.zeros((1, terms.width_of(round)), dtype=np.int64)
    (payload,) = encode(terms, round, Contributions(rows, places, places, places))
    return payload


def decode(terms: Terms, round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    record, common = codec.decoded(layout(terms, round), payloads)
    return Contributions(common.rows, common.items, common.weights, record["targets"].astype(np.int64))

"""Layout and integer units of a contribution: little-endian, fixed length, nothing optional.

===========  =======================================================================================================
round        fields
===========  =======================================================================================================
masses       ``items`` uint32 [K], ``targets`` int16 [K]; an unused place holds ``NO_ITEM``
gradients    ``row`` int16 [d], ``whole`` int16 [e] unless e is 0, then as masses
===========  =======================================================================================================

A gradient is the outer product of targets and row, and its norm the product of theirs. The row's is 1, in units of
2^-14; that of the targets is at most the round's bound, in units of bound / 2^14. ``whole`` is a user's row with all
its numbers; its outer product has the square of its norm, at most G, and it is in units of sqrt(G) / 2^14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odp.algorithms.dpam import codec as of_ratings
from odp.algorithms.factorization import codec
from odp.algorithms.factorization.codec import NO_ITEM
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.item_gradients.terms import Terms
from odp.numerics.arrays import Int64Array

UNITS = 2**14
#: Largest sum of squares of a row, of targets, and of a whole row.
LIMIT = UNITS**2


@dataclass(frozen=True)
class Contributions(of_ratings.Contributions):
    """Contributions of n users with their whole rows int64 [n, e]; weight 1 marks a used place."""

    whole: Int64Array


def layout(terms: Terms[CommonTerms], round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    places = (terms.model.max_items,)
    rows = zip(("row", "whole"), terms.widths_of(round), strict=True)
    fields: list[Any] = [(name, "<i2", (width,)) for name, width in rows if width]
    return np.dtype([*fields, ("items", "<u4", places), ("targets", "<i2", places)])


def encode(terms: Terms[CommonTerms], round: int, contributions: Contributions) -> list[bytes]:
    """One payload per user."""
    record = np.zeros(len(contributions.items), dtype=layout(terms, round))
    used = contributions.weights > 0
    record["items"] = np.where(used, contributions.items, NO_ITEM)
    record["targets"] = np.where(used, contributions.targets, 0)
    for name, rows in (("row", contributions.rows), ("whole", contributions.whole)):
        if rows.shape[1]:
            record[name] = rows
    return codec.payloads_of(record)


def empty_payload(terms: Terms[CommonTerms], round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.model.max_items), dtype=np.int64)
    row, whole = (np.zeros((1, width), dtype=np.int64) for width in terms.widths_of(round))
    (payload,) = encode(terms, round, Contributions(row, places, places, places, whole))
    return payload


def decode(terms: Terms[CommonTerms], round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    record, common = codec.decoded(layout(terms, round), payloads)
    none = np.zeros((len(record), 0), dtype=np.int64)
    whole = record["whole"].astype(np.int64) if terms.widths_of(round)[1] else none
    return Contributions(common.rows, common.items, common.weights, record["targets"].astype(np.int64), whole)

"""Layout and integer units of a contribution: little-endian, fixed length, nothing optional.

===========  =======================================================================================================
round        fields
===========  =======================================================================================================
counts       ``items`` uint32 [K]; an unused place holds ``NO_ITEM``
biases       ``items`` uint32 [K], ``weights`` uint16 [K], ``targets`` int16 [K]; weight 0 is padding
factors      ``row`` int16 [rank], then as biases
===========  =======================================================================================================

Units: bound of the full row / 2^11, sqrt(K) / 2^10, target clip / 2^9 (rows, weights, targets). The full row is
(1, row): its constant is the same for everyone, so it does not travel; the enclave puts it in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odp.algorithms.dpam.terms import COUNTS_ROUND, Terms
from odp.algorithms.factorization import codec
from odp.algorithms.factorization.codec import NO_ITEM, ROW_UNITS, WEIGHT_UNITS
from odp.numerics.arrays import Int64Array

TARGET_UNITS = 2**9


@dataclass(frozen=True)
class Contributions(codec.Contributions):
    """Contributions of n users with their targets int64 [n, K], which are zero in the round of counts."""

    targets: Int64Array


def layout(terms: Terms, round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    places = (terms.max_items,)
    if round == COUNTS_ROUND:
        return np.dtype([("items", "<u4", places)])
    fields: list[Any] = [("items", "<u4", places), ("weights", "<u2", places), ("targets", "<i2", places)]
    if rank := terms.rank_of(round):
        fields.insert(0, ("row", "<i2", (rank,)))
    return np.dtype(fields)


def constant_units(terms: Terms) -> int:
    """The constant coordinate of a full row in integer units: close to 1, and exactly this for enclave and server."""
    return round(ROW_UNITS / terms.full_row_bound)


def row_limit(terms: Terms) -> int:
    """Largest sum of squares of a row in integer units: what the constant leaves of 2^22."""
    return ROW_UNITS**2 - constant_units(terms) ** 2


def vector_limit(terms: Terms, round: int) -> int:
    """Largest sum of (weight target)^2 of one user in integer units: what the round's vector clip allows of 2^38."""
    ratio = terms.vector_clip(round) / terms.target_clip(round)
    return math.floor(ratio * ratio * (WEIGHT_UNITS * TARGET_UNITS) ** 2)


def constant(terms: Terms) -> float:
    """The constant coordinate of a full row in data units."""
    return constant_units(terms) * terms.full_row_bound / ROW_UNITS


def encode(terms: Terms, round: int, contributions: Contributions) -> list[bytes]:
    """One payload per user."""
    record = np.zeros(len(contributions.items), dtype=layout(terms, round))
    used = contributions.weights > 0
    record["items"] = np.where(used, contributions.items, NO_ITEM)
    if round != COUNTS_ROUND:
        record["weights"] = contributions.weights
        record["targets"] = np.where(used, contributions.targets, 0)
        if terms.rank_of(round):
            record["row"] = contributions.rows
    return codec.payloads_of(record)


def empty_payload(terms: Terms, round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.max_items), dtype=np.int64)
    rows = np.zeros((1, terms.rank_of(round)), dtype=np.int64)
    (payload,) = encode(terms, round, Contributions(rows, places, places, places))
    return payload


def decode(terms: Terms, round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    record, common = codec.decoded(layout(terms, round), payloads)
    targets = np.zeros_like(common.items) if round == COUNTS_ROUND else record["targets"].astype(np.int64)
    return Contributions(common.rows, common.items, common.weights, targets)

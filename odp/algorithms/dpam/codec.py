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
import numpy.typing as npt

from odp.algorithms.dpam.terms import COUNTS_ROUND, Terms

NO_ITEM = 2**32 - 1

ROW_UNITS = 2**11
WEIGHT_UNITS = 2**10
TARGET_UNITS = 2**9

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contributions:
    """Contributions of n users in integer units, all int64: rows [n, rank], items, weights and targets [n, K].

    In the round of counts, weight 1 marks a used place and targets are zero.
    """

    rows: Int64Array
    items: Int64Array
    weights: Int64Array
    targets: Int64Array


def layout(terms: Terms, round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    places = (terms.max_items,)
    if round == COUNTS_ROUND:
        return np.dtype([("items", "<u4", places)])
    fields: list[Any] = [("items", "<u4", places), ("weights", "<u2", places), ("targets", "<i2", places)]
    rank = terms.rank_of(round)
    if rank:
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


def no_contributions(terms: Terms, round: int) -> Contributions:
    """What one user without data sends."""
    unused = np.zeros((1, terms.max_items), dtype=np.int64)
    return Contributions(np.zeros((1, terms.rank_of(round)), dtype=np.int64), unused, unused, unused)


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
    size = record.dtype.itemsize
    data = record.tobytes()
    return [data[start : start + size] for start in range(0, len(data), size)]


def empty_payload(terms: Terms, round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.max_items), dtype=np.int64)
    rows = np.zeros((1, terms.rank_of(round)), dtype=np.int64)
    (payload,) = encode(terms, round, Contributions(rows, places, places, places))
    return payload


def decode(terms: Terms, round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    record = np.frombuffer(b"".join(payloads), dtype=layout(terms, round))
    items = record["items"].astype(np.int64)
    rank = terms.rank_of(round)
    rows = record["row"].astype(np.int64) if rank else np.zeros((len(record), 0), dtype=np.int64)
    if round == COUNTS_ROUND:
        return Contributions(rows, items, (items != NO_ITEM).astype(np.int64), np.zeros_like(items))
    return Contributions(rows, items, record["weights"].astype(np.int64), record["targets"].astype(np.int64))

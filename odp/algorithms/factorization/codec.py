"""Integer units and layout that contributions to a factorization share: little-endian, fixed length, nothing optional.

A record of numpy has ``items`` uint32 [K] (an unused place holds ``NO_ITEM``), outside of the round of counts
``weights`` uint16 [K] (0 is padding), and what else the training sends. Units: bound of a row / 2^11, sqrt(K) / 2^10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from odp.numerics.arrays import Float64Array, Int64Array

NO_ITEM = 2**32 - 1

ROW_UNITS = 2**11
WEIGHT_UNITS = 2**10

# A weight that equals an integer in exact arithmetic must not fall below it by rounding. The added amount cannot lift a
# sum of squares over 2^20: it adds at most 2 * 1e-6 * sum(w) < 0.2 for 4,096 places.
_GUARD = 1e-6
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class Contributions:
    """Contributions of n users in integer units, int64: rows [n, rank], items and weights [n, K].

    In the round of counts, weight 1 marks a used place and rows have no columns.
    """

    rows: Int64Array
    items: Int64Array
    weights: Int64Array


def payloads_of(record: npt.NDArray[Any]) -> list[bytes]:
    """The bytes of each entry of a record [n]."""
    size, data = record.dtype.itemsize, record.tobytes()
    return [data[start : start + size] for start in range(0, len(data), size)]


def decoded(layout: np.dtype[Any], payloads: Sequence[bytes]) -> tuple[npt.NDArray[Any], Contributions]:
    """(the records, what all trainings have of them) of payloads of the layout's length; checks nothing else."""
    record = np.frombuffer(b"".join(payloads), dtype=layout)
    names = layout.names or ()
    items = record["items"].astype(np.int64)
    rows = record["row"].astype(np.int64) if "row" in names else np.zeros((len(record), 0), dtype=np.int64)
    weights = record["weights"] if "weights" in names else items != NO_ITEM
    return record, Contributions(rows, items, weights.astype(np.int64))


def shortened(units: Float64Array, limit: int) -> Int64Array:
    """``units`` [n, d] rounded to integers whose squares sum to at most ``limit`` per row, scaled down where needed.

    Rounding may lift a sum above the limit; such a row is scaled again and truncated toward zero (rule P17).
    """
    norm = np.linalg.norm(units, axis=1, keepdims=True)
    scaled = units * np.minimum(1.0, np.sqrt(limit) / np.maximum(norm, 1.0))
    integers = np.rint(scaled).astype(np.int64)
    squares = (integers * integers).sum(axis=1, keepdims=True)
    shrunk = np.trunc(integers * np.sqrt(limit / np.maximum(squares, 1))).astype(np.int64)
    return np.asarray(np.where(squares > limit, shrunk, integers))


def uniform_weights(used: npt.NDArray[np.bool_], max_items: int) -> Int64Array:
    """1 for each used place [n, k], in units of sqrt(max_items) / 2^10."""
    return np.where(used, int(WEIGHT_UNITS / np.sqrt(max_items) + _GUARD), 0).astype(np.int64)


def adaptive_weights(raw: Float64Array) -> Int64Array:
    """Weights in proportion to ``raw`` >= 0 [n, k], whose squares sum to 2^20 per user, rounded down."""
    norm = np.sqrt((raw * raw).sum(axis=1, keepdims=True))
    scaled = raw * (WEIGHT_UNITS / np.where(norm > 0, norm, 1.0))
    return np.floor(scaled + _GUARD).astype(np.int64)


def fit(array: npt.NDArray[_Scalar], width: int) -> npt.NDArray[_Scalar]:
    """Cut or zero-padded to ``width`` columns."""
    fitted = np.zeros((len(array), width), dtype=array.dtype)
    columns = min(width, array.shape[1])
    fitted[:, :columns] = array[:, :columns]
    return fitted

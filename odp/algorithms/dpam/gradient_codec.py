"""Layout and integer units of a contribution to gradient steps: little-endian, fixed length, nothing optional.

=========  =========================================================================================================
round      fields
=========  =========================================================================================================
masses     ``items`` uint32 [K], ``weights`` uint16 [K]; weight 0 is padding
gradients  ``items`` uint32 [K], ``gradients`` int16 [K, learned], ``moments`` int16 [p]; an unused place holds
           ``NO_ITEM`` and zeros
=========  =========================================================================================================

Units: sqrt(K) / 2^10 (weights), clip / (2^15 - 1) (gradients), ``MOMENTS_CLIP`` / (2^15 - 1) (moments). p is the
packed upper triangle of the learned numbers, one residual variance, and one square per derived factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam.terms import COUNTS_ROUND, DERIVED_FACTORS, Terms
from odp.algorithms.factorization import codec
from odp.algorithms.factorization.codec import NO_ITEM
from odp.numerics.arrays import Float64Array, Int64Array

#: Steps from 0 to a bound, of a user's whole gradient and of its moments.
UNITS = 2**15 - 1
#: Steps of the sum of devices with data, for each of them: a grid far finer than the noise.
DEVICE_UNITS = 2**10
#: L2 bound of a user's moments.
MOMENTS_CLIP = 2.5


def clip(terms: Terms) -> float:
    """L2 bound of a user's gradient, in units of the public standard deviation of a rating."""
    return terms.factor_vector_clip / math.sqrt(terms.residual_variance)


def curvature_unit(terms: Terms) -> float:
    """What the second moments of rows are in units of, beside sqrt(learned): with it they are about 1, at any clip."""
    return 2.0 * clip(terms)


def moments_of(terms: Terms) -> int:
    """How many moments a user sends."""
    return terms.learned_pairs + 1 + DERIVED_FACTORS


@dataclass(frozen=True)
class Contributions(codec.Contributions):
    """Contributions of n users: gradients int16 [n, K, learned] and moments int16 [n, p], without columns for masses.

    In a round of gradients, weight 1 marks a used place.
    """

    gradients: npt.NDArray[np.int16]
    moments: npt.NDArray[np.int16]


def layout(terms: Terms, round: int) -> np.dtype[Any]:
    """The numpy record of one payload; its ``itemsize`` is the payload's length in bytes."""
    items = ("items", "<u4", (terms.max_items,))
    if round == COUNTS_ROUND:
        return np.dtype([items, ("weights", "<u2", (terms.max_items,))])
    gradients = ("gradients", "<i2", (terms.max_items, terms.learned))
    return np.dtype([items, gradients, ("moments", "<i2", (moments_of(terms),))])


def encode(terms: Terms, round: int, contributions: Contributions) -> list[bytes]:
    """One payload per user."""
    record = np.zeros(len(contributions.items), dtype=layout(terms, round))
    used = contributions.weights > 0
    record["items"] = np.where(used, contributions.items, NO_ITEM)
    if round == COUNTS_ROUND:
        record["weights"] = contributions.weights
    else:
        record["gradients"] = np.where(used[:, :, None], contributions.gradients, 0)
        record["moments"] = contributions.moments
    return codec.payloads_of(record)


def empty_payload(terms: Terms, round: int) -> bytes:
    """The payload of a device without data: it uses no place, and adds zero to every sum."""
    places = np.zeros((1, terms.max_items), dtype=np.int64)
    gradients = np.zeros((1, terms.max_items, terms.learned), dtype=np.int16)
    moments = np.zeros((1, moments_of(terms)), dtype=np.int16)
    (payload,) = encode(terms, round, Contributions(places[:, :0], places, places, gradients, moments))
    return payload


def decode(terms: Terms, round: int, payloads: Sequence[bytes]) -> Contributions:
    """The inverse of :func:`encode`, for payloads of the right length; checks nothing else."""
    record, common = codec.decoded(layout(terms, round), payloads)
    if round == COUNTS_ROUND:
        size = len(payloads)
        none = np.zeros((size, terms.max_items, 0), dtype=np.int16), np.zeros((size, 0), dtype=np.int16)
    else:
        none = record["gradients"], record["moments"]
    return Contributions(common.rows, common.items, common.weights, *none)


def quantised(vectors: Float64Array, clip: float) -> npt.NDArray[np.int16]:
    """Vectors [n, ...] as integers whose squares sum to at most ``UNITS`` squared per user: longer ones shortened.

    Rounded toward zero, so that no sum of squares grows (rule P17).
    """
    flat = vectors.reshape(len(vectors), -1)
    norm = np.sqrt((flat * flat).sum(axis=1))
    scale = UNITS / np.maximum(norm, clip)
    return np.asarray(np.trunc(vectors * scale.reshape(-1, *[1] * (vectors.ndim - 1)))).astype(np.int16)


def lengths(vectors: npt.NDArray[np.int16]) -> Int64Array:
    """The sum of squares of each user's integers [n, ...]."""
    flat = vectors.reshape(len(vectors), -1)
    return np.asarray(np.einsum("nk,nk->n", flat, flat, dtype=np.int64))

"""Candidates for inference: the released item rows in clusters, published as two public tables.

A device that wants recommendations need not download every item. It scores the clusters' centroids, which it has whole,
against its own data, fetches the buckets of the best ones by private lookup, a fixed number, and scores what is in
them. Clusters are made of released rows, so that they cost no privacy.

Both tables carry the id of the model that they were made of: rows of different versions do not belong together.

=====================  ==========================================================================================
table                  row
=====================  ==========================================================================================
``<task>.centroids``   model's id (16 numbers of 16 bits), mean of the cluster's item rows
``<task>.buckets``     model's id, then ``bucket`` records: item (-1: none), its row
=====================  ==========================================================================================

Source: inverted-file search, Jegou, Douze and Schmid 2011; k-means by Lloyd 1982.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion
from odp.signed.tables.table import Table

#: Numbers that a model's id takes at the front of a row.
STAMP = 16

_NO_ITEM = -1.0
_MOST_ITEMS = 2.0**31
_ITERATIONS = 20
_AT_ONCE = 2**24  # distances held in memory
_ROOM = 1.25  # places over items
_LARGEST_WIDTH = 2**16


@dataclass(frozen=True)
class Candidates:
    """The two tables, published under the task's name."""

    centroids: Table
    buckets: Table


def table_names(task: str) -> tuple[str, str]:
    """Names of the tables of centroids and of buckets."""
    return f"{task}.centroids", f"{task}.buckets"


def stamp_of(model_sha256: bytes) -> Float32Array:
    """A model's id as float32 [16], each exact."""
    return np.frombuffer(model_sha256, dtype="<u2").astype(np.float32)


def candidate_tables(
    task: str,
    broadcast: ModelVersion,
    model_sha256: bytes,
    *,
    clusters: int | None = None,
    buckets_per_request: int = 8,
    seed: int = 0,
) -> Candidates:
    """Clusters the item rows of a released model.

    Args:
      task: the task's name.
      broadcast: the model; its keyed table's first column is a popularity and does not count for nearness.
      model_sha256: the model's id.
      clusters: their number; None is the square root of the items.
      buckets_per_request: how many buckets a device fetches.
      seed: of the first centroids.

    Raises:
      ConfigurationError: a number is out of range, or a bucket would be too wide: take more clusters.
    """
    rows = broadcast.keyed.rows
    items, width = rows.shape
    count = max(1, math.isqrt(items)) if clusters is None else clusters
    _validate.integer(low=1, high=items, clusters=count)
    _validate.integer(low=1, high=count, buckets_per_request=buckets_per_request)
    bucket = min(items, math.ceil(_ROOM * items / count))
    if STAMP + bucket * (1 + width) > _LARGEST_WIDTH:
        raise ConfigurationError(f"Expected clusters={count} to be more: a bucket of {bucket} items is too wide")
    near = rows[:, 1:].astype(np.float64) if width > 1 else rows.astype(np.float64)
    assigned = balanced(near, centroids_of(near, count, seed=seed), most=bucket)
    order = np.argsort(assigned, kind="stable")
    sizes = np.bincount(assigned, minlength=count)
    place = np.arange(items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    records = np.zeros((count, bucket, 1 + width), dtype=np.float32)
    records[:, :, 0] = _NO_ITEM
    records[assigned[order], place, 0] = order
    records[assigned[order], place, 1:] = rows[order]
    means = np.zeros((count, width))
    np.add.at(means, assigned, rows)
    means /= np.maximum(sizes, 1)[:, None]
    stamps = np.tile(stamp_of(model_sha256), (count, 1))
    centroids, buckets = table_names(task)
    return Candidates(
        Table(centroids, np.concatenate([stamps, means], axis=1)),
        Table(
            buckets,
            np.concatenate([stamps, records.reshape(count, -1)], axis=1),
            rows_per_request=buckets_per_request,
        ),
    )


def opened_buckets(rows: Float32Array, width: int) -> tuple[Int64Array, Float32Array]:
    """(items int64 [n], their rows float32 [n, width]) of the buckets ``rows``, without the empty places.

    Which buckets a device has follows from its data, so what nobody writes into one is left out: a number that is no
    item, and an item's second row.

    Raises:
      ConfigurationError: the table is not of the width that ``candidate_tables`` gives it.
    """
    records = rows[:, STAMP:]
    if records.shape[1] % (1 + width):
        raise ConfigurationError("the buckets hold rows of another width than the model's")
    records = records.reshape(-1, 1 + width)
    numbers = records[:, 0]
    records = records[(numbers >= 0) & (numbers < _MOST_ITEMS) & (np.floor(numbers) == numbers)]
    items, first = np.unique(records[:, 0].astype(np.int64), return_index=True)
    return items, np.ascontiguousarray(records[first, 1:])


def centroids_of(points: Float64Array, count: int, *, seed: int) -> Float64Array:
    """Centroids float64 [count, d] of ``points`` [n, d] by Lloyd's iterations from ``count`` of the points.

    The start is a function of ``seed``; a centroid that loses all its points moves to the point that is worst served.
    """
    centroids = points[_spread(len(points), count, seed)].copy()
    for _ in range(_ITERATIONS):
        nearest, distance = _nearest(points, centroids)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, points)
        moved = sums / np.maximum(sizes, 1)[:, None]
        empty = np.flatnonzero(sizes == 0)
        moved[empty] = points[np.argsort(-distance, kind="stable")[: len(empty)]]
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids


def balanced(points: Float64Array, centroids: Float64Array, *, most: int) -> Int64Array:
    """Cluster int64 [n] of each point: the nearest that has room, at most ``most`` points each, nearer points first.

    Raises:
      ConfigurationError: the clusters have no room for all points.
    """
    count = len(centroids)
    if most * count < len(points):
        raise ConfigurationError(f"Expected room for {len(points)} points, got {most * count}")
    assigned = np.full(len(points), -1, dtype=np.int64)
    left = np.full(count, most, dtype=np.int64)
    while (waiting := np.flatnonzero(assigned < 0)).size:
        open_clusters = np.flatnonzero(left > 0)
        nearest, distance = _nearest(points[waiting], centroids[open_clusters])
        wanted = open_clusters[nearest]
        order = np.lexsort((distance, wanted))
        sizes = np.bincount(wanted, minlength=count)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        taken = order[rank < left[wanted[order]]]
        assigned[waiting[taken]] = wanted[taken]
        left -= np.bincount(wanted[taken], minlength=count)
    return assigned


def _nearest(points: Float64Array, centroids: Float64Array) -> tuple[Int64Array, Float64Array]:
    """(nearest centroid int64 [n], squared distance float64 [n])."""
    nearest = np.empty(len(points), dtype=np.int64)
    distance = np.empty(len(points))
    squares = (centroids**2).sum(axis=1)
    step = max(1, _AT_ONCE // len(centroids))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        distances = squares - 2.0 * (part @ centroids.T)  # [part, count]
        nearest[start : start + step] = distances.argmin(axis=1)
        distance[start : start + step] = distances.min(axis=1) + (part**2).sum(axis=1)
    return nearest, np.maximum(distance, 0.0)


def _spread(items: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """``count`` distinct numbers below ``items``, a function of ``seed``: multiples of a step that is prime to it."""
    step = max(1, int(items * 0.6180339887498949)) + seed
    while math.gcd(step, items) != 1:
        step += 1
    return (np.arange(count, dtype=np.int64) * step + seed) % items

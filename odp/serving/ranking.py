"""Recommendations out of an index: a scan of all items, then the model's own prediction of the best few hundred.

The scan ranks by the linear part of a prediction, on rows of int8. What it finds is predicted as a device predicts with
the whole model, with every part that the model has (for ratings: the smooth part of a person's taste), on decoded rows.

The best items of a catalogue by a pass over all of it, in exact arithmetic.

The person's row is rounded to whole steps as well, as fine as float32 can add exactly: a product of it with a row of
int8 has at most 24 bits, whatever the order of its sums. So every machine, BLAS and number of threads gives the same
scores, and equal scores rank by item number.

    score = float32(float32(steps . row) * scale * unit) + bias

Blocks of int8 become float32 where the cache holds them, and BLAS multiplies them. Whoever has a block's scores keeps
those that are better than the k-th so far, which are few after the first blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError

from odp import _validate
from odp.algorithms.capabilities import Served, ServedClient
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, DataError
from odp.models.item_files import IndexColumns
from odp.numerics import parallel
from odp.numerics.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion, Slices
from odp.serving.index_file import made
from odp.serving.item_index import (
    STEPS,
    Int8Array,
    ItemIndex,
    ItemKeys,
    UInt16Array,
    UInt32Array,
    bias_values,
    packed,
    scale_values,
)
from odp.signed.task import open_task
from odp.v1 import common_pb2

#: Whole numbers up to this are exact as float32.
_EXACT = 2**24
_FURTHEST = 2.0**40  # of a person's row from 0: scores are then finite
_NEAREST = 2.0**-80  # smaller units would be subnormal as float32
_PRODUCT = 2**11  # rows that become float32 at a time
_BLOCK = 2**15  # scores that are looked at together
_FEWEST = 2**17  # items that are worth another thread


@dataclass(frozen=True)
class Best:
    """``items`` int64 [n], best first, and their ``scores`` float32 [n]."""

    items: Int64Array = field(repr=False)
    scores: Float32Array = field(repr=False)


@dataclass(frozen=True)
class PersonRow:
    """A person's row in whole steps, float32 [r], and what a step is worth."""

    steps: Float32Array = field(repr=False)
    unit: np.float32 = field(repr=False)


def person_row(vector: Float64Array) -> PersonRow:
    """``vector`` float64 [r] in steps.

    Numbers that are not finite count as 0, those beyond 2^40 as that, and a vector within 2^-80 of 0 as 0.
    """
    usable = np.clip(np.where(np.isfinite(vector), vector, 0.0), -_FURTHEST, _FURTHEST)
    largest = float(np.abs(usable).max(initial=0.0))
    most = _EXACT // (STEPS * max(1, len(vector)))
    unit = np.float32(largest / most)
    if largest < _NEAREST:
        return PersonRow(np.zeros(len(vector), dtype=np.float32), np.float32(0))
    steps = np.clip(np.rint(usable / np.float64(unit)), -most, most)
    return PersonRow(steps.astype(np.float32), unit)


def best(
    index: ItemIndex,
    vector: Float64Array,
    k: int,
    *,
    excluded: Int64Array | None = None,
    candidates: Int64Array | None = None,
    threads: int | None = 1,
) -> Best:
    """The ``k`` items with the highest scores, fewer where there are fewer; equal scores rank by item number.

    Args:
      index: the catalogue.
      vector: the person's row float64 [r].
      k: how many, at least 1.
      excluded: items that are left out, int64, in any order; those that the index lacks count for nothing.
      candidates: the items that are looked at, int64, in any order; by default all. Those that the index lacks are
        left out.
      threads: that share the work; None is the number of processors.

    Raises:
      ConfigurationError: ``k`` is not positive, or the vector has another rank than the index.
    """
    _validate.integer(low=1, high=2**31, k=k)
    if np.shape(vector) != (index.rank,):
        raise ConfigurationError(f"Expected a row of {index.rank} numbers, as the index (got {list(np.shape(vector))})")
    row = person_row(vector)
    without = np.unique(np.asarray([] if excluded is None else excluded, dtype=np.int64))
    if candidates is not None:
        items = np.setdiff1d(candidates, without)
        items = items[(items >= 0) & (items < len(index))]
        scores = np.empty(len(items), dtype=np.float32)
        with parallel.one_blas_thread():
            _fill(row, index.steps[items], index.scales[items], index.biases[items], scores)
        return _ranked(*_largest(items, scores, k))
    parts = min(parallel.processors(threads), max(1, len(index) // _FEWEST))
    edges = [len(index) * part // parts for part in range(parts + 1)]

    def scan(part: int) -> tuple[Int64Array, Float32Array]:
        return _best_between(index, row, k, without, edges[part], edges[part + 1])

    with parallel.one_blas_thread():
        parts_best = parallel.each(scan, range(parts), threads=parts)
    return _ranked(*_merged(parts_best, k))


def _best_between(
    index: ItemIndex, row: PersonRow, k: int, without: Int64Array, first: int, end: int
) -> tuple[Int64Array, Float32Array]:
    """(items int64 ascending, their scores) of the best of a range."""
    items, scores = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    block, least = np.empty(min(_BLOCK, end - first), dtype=np.float32), -np.inf
    for start in range(first, end, _BLOCK):
        here = slice(start, min(start + _BLOCK, end))
        some = block[: here.stop - start]
        _fill(row, index.steps[here], index.scales[here], index.biases[here], some)
        # An item that is as good as the k-th so far has a larger number than that one.
        better = np.flatnonzero(some > least)
        if not better.size:
            continue
        new = better + start
        excluded = _among(new, without)
        items, scores = _largest(
            np.concatenate((items, new[~excluded])), np.concatenate((scores, some[better[~excluded]])), k
        )
        least = scores.min() if len(scores) == k else -np.inf
    return items, scores


def _fill(row: PersonRow, steps: Int8Array, scales: UInt16Array, biases: UInt32Array, out: Float32Array) -> None:
    """Writes the scores of items into ``out``."""
    buffer = np.empty((min(_PRODUCT, len(steps)), steps.shape[1]), dtype=np.float32)
    for start in range(0, len(steps), _PRODUCT):
        block = steps[start : start + _PRODUCT]
        wide = buffer[: len(block)]
        np.copyto(wide, block)
        np.dot(wide, row.steps, out=out[start : start + _PRODUCT])
    out *= scale_values(scales)
    out *= row.unit
    out += bias_values(biases)


def _among(items: Int64Array, sorted_items: Int64Array) -> BoolArray:
    if not len(sorted_items):
        return np.zeros(len(items), dtype=np.bool_)
    return np.asarray(sorted_items[np.minimum(np.searchsorted(sorted_items, items), len(sorted_items) - 1)] == items)


def _largest(items: Int64Array, scores: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """The best k of items that ascend, in that order."""
    if len(items) <= k:
        return items, scores
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    chosen = scores > least
    chosen[np.flatnonzero(scores == least)[: k - int(chosen.sum())]] = True
    return items[chosen], scores[chosen]


def _merged(parts: Sequence[tuple[Int64Array, Float32Array]], k: int) -> tuple[Int64Array, Float32Array]:
    items, scores = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return _largest(items, scores, k)


def _ranked(items: Int64Array, scores: Float32Array) -> Best:
    order = np.argsort(-scores, kind="stable")
    return Best(items[order], scores[order])


#: Items that are predicted after the scan, at least.
RERANKED = 400


@dataclass(frozen=True)
class Ranked:
    """``items`` int64 [n], best first, and ``scores`` float64 [n], their predicted values as people see them."""

    items: Int64Array = field(repr=False)
    scores: Float64Array = field(repr=False)


@dataclass(frozen=True, repr=False)
class IndexedModel:
    """An index whose task was checked: signature, data, rank, items and tables fit together."""

    index: ItemIndex
    definition: common_pb2.TaskDefinition
    algorithm: Served
    client: ServedClient

    @classmethod
    def of(cls, index: ItemIndex) -> IndexedModel:
        """The model of an index.

        Raises:
          DataError: the task is not what its developer signed, or rank, items or tables are not the task's.
        """
        try:
            definition = _definition(index.task)
            algorithm = recommender_for(definition)
            algorithm.check_for_devices()
            client = algorithm.client()
            if not (isinstance(algorithm, Served) and isinstance(client, ServedClient)):
                raise ConfigurationError("its items cannot be scanned")
            declared = {table.name: (table.rows, table.width) for table in algorithm.tables if not table.keyed}
            if {name: rows.shape for name, rows in index.tables.items()} != declared:
                raise ConfigurationError("its dense tables are not those of its task")
            client.check_model(index.tables)
        except (ConfigurationError, SignatureError, DecodeError) as error:
            raise DataError(f"index {index.sha256[:12]}: {error}") from error
        rank, items = algorithm.index_rank, definition.model.items
        if (index.rank, len(index)) != (rank, items):
            raise DataError(
                f"index {index.sha256[:12]}: it has {len(index)} items of rank {index.rank}, and task "
                f"{definition.name!r} has {items} of rank {rank}"
            )
        return cls(index, definition, algorithm, client)

    def __repr__(self) -> str:
        return f"IndexedModel({self.definition.name!r}, {self.index!r})"

    def slices(self, items: Int64Array) -> Slices:
        """Decoded rows of items that the index has, in the form of rows that were fetched by key."""
        keys = np.unique(items)
        rows = self.algorithm.index_rows(self.index.columns(keys))
        return Slices(self.index.version, keys, rows, self.index.tables)

    def recommend(
        self,
        data: LocalData,
        *,
        k: int = 10,
        candidates: Sequence[int] | Int64Array | None = None,
        threads: int | None = 1,
    ) -> Ranked:
        """The ``k`` items with the highest predictions that the person does not have; fewer if fewer are left.

        Args:
          data: the person's own, as the task's algorithm reads it.
          k: how many.
          candidates: numbers of the items to choose from; by default all. Those that the index lacks are left out.
          threads: of the scan; None is the number of processors.

        Raises:
          ConfigurationError: ``k`` is not positive.
        """
        _validate.integer(low=1, high=2**31, k=k)
        own_items = self.client.items(data)
        own_items = own_items[(own_items >= 0) & (own_items < len(self.index))]
        limited = None if candidates is None else np.asarray(candidates, dtype=np.int64)
        vector = self.client.linear(self.slices(own_items), data)
        best_items = best(
            self.index, vector, max(k, RERANKED), excluded=own_items, candidates=limited, threads=threads
        ).items
        # Equal predictions rank by item number.
        best_items = np.sort(best_items)
        scores = self.client.predict(self.slices(np.concatenate((own_items, best_items))), data, best_items)
        order = np.argsort(-scores, kind="stable")[:k]
        return Ranked(best_items[order], self.client.on_scale(scores[order]))


def index_of_model(
    task: common_pb2.SignedTask, model: ModelVersion, keys: Sequence[str], facts: dict[str, str]
) -> ItemIndex:
    """The index of a released model.

    Args:
      task: signed; without a signature for a simulation.
      model: the whole model.
      keys: of its items, in the order of their numbers.
      facts: name -> text, as of ``odp.items.ItemTable``.

    Raises:
      ConfigurationError: the task's items cannot be served so, or keys are empty or stand twice.
      DataError: the model has numbers that are not finite.
    """
    algorithm = recommender_for(_definition(task.SerializeToString(deterministic=True)))
    if not isinstance(algorithm, Served):
        raise ConfigurationError("Expected a task of odp.MatrixFactorization: no other has items that can be scanned")
    columns: IndexColumns = algorithm.index_columns(model)
    if len(keys) != len(columns.biases):
        raise ConfigurationError(f"Expected item_keys for {len(columns.biases)} items of the model (got {len(keys)})")
    index = ItemIndex(
        **packed(columns),
        keys=ItemKeys.of(keys),
        task=task.SerializeToString(deterministic=True),
        tables=model.dense,
        facts=facts,
        version=model.version,
        sha256="",
    )
    return made(index)


def _definition(task: bytes) -> common_pb2.TaskDefinition:
    """The definition of a serialized task; its signature is checked where it has one."""
    signed = common_pb2.SignedTask.FromString(task)
    return open_task(signed) if signed.signature else common_pb2.TaskDefinition.FromString(signed.definition)

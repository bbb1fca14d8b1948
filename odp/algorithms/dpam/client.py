"""DPAM on one device: which slices it wants, what it contributes, what it predicts. Imports numpy alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.dpam import codec, gradient_codec, gradient_userside, uncertainty, userside
from odp.algorithms.dpam.terms import COUNTS_ROUND, FACTOR_COLUMNS, FIRST_FACTOR_ROUND, Terms
from odp.algorithms.factorization.slices import OwnItems, find_slices, rows_to_predict
from odp.algorithms.seam import LocalData, LocalRows
from odp.errors import ConfigurationError
from odp.models.intervals import DEFAULT_LEVEL, Intervals, check_level
from odp.models.reasons import Reasons
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.aggregation import mode_of
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.algorithms.factorization.whole_vectors import WholeVector


class DpamClient(OwnItems):
    """``odp.algorithms.seam.Client`` of one task.

    Args:
      definition: the task that the device verified.

    Raises:
      ConfigurationError: the definition is no valid DPAM task.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms, self._definition = Terms.of(definition), definition
        self._prior: Float64Array | None = None
        super().__init__(self._terms, values=(self._terms.low, self._terms.high))

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where the ridges of a model do not hold up every solve."""
        userside.ridges(self._terms, dense)
        if self._terms.gradient:
            uncertainty.read(self._terms, dense)

    def empty(self, round: int) -> bytes:
        """No item, and a row of zeros."""
        if (vector := self._vector(round)) is not None:
            return bytes(vector.grid.payload_bytes)
        if self._terms.gradient:
            return gradient_codec.empty_payload(self._terms, round)
        return codec.empty_payload(self._terms, round)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, local parameters): the latter are the user's bias and row, float64 [1 + rank], little-endian.

        Values are clamped to the task's range. Items that the model does not have, values that are not finite, and
        own items without a slice take no part; in the round of counts no slice is needed.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        rows = self._in_order(data, round=round, seed=seed)
        payload, local = (self._gradients if self._terms.gradient else self._gramians)(slices, rows, round=round)
        if (vector := self._vector(round)) is not None:
            from odp.algorithms.dpam.placed import placed_in
            from odp.algorithms.factorization import laid_out

            sent = (gradient_codec if self._terms.gradient else codec).decode(self._terms, round, [payload])
            payload = laid_out.payload(vector, placed_in(self._terms, round, sent), round=round, seed=seed)
        return payload, local

    def _vector(self, round: int) -> WholeVector | None:
        """What stands for a contribution under masks; None where an enclave opens contributions."""
        if not mode_of(self._definition.cohort).dense_only:
            return None
        # Devices without masks never load what enclaves sum with.
        from odp.algorithms.dpam.query import query_of
        from odp.algorithms.factorization.whole_vectors import WholeVector

        return WholeVector.of(query_of(self._terms, round), self._definition)

    def _gramians(self, slices: Slices, rows: LocalRows, *, round: int) -> tuple[bytes, bytes]:
        """What an enclave opens, and the local parameters, of Gram matrices."""
        terms = self._terms
        if round == COUNTS_ROUND:
            counted = userside.counted(terms, rows.items[None], np.ones((1, len(rows.items)), dtype=np.bool_))
            return codec.encode(terms, round, counted)[0], np.zeros(1, dtype="<f8").tobytes()
        batch = self._batch(slices, rows)
        local = userside.solve(terms, batch, userside.ridges(terms, slices.dense), rank=terms.rank_of(round))
        payload = codec.encode(terms, round, userside.contributions(terms, batch, local, round=round))[0]
        return payload, np.concatenate((local.bias, local.row[0])).astype("<f8").tobytes()

    def _gradients(self, slices: Slices, rows: LocalRows, *, round: int) -> tuple[bytes, bytes]:
        """The same of gradient steps."""
        terms = self._terms
        if round == COUNTS_ROUND:
            batch = userside.Batch(
                items=rows.items[None],
                values=np.zeros((1, len(rows.items))),
                mask=np.ones((1, len(rows.items)), dtype=np.bool_),
                rows=np.zeros((1, len(rows.items), 0)),
            )
            masses = gradient_userside.masses(terms, batch)
            return gradient_codec.encode(terms, round, masses)[0], np.zeros(1, dtype="<f8").tobytes()
        batch = self._batch(slices, rows)
        local = gradient_userside.solve(terms, batch, uncertainty.read(terms, slices.dense))
        payload = gradient_codec.encode(terms, round, gradient_userside.contributions(terms, batch, local))[0]
        # What predictions make of the same items, beside which errors of these are no matter.
        predicting = userside.solve(terms, batch, userside.ridges(terms, slices.dense), rank=terms.rank)
        return payload, np.concatenate((predicting.bias, predicting.row[0])).astype("<f8").tobytes()

    def beginning(self, mean: Float64Array) -> DpamClient:
        """A client whose predictions begin at a bias and a row, ``mean`` float64 [1 + rank]; see ``SidePrior``.

        What it contributes is that of this one: training knows nothing of it.

        Raises:
          ConfigurationError: ``mean`` has another length.
        """
        if mean.shape not in ((1,), (1 + self._terms.rank,)):
            raise ConfigurationError(
                f"Expected a prior mean of {1 + self._terms.rank} numbers, by this task's rank (got {list(mean.shape)})"
            )
        client = copy.copy(self)
        client._prior = np.concatenate((mean, np.zeros(1 + self._terms.rank - len(mean))))
        return client

    def predict(self, slices: Slices, data: LocalData, items: Int64Array) -> Float64Array:
        """Predicted values float64 [n], personalised on those of ``data`` whose item has a slice; not clamped.

        Raises:
          DataError: one of ``items`` has no slice.
          ConfigurationError: as ``check_model``.
        """
        terms = self._terms
        rows = userside.usable_rows(terms, rows_to_predict(slices, items)).astype(np.float64)
        rank = terms.rank if slices.version >= FIRST_FACTOR_ROUND else 0
        batch = self._beside_prior(self._batch(slices, self._usable(data)), rank)
        ridges, begun = userside.ridges(terms, slices.dense), self._begun(rows, rank)
        if rank and terms.kernel_variance:
            return userside.smooth_predictions(terms, batch, ridges, rows) + begun
        local = userside.solve(terms, batch, ridges, rank=rank)
        return userside.predict(terms, local, np.zeros(len(items), dtype=np.int64), rows) + begun

    def on_scale(self, values: Float64Array) -> Float64Array:
        """Predicted values as people see them: clamped to the declared range."""
        return np.asarray(np.clip(values, self._terms.low, self._terms.high))

    def reasons(self, slices: Slices, data: LocalData, items: Int64Array) -> Reasons:
        """What each own value adds to ``predict``, beside what the item and a prior give. Raises as that."""
        terms = self._terms
        rows = userside.usable_rows(terms, rows_to_predict(slices, items)).astype(np.float64)
        rank = terms.rank if slices.version >= FIRST_FACTOR_ROUND else 0
        batch = self._beside_prior(self._batch(slices, self._usable(data)), rank)
        added = userside.shares(terms, batch, userside.ridges(terms, slices.dense), rows, rank=rank)
        return Reasons(batch.items[0], added)

    def intervals(
        self, slices: Slices, data: LocalData, items: Int64Array, *, level: float = DEFAULT_LEVEL
    ) -> Intervals:
        """``predict`` with ranges that cover the values at ``level``, from .5 to .99; see ``userside.py``.

        Raises:
          DataError, ConfigurationError: as ``predict``, or the level is out of range.
        """
        check_level(level)
        terms = self._terms
        mean = self.predict(slices, data, items)
        rows = userside.usable_rows(terms, rows_to_predict(slices, items)).astype(np.float64)
        rank = terms.rank if slices.version >= FIRST_FACTOR_ROUND else 0
        batch = self._beside_prior(self._batch(slices, self._usable(data)), rank)
        ridges = userside.ridges(terms, slices.dense)
        half = userside.half_widths(terms, batch, ridges, rows, np.array([level]), rank=rank)[0]
        return Intervals.around(mean, half, level=level, least=terms.low, most=terms.high)

    def _begun(self, rows: Float64Array, rank: int) -> Float64Array:
        """What the prior alone adds to the predictions of item rows [.., width]; 0 without one."""
        if self._prior is None:
            return np.zeros(rows.shape[:-1])
        return np.asarray(
            self._prior[0] + rows[..., FACTOR_COLUMNS : FACTOR_COLUMNS + rank] @ self._prior[1 : 1 + rank]
        )

    def _beside_prior(self, batch: userside.Batch, rank: int) -> userside.Batch:
        """Own values less what the prior says: their solve starts from 0."""
        return replace(batch, values=batch.values - self._begun(batch.rows, rank))

    def linear(self, slices: Slices, data: LocalData) -> Float64Array:
        """The row float64 [rank] of :meth:`predict` without its smooth part. Raises ConfigurationError as that."""
        terms = self._terms
        if slices.version < FIRST_FACTOR_ROUND:
            return np.zeros(terms.rank)
        batch = self._batch(slices, self._usable(data))
        local = userside.solve(terms, batch, userside.ridges(terms, slices.dense), rank=terms.rank)
        return np.asarray(local.row[0])

    def _batch(self, slices: Slices, rows: LocalRows) -> userside.Batch:
        has_slice, place = find_slices(slices, rows.items)
        return userside.Batch(
            items=rows.items[has_slice][None],
            values=rows.values[has_slice].astype(np.float64)[None],
            mask=np.ones((1, int(has_slice.sum())), dtype=np.bool_),
            rows=userside.usable_rows(self._terms, slices.rows[place[has_slice]]).astype(np.float64)[None],
        )

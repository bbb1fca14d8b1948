"""Recommendations out of an index: a scan of all items, then the model's own prediction of the best few hundred.

The scan ranks by the linear part of a prediction, on rows of int8. What it finds is predicted as a device predicts with
the whole model, with every part that the model has (for ratings: the smooth part of a person's taste), on decoded rows.
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
from odp.models.item_table import IndexColumns
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion, Slices
from odp.serving.index_file import made
from odp.serving.item_index import ItemIndex, packed
from odp.serving.item_keys import ItemKeys
from odp.serving.scan import best
from odp.signed.task import open_task
from odp.v1 import common_pb2

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
        model = definition.model
        if (index.rank, len(index)) != (model.rank, model.items):
            raise DataError(
                f"index {index.sha256[:12]}: it has {len(index)} items of rank {index.rank}, and task "
                f"{definition.name!r} has {model.items} of rank {model.rank}"
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

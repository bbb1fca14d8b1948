"""Recommendations out of an item index that the app ships: offline, whatever the size of the catalogue.

The whole index lies on the device and the same difference updates it on every device, so no request tells which items
a person knows. What it finds is for the person alone, as with a downloaded model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from device_runtime.inference.recommend import Recommendation
from device_runtime.round.examples import examples
from device_runtime.store.keyed_ratings import ratings_left_out
from device_runtime.store.store import Store
from odp.algorithms.capabilities import IntervalClient
from odp.errors import DataError
from odp.numerics.arrays import Int64Array
from odp.protocol.catalogues.named import named_in
from odp.serving.index_file import open_index
from odp.serving.ranking import IndexedModel


def indexed_model(
    index: str | Path | IndexedModel, *, population: str | None = None, sha256: str | None = None
) -> IndexedModel:
    """The model of an index file, checked byte by byte; nothing private is read.

    Args:
      index: the file; or what this function returned for it, so that several calls check it once.
      population: whose model it has to be; by default any.
      sha256: of the file that is expected, as ``ItemIndex.sha256`` has it; by default any.

    Raises:
      DataError: the file is damaged, or its model is another one.
    """
    model = index if isinstance(index, IndexedModel) else IndexedModel.of(open_index(index, sha256=sha256))
    if sha256 is not None and model.index.sha256 != sha256:
        raise DataError(f"index {model.index.sha256[:12]} is open, and {sha256[:12]} was expected; open that one")
    if population is not None and model.definition.population != population:
        raise DataError(
            f"index {model.index.sha256[:12]} is a model of population {model.definition.population!r}, not of "
            f"{population!r}; export the other task's, or change the population"
        )
    return model


def recommend_indexed(
    store: Store,
    model: IndexedModel,
    *,
    k: int = 10,
    candidates: Sequence[int] | Int64Array | None = None,
    clock: Callable[[], float] = time.time,
) -> Recommendation:
    """The ``k`` items with the highest predictions that the device has not rated; fewer if fewer are left.

    Of a model whose task names a catalogue, the device's own items are found by the keys of the index, and the result
    has keys: no catalogue is read, and nobody is asked.

    Args:
      store: of the device.
      model: the index.
      k: how many.
      candidates: numbers of the items to choose from; by default all.
      clock: seconds since the epoch; says how old events are.

    Raises:
      ConfigurationError: ``k`` is not positive.
      StateError: the store cannot be read.
    """
    keys = model.index.keys if named_in(model.definition) is not None else None
    data = examples(store, model.definition, now=clock(), catalogue=keys)
    best = model.recommend(data, k=k, candidates=candidates)
    names = None if keys is None else tuple(keys[item] for item in best.items.tolist())
    return Recommendation(
        best.items, best.scores, names, values=isinstance(model.client, IntervalClient),
        left_out=ratings_left_out(store, model.definition, keys),
    )  # fmt: skip

"""Recommendations without the whole model: the clusters that suit a device's own data, fetched by private lookup.

Whatever the device holds, it asks in this order: the tables' names, the centroids whole (or nothing, where they are
cached), one request for as many item rows as in training, one request for a fixed number of buckets. Only the attested
enclave reads which rows and buckets these are. An error in rows that depend on the device's data is not reported: such
rows are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from device_runtime.inference.recommend import (
    Recommendation,
    Wanted,
    best_of,
    catalogues_of,
    offered_model,
    predicting,
    with_ranges,
)
from device_runtime.network.services import Traffic
from device_runtime.round.computations import RoundComputation, read_or_nothing
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.lookup import FoundTable, Lookup
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.keyed_ratings import ratings_left_out
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData
from odp.errors import ConfigurationError, ServiceError, StaleModel
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import keyed_entry, table_from_bytes
from odp.signed.tables.candidates import STAMP, opened_buckets, stamp_of, table_names
from odp.trust.log.proofs import LogGuard
from odp.v1 import server_pb2


@dataclass(frozen=True)
class CandidateModel:
    """One model version with its candidates, both checked. All devices of a process share it.

    ``centroids`` float32 [clusters, width] are rows like an item's.
    """

    model: Model
    distributor: str
    centroids: Float32Array
    buckets: FoundTable
    stamp: Float32Array
    catalogue: Catalogue | None = None


def find_candidates(
    lookup: Lookup,
    offer: server_pb2.GetModelResponse,
    *,
    cache: TableCache,
    charters: CharterMemory,
    log: LogGuard | None = None,
    population: str | None = None,
    catalogues: CatalogueMemory | None = None,
) -> CandidateModel:
    """Downloads the candidates of the model that a server offers; with ``log``, verifies the model in the log first.

    Raises:
      SignatureError, ConfigurationError: task, model or tables are not what their developer signed.
      PrivacyError: that developer does not own the population, or it is another one than ``population``.
      TransparencyError: task, model or charter are not in the log; nothing was asked of the distributor.
      StaleModel: the candidates are those of another version of the model: use the whole model, or ask again later.
      ServiceError: the server has no candidates, or a table is not the one of its manifest.
      ServiceUnavailable: nobody answers.
    """
    model = offered_model(offer, charters=charters, log=log, population=population)
    recommender_for(model.definition)
    catalogue = catalogues_of(lookup.services, catalogues).of(model.definition)
    developer = model.definition.developer_key
    centroids, buckets = (lookup.find(name, developer_key=developer) for name in table_names(model.definition.name))
    data = fetch_table(
        lookup.services, centroids.distributor, centroids.opened.model_sha256, centroids.opened.entry, cache
    )
    try:
        rows = table_from_bytes(centroids.opened.entry, data).rows
    except ConfigurationError as error:
        raise ServiceError(f"the distributor at {centroids.distributor} sent wrong centroids: {error}") from error
    width = keyed_entry(model.manifest).width
    stamp = stamp_of(model.model_sha256)
    if rows.shape[1] != STAMP + width or len(rows) != buckets.rows:
        raise StaleModel("the tables of candidates do not belong together; try again later, or use the whole model")
    if (rows[:, :STAMP] != stamp).any():
        raise StaleModel("the candidates belong to another version of the model; use the whole model until they match")
    return CandidateModel(model, offer.distributor_address, rows[:, STAMP:], buckets, stamp, catalogue)


def recommend_candidates(
    store: Store,
    candidates: CandidateModel,
    lookup: Lookup,
    *,
    k: int = 10,
    level: float | None = None,
    explore: bool = False,
    why: bool = False,
    traffic: Traffic | None = None,
    clock: Callable[[], float] = time.time,
) -> Recommendation:
    """The ``k`` candidates with the highest predictions that the device has not rated; fewer if fewer are left.

    Of a device that rated more items than a request has places for, those chosen by a hash of its own seed count.
    Equal predictions rank by item number. ``clock`` (seconds since the epoch) says how old events are. Buckets of
    another version of the model are left out. ``level``, ``explore`` and ``why`` are as of ``recommend``.

    Raises:
      ConfigurationError: ``k`` is not positive, the level is out of range, or the model predicts no values.
      StateError: the store cannot be read.
      AttestationError: the enclave's evidence was refused; nothing was sent to it.
      StaleModel: model or candidates were replaced meanwhile: find them again.
      ServiceError, ServiceUnavailable: the distributor failed, or no device can use the model.
    """
    wanted = Wanted(k, level, explore, why)
    if level is not None or explore:
        with_ranges(candidates.model)
    traffic = Traffic() if traffic is None else traffic
    model = candidates.model
    seed, client = store.identity().seed, predicting(model)
    reading = RoundComputation(
        definition=model.definition, client=model.client, round=model.manifest.version, seed=seed, now=clock(),
        keyed=model.keyed, catalogue=candidates.catalogue,
    )  # fmt: skip
    examples = read_or_nothing(reading, store)
    rated = lookup.rows(
        candidates.distributor, model.model_sha256, model.manifest, examples.keys,
        count=model.rows_per_request, traffic=traffic,
    )  # fmt: skip
    try:
        model.client.check_model(rated.dense)
    except ConfigurationError as error:
        raise ServiceError(f"the model cannot be used: {error}") from error
    rows = lookup.select(candidates.buckets, _best_clusters(candidates, examples.rows, rated), traffic=traffic)
    current = (rows[:, :STAMP] == candidates.stamp).all(axis=1)
    try:
        items, item_rows = opened_buckets(rows[current], candidates.centroids.shape[1])
    except ConfigurationError as error:
        raise ServiceError(f"the candidates cannot be used: {error}") from error
    new = (items < model.definition.model.items) & ~np.isin(items, client.items(examples.rows))
    slices = _with_rows(rated, items, item_rows)
    return best_of(
        model, client, slices, examples.rows, items[new], wanted=wanted,
        catalogue=candidates.catalogue,
        left_out=ratings_left_out(store, model.definition, candidates.catalogue),
    )  # fmt: skip


def _best_clusters(candidates: CandidateModel, data: LocalData, rated: Slices) -> Int64Array:
    """The clusters whose centroid has the highest predicted rating on this device."""
    count = min(candidates.buckets.opened.rows_per_request, len(candidates.centroids))
    # Numbers beyond the items: no rating is one of them.
    numbers = candidates.model.definition.model.items + np.arange(len(candidates.centroids), dtype=np.int64)
    try:
        scores = predicting(candidates.model).predict(_with_rows(rated, numbers, candidates.centroids), data, numbers)
    except Exception:  # whatever it is, it follows from the data: the request is made all the same
        return np.arange(count, dtype=np.int64)
    return np.argsort(-scores, kind="stable")[:count]


def _with_rows(slices: Slices, keys: Int64Array, rows: Float32Array) -> Slices:
    """Merges ``slices`` and more rows; for a key that both have, the row of ``slices`` counts."""
    merged_keys, first = np.unique(np.concatenate([slices.keys, keys]), return_index=True)
    return Slices(slices.version, merged_keys, np.concatenate([slices.rows, rows])[first], slices.dense)

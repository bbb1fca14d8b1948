"""Inference on the device: predictions and recommendations from its own store, which never leave it.

The device downloads the *whole* model, so that the request says nothing about the person, and checks it against its
developer's signature. It then solves its own row from its own history: personalisation is local, and costs no privacy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from device_runtime.network.services import Services
from device_runtime.round.examples import examples
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model, open_model
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory, charter_of
from odp import _validate
from odp.algorithms.capabilities import RecommenderClient
from odp.algorithms.registry import recommender_for
from odp.catalogues.catalogue import Catalogue
from odp.errors import ConfigurationError, PrivacyError, ServiceError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.transparency.proofs import LogGuard
from odp.v1 import server_pb2
from odp.wire.model import ModelVersion, Slices
from odp.wire.tables import broadcast_from


@dataclass(frozen=True)
class DownloadedModel:
    """A whole model version, checked against its signed manifest: one download serves every device of a process.

    ``catalogue`` says which items its task is of, by their keys; None where it names no catalogue.
    """

    model: Model
    broadcast: ModelVersion
    catalogue: Catalogue | None = None

    @property
    def slices(self) -> Slices:
        """All rows, in the form of rows that were fetched by key."""
        rows = self.broadcast.keyed.rows
        return Slices(self.broadcast.version, np.arange(len(rows), dtype=np.int64), rows, self.broadcast.dense)


@dataclass(frozen=True)
class Recommendation:
    """``items`` int64 [k], best first, and their predicted values ``scores`` float64 [k].

    ``keys`` are those of the items where the model's task names a catalogue; None elsewhere.
    """

    items: Int64Array = field(repr=False)
    scores: Float64Array = field(repr=False)
    keys: tuple[str, ...] | None = field(default=None, repr=False)

    @property
    def named(self) -> list[tuple[int | str, float]]:
        """(key, or number where there is none; score) of each item, best first."""
        names: list[int] | tuple[str, ...] = self.items.tolist() if self.keys is None else self.keys
        return list(zip(names, self.scores.tolist(), strict=True))


def recommendation(items: Int64Array, scores: Float64Array, catalogue: Catalogue | None) -> Recommendation:
    """The recommendation of ``items``, with their keys where there is a catalogue."""
    keys = None if catalogue is None else tuple(catalogue.keys[item] for item in items.tolist())
    return Recommendation(items, scores, keys)


def offered_model(
    offer: server_pb2.GetModelResponse,
    *,
    charters: CharterMemory,
    log: LogGuard | None,
    population: str | None = None,
) -> Model:
    """The model that a server offers for inference; with ``population``, the model of that population.

    Its charter is compared with what training has seen, and not remembered: no evidence of the aggregator says here
    that it is in force. Raises as ``download_model``.
    """
    model = open_model(offer.task, offer.model)
    if population is not None and model.definition.population != population:
        raise PrivacyError(
            f"the server offers a model of population {model.definition.population!r}, and the request "
            f"was for {population!r}"
        )
    if not offer.HasField("charter"):
        raise PrivacyError(f"the server gave no charter of population {model.definition.population!r}")
    charter = charter_of(offer.charter, model.definition)
    charters.check(charter)
    if log is not None:
        log.logged(offer.log, task=offer.task, model=offer.model, charter=offer.charter)
    return model


def download_model(
    services: Services,
    offer: server_pb2.GetModelResponse,
    *,
    charters: CharterMemory,
    log: LogGuard | None = None,
    cache: TableCache | None = None,
    population: str | None = None,
    catalogues: CatalogueMemory | None = None,
) -> DownloadedModel:
    """Downloads all tables of the model that a server offers; with ``log``, verifies the model in the log first.

    With a ``cache``, what the device holds already is not fetched again (``device_runtime.rows.downloads``); with
    ``catalogues``, what the host knows of them.

    Raises:
      SignatureError, ConfigurationError: task or manifest are not what their developer signed.
      PrivacyError: that developer does not own the population, as far as ``charters`` know, or it is another one than
        ``population``.
      TransparencyError: task, model or charter are not in the log, or its catalogue is refused; nothing was
        downloaded.
      ServiceError: a table is not the one of the manifest, or the distributor failed.
      ServiceUnavailable: nobody answers.
    """
    model = offered_model(offer, charters=charters, log=log, population=population)
    distributor = offer.distributor_address
    recommender_for(model.definition)
    catalogue = catalogues_of(services, catalogues).of(model.definition)
    tables = {
        entry.name: services.download(distributor, model.model_sha256, entry)
        if cache is None
        else fetch_table(services, distributor, model.model_sha256, entry, cache)
        for entry in model.manifest.tables
    }
    try:
        return DownloadedModel(model, broadcast_from(model.manifest, tables), catalogue)
    except ConfigurationError as error:
        raise ServiceError(f"the distributor at {distributor} sent a wrong model: {error}") from error


def catalogues_of(services: Services, catalogues: CatalogueMemory | None) -> CatalogueMemory:
    """``catalogues``, or without them a memory that begins and ends empty."""
    return CatalogueMemory(None, services.catalogue_steps) if catalogues is None else catalogues


def predicting(model: Model) -> RecommenderClient:
    """The client of a model that scores items. Raises ConfigurationError for a model that does not."""
    if not isinstance(model.client, RecommenderClient):
        raise ConfigurationError(f"task {model.definition.name!r} has no model to predict with")
    return model.client


def predict(
    store: Store,
    downloaded: DownloadedModel,
    items: Sequence[int] | Int64Array,
    *,
    clock: Callable[[], float] = time.time,
) -> Float64Array:
    """Predicted values float64 [n] of ``items`` for the device of ``store``; not clipped to the task's declared range.

    Raises:
      ConfigurationError: an item is not one of the model's.
      StateError: the store cannot be read.
    """
    definition = downloaded.model.definition
    wanted = np.asarray(items, dtype=np.int64)
    if wanted.size and not (wanted.min() >= 0 and wanted.max() < definition.model.items):
        raise ConfigurationError(f"Expected items to be from 0 to {definition.model.items - 1}")
    data = examples(store, definition, now=clock(), catalogue=downloaded.catalogue)
    return predicting(downloaded.model).predict(downloaded.slices, data, wanted)


def recommend(
    store: Store, downloaded: DownloadedModel, *, k: int = 10, clock: Callable[[], float] = time.time
) -> Recommendation:
    """The ``k`` items with the highest predictions that the device has not rated; fewer if fewer are left.

    Equal predictions rank by item number. ``clock`` (seconds since the epoch) says how old events are.

    Raises:
      ConfigurationError: ``k`` is not positive.
      StateError: the store cannot be read.
    """
    _validate.integer(low=1, high=2**31, k=k)
    definition = downloaded.model.definition
    data = examples(store, definition, now=clock(), catalogue=downloaded.catalogue)
    client = predicting(downloaded.model)
    candidates = np.setdiff1d(np.arange(definition.model.items, dtype=np.int64), client.items(data), assume_unique=True)
    scores = client.predict(downloaded.slices, data, candidates)
    best = np.argsort(-scores, kind="stable")[:k]
    return recommendation(candidates[best], scores[best], downloaded.catalogue)

"""Inference on the device: predictions and recommendations from its own store, which never leave it.

The device downloads the *whole* model, so that the request says nothing about the person, and checks it against its
developer's signature. It then solves its own row from its own history: personalisation is local, and costs no privacy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from device_runtime.network.services import Services
from device_runtime.round.examples import examples
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.keyed_ratings import ratings_left_out
from device_runtime.store.side import said_of
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model, open_model
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory, charter_of
from device_runtime.view.shown_items import ShownItems, left_out_note, untitled_note
from odp import _validate
from odp.algorithms.capabilities import IntervalClient, PriorClient, RecommenderClient
from odp.algorithms.predicting import PredictingClient
from odp.algorithms.seam import LocalData
from odp.datasets.item_texts import NamedItems
from odp.errors import ConfigurationError, PrivacyError, ServiceError
from odp.models.intervals import DEFAULT_LEVEL, Intervals, check_level
from odp.models.side_prior import SidePrior
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.wire.model import ModelVersion, Slices
from odp.protocol.wire.tables import broadcast_from
from odp.trust.log.proofs import LogGuard
from odp.v1 import server_pb2

#: Own items per recommendation that say why.
_REASONS = 3


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
    """``items`` int64 [k], best first, and ``scores`` float64 [k], their predictions as people see them.

    ``keys`` are those of the items where the model's task names a catalogue; None elsewhere. ``ranges`` has the ranges
    of their predictions, where they were asked for. ``values`` tells whether scores are values within the declared
    range, or numbers that only rank. ``left_out`` counts the person's own ratings whose items the model does not know.
    ``reasons`` has for each item those own ones that move its prediction most, by key or number, and by how much, where
    they were asked for.
    All of it is the person's, and stays on the device.
    """

    items: Int64Array = field(repr=False)
    scores: Float64Array = field(repr=False)
    keys: tuple[str, ...] | None = field(default=None, repr=False)
    ranges: Intervals | None = field(default=None, repr=False)
    values: bool = True
    left_out: int = field(default=0, repr=False)
    reasons: tuple[tuple[tuple[int | str, float], ...], ...] | None = field(default=None, repr=False)

    @property
    def names(self) -> list[int] | tuple[str, ...]:
        """The key of each item, or its number where there is none."""
        numbers: list[int] = self.items.tolist()
        return numbers if self.keys is None else self.keys

    def rows(self) -> list[list[Any]]:
        """One [key or number, score], or with ranges [key or number, score, low, high], per item."""
        columns: list[Sequence[Any]] = [self.names, self.scores.tolist()]
        if self.ranges is not None:
            columns += [self.ranges.low.tolist(), self.ranges.high.tolist()]
        return [list(row) for row in zip(*columns, strict=True)]

    def shown(self, named: NamedItems | None, *, offline: str | None = None) -> ShownItems:
        """The items by title, else by key or number; ``offline`` says why the model may be outdated."""
        notes = [] if offline is None else [offline]
        if self.left_out:
            notes.append(left_out_note(self.left_out))
        if named is not None and named.missing:
            notes.append(untitled_note(named.missing))
        if not len(self.scores):
            notes.append("there is nothing to recommend: you have rated every item")
        names = map(str, self.names) if named is None else named.names(self.names)
        why = self.reasons_in_words(named) or [""] * len(self.scores)
        return ShownItems(
            "predicted value" if self.values else "score",
            tuple(
                (name, f"{score:.2f}", because)
                for name, score, because in zip(names, self.scores.tolist(), why, strict=True)
            ),
            tuple(notes),
        )

    def reasons_in_words(self, named: NamedItems | None) -> list[str] | None:
        """For each item "A (+0.31), B (-0.12)", by title, else by key or number; None where nobody asked for it."""
        if self.reasons is None:
            return None
        return [
            ", ".join(f"{item if named is None else named.names([item])[0]} ({added:+.2f})" for item, added in of_item)
            for of_item in self.reasons
        ]


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
    require_predictions(model)
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


def require_predictions(model: Model) -> None:
    """Returns if a model predicts: of items, or of examples. Raises ConfigurationError otherwise."""
    if not isinstance(model.client, (RecommenderClient, PredictingClient)):
        raise ConfigurationError(f"task {model.definition.name!r} has no model to predict with")


def predicting(model: Model) -> RecommenderClient:
    """The client of a model that scores items. Raises ConfigurationError for a model that does not."""
    require_predictions(model)
    if not isinstance(model.client, RecommenderClient):
        raise ConfigurationError(
            f"the model of task {model.definition.name!r} ranks no items; it predicts of examples: `odp device predict`"
        )
    return model.client


def personal(store: Store, downloaded: DownloadedModel, side: SidePrior | None) -> RecommenderClient:
    """The client of a model, which with ``side`` begins at what the person says of themselves in ``store``.

    Raises:
      ConfigurationError: ``side`` was made for another model, or the model cannot begin anywhere.
    """
    client = predicting(downloaded.model)
    if side is None:
        return client
    if not isinstance(client, PriorClient):
        name = downloaded.model.definition.name
        raise ConfigurationError(f"task {name!r} has no bias and row that could begin at a side prior: leave out side")
    side.require_made_for(downloaded.broadcast.keyed.rows)
    return client.beginning(side.means([said_of(store)])[0])


def with_ranges(model: Model, client: RecommenderClient | None = None) -> IntervalClient:
    """A client that says how far its predictions may be off: ``client``, or that of the model.

    Raises:
      ConfigurationError: the model predicts no values, such as one of implicit feedback, which ranks items.
    """
    client = predicting(model) if client is None else client
    if not isinstance(client, IntervalClient):
        raise ConfigurationError(
            f"task {model.definition.name!r} ranks items and predicts no values, so there are no ranges: "
            "leave out level and explore"
        )
    return client


@dataclass(frozen=True)
class Wanted:
    """What is asked of recommendations: arguments of ``recommend``. Raises ConfigurationError as that."""

    k: int = 10
    level: float | None = None
    explore: bool = False
    why: bool = False

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=2**31, k=self.k)
        if self.level is not None:
            check_level(self.level)


def best_of(
    model: Model,
    client: RecommenderClient,
    slices: Slices,
    data: LocalData,
    items: Int64Array,
    *,
    wanted: Wanted,
    catalogue: Catalogue | None,
    left_out: int,
) -> Recommendation:
    """The best of ``items`` int64 [n] for ``client``, ``model``'s; else as ``recommend``. Raises as that."""
    ranges = None
    if wanted.level is None and not wanted.explore:
        scores = client.predict(slices, data, items)
        best = np.argsort(-scores, kind="stable")[: wanted.k]
        shown = client.on_scale(scores[best])
    else:
        level = DEFAULT_LEVEL if wanted.level is None else wanted.level
        intervals = with_ranges(model, client).intervals(slices, data, items, level=level)
        best = np.argsort(-(intervals.upper if wanted.explore else intervals.predicted), kind="stable")[: wanted.k]
        ranges = intervals.take(best)
        shown = ranges.mean
    chosen = items[best]
    keys = None if catalogue is None else tuple(catalogue.keys[item] for item in chosen.tolist())
    reasons = None
    if wanted.why:
        reasons = tuple(
            tuple((item if catalogue is None else catalogue.keys[item], added) for item, added in of_item)
            for of_item in client.reasons(slices, data, chosen).most(_REASONS)
        )
    return Recommendation(chosen, shown, keys, ranges, isinstance(client, IntervalClient), left_out, reasons)


def predict(
    store: Store,
    downloaded: DownloadedModel,
    items: Sequence[int] | Int64Array,
    *,
    side: SidePrior | None = None,
    clock: Callable[[], float] = time.time,
) -> Float64Array:
    """Predicted values float64 [n] of ``items`` for the device of ``store``, within the task's declared range.

    Of implicit feedback they are scores, which only rank.

    With ``side`` they begin at what the person says of themselves (``device_runtime.store.side``).

    Raises:
      ConfigurationError: an item is not one of the model's.
      StateError: the store cannot be read.
    """
    wanted = _wanted(downloaded, items)
    data = examples(store, downloaded.model.definition, now=clock(), catalogue=downloaded.catalogue)
    client = personal(store, downloaded, side)
    return client.on_scale(client.predict(downloaded.slices, data, wanted))


def predict_ranges(
    store: Store,
    downloaded: DownloadedModel,
    items: Sequence[int] | Int64Array,
    *,
    level: float = DEFAULT_LEVEL,
    side: SidePrior | None = None,
    clock: Callable[[], float] = time.time,
) -> Intervals:
    """``predict`` with ranges that cover the person's values at ``level``, from .5 to .99.

    They follow from the store and the public model, and stay on the device: they cost no privacy.

    Raises:
      ConfigurationError: an item is not one of the model's, the level is out of range, or the model predicts no values.
      StateError: the store cannot be read.
    """
    check_level(level)
    wanted = _wanted(downloaded, items)
    client = with_ranges(downloaded.model, personal(store, downloaded, side))
    data = examples(store, downloaded.model.definition, now=clock(), catalogue=downloaded.catalogue)
    return client.intervals(downloaded.slices, data, wanted, level=level)


def recommend(
    store: Store,
    downloaded: DownloadedModel,
    *,
    k: int = 10,
    level: float | None = None,
    explore: bool = False,
    side: SidePrior | None = None,
    why: bool = False,
    clock: Callable[[], float] = time.time,
) -> Recommendation:
    """The ``k`` items with the highest predictions that the device has not rated; fewer if fewer are left.

    Equal predictions rank by item number.

    Args:
      k: number of items.
      level: gives ranges that cover the person's values at that level, from .5 to .99; None gives none.
      explore: ranks by the upper ends of the ranges (at .9 without a level), so that items of which the model knows
        little come forward.
      side: begins at what the person says of themselves, which stays in the store.
      why: gives the person's own three items that move each prediction most.
      clock: seconds since the epoch: how old events are.

    Raises:
      ConfigurationError: ``k`` is not positive, the level is out of range, or the model predicts no values.
      StateError: the store cannot be read.
    """
    wanted = Wanted(k, level, explore, why)
    definition = downloaded.model.definition
    data = examples(store, definition, now=clock(), catalogue=downloaded.catalogue)
    client = personal(store, downloaded, side)
    candidates = np.setdiff1d(np.arange(definition.model.items, dtype=np.int64), client.items(data), assume_unique=True)
    return best_of(
        downloaded.model, client, downloaded.slices, data, candidates,
        wanted=wanted, catalogue=downloaded.catalogue,
        left_out=ratings_left_out(store, definition, downloaded.catalogue),
    )  # fmt: skip


def _wanted(downloaded: DownloadedModel, items: Sequence[int] | Int64Array) -> Int64Array:
    count = downloaded.model.definition.model.items
    wanted = np.asarray(items, dtype=np.int64)
    if wanted.size and not (wanted.min() >= 0 and wanted.max() < count):
        raise ConfigurationError(f"Expected items to be from 0 to {count - 1}")
    return wanted

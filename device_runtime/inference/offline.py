"""Recommendations without a network: of the newest complete model, or of an index that the app ships.

A person's recommendations must not depend on a network: a completely downloaded model stays usable. Its offer is kept
beside the cache, and is checked again like a new one. The caller learns that the model may be outdated.

::

    <folder>/<population>.offer             serialized GetModelResponse whose tables were all fetched
    <folder>/of_examples/<population>.offer the same of a model that predicts of examples

An index serves catalogues of any size. The whole index lies on the device and the same difference updates it on every
device, so no request tells which items a person knows. What it finds is for the person alone, as with a downloaded
model.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from device_runtime.inference.recommend import DownloadedModel, Recommendation, catalogues_of, download_model
from device_runtime.network.services import Services
from device_runtime.round.examples import examples
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.keyed_ratings import ratings_left_out
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import open_model
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory
from odp import _validate
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import write_atomically
from odp.algorithms.capabilities import IntervalClient
from odp.crypto.signing import SignatureError
from odp.errors import (
    CertificateError,
    ConfigurationError,
    DataError,
    ServiceUnavailable,
    StaleModel,
    TransparencyError,
)
from odp.numerics.arrays import Int64Array
from odp.protocol.catalogues.named import named_in
from odp.protocol.wire.tables import broadcast_from
from odp.serving.index_file import open_index
from odp.serving.ranking import IndexedModel
from odp.trust.log.proofs import LogGuard
from odp.v1 import server_pb2

_LARGEST_OFFER = 2**20


@dataclass(frozen=True)
class Available:
    """A model for predictions. ``offline`` says in one line why it may be outdated; None if it is the newest."""

    downloaded: DownloadedModel
    offline: str | None = None


def newest_model(
    services: Services,
    population: str,
    *,
    cache: TableCache,
    folder: Path,
    charters: CharterMemory,
    log: Callable[[], LogGuard | None] = lambda: None,
    catalogues: CatalogueMemory | None = None,
    of_examples: bool = False,
) -> Available:
    """The newest model of ``population``, or the last one that is complete in the cache.

    It scores items; with ``of_examples`` it predicts of examples.

    A version that newer ones replaced between the server's answer and the download is asked for once more. ``log``
    gives the guard that finds the newest model in the transparency log; a kept one passed it when it was new.
    ``catalogues`` are those that the host knows.

    Raises:
      ServiceUnavailable: nobody answers, and no complete model is kept.
      CertificateError: somebody else answers: that is no outage, and no kept model is used.
      SignatureError, ConfigurationError, PrivacyError, TransparencyError, ServiceError: as ``download_model``.
    """
    _validate.identifier(population=population)
    try:
        try:
            return _newest(services, population, cache, folder, charters, log, catalogues, of_examples)
        except StaleModel:
            return _newest(services, population, cache, folder, charters, log, catalogues, of_examples)
    except CertificateError:
        raise
    except ServiceUnavailable as error:
        path = _path(folder, population, of_examples)
        cached = _cached_model(population, cache, path, catalogues_of(services, catalogues))
        if cached is None:
            raise
        version = cached.model.manifest.version
        return Available(cached, f"{error}; using version {version} of the model, the last complete one on this device")


def _newest(
    services: Services,
    population: str,
    cache: TableCache,
    folder: Path,
    charters: CharterMemory,
    log: Callable[[], LogGuard | None],
    catalogues: CatalogueMemory | None,
    of_examples: bool,
) -> Available:
    offer = services.newest_model(population, of_examples=of_examples)
    downloaded = download_model(
        services, offer, charters=charters, log=log(), cache=cache, population=population, catalogues=catalogues
    )
    # It only saves a person from an outage: a disk that cannot hold it costs that, and nothing now.
    with contextlib.suppress(OSError):
        make_folders(_path(folder, population, of_examples).parent)
        stored_offer = server_pb2.GetModelResponse(task=offer.task, model=offer.model)
        write_atomically(_path(folder, population, of_examples), stored_offer.SerializeToString())
    return Available(downloaded)


def _cached_model(
    population: str, cache: TableCache, path: Path, catalogues: CatalogueMemory
) -> DownloadedModel | None:
    """The cached model, checked again; None if there is none, or if a part is missing or damaged."""
    try:
        with path.open("rb") as file:
            offer = server_pb2.GetModelResponse.FromString(file.read(_LARGEST_OFFER))
        model = open_model(offer.task, offer.model)
        if model.definition.population != population:
            return None
        tables = {entry.name: cache.find(entry.sha256) for entry in model.manifest.tables}
        cached_tables = {name: data for name, data in tables.items() if data is not None}
        catalogue = catalogues.of(model.definition, fetch=False)
        return DownloadedModel(model, broadcast_from(model.manifest, cached_tables), catalogue)
    except (OSError, DecodeError, ConfigurationError, SignatureError, TransparencyError):
        return None


def _path(folder: Path, population: str, of_examples: bool) -> Path:
    # A population's name may hold a dot, and "films.examples" is another one's name: hence the folder.
    return folder / "of_examples" / f"{population}.offer" if of_examples else folder / f"{population}.offer"


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

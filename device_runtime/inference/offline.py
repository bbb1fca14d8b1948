"""The newest model for inference, or the last complete one while the network is unavailable.

A person's recommendations must not depend on a network: a completely downloaded model stays usable. Its offer is kept
beside the cache, and is checked again like a new one. The caller learns that the model may be outdated.

::

    <folder>/<population>.offer     serialized GetModelResponse whose tables were all fetched
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from device_runtime.inference.recommend import DownloadedModel, catalogues_of, download_model
from device_runtime.network.services import Services
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import open_model
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory
from odp import _validate
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import write_atomically
from odp.crypto.signing import SignatureError
from odp.errors import CertificateError, ConfigurationError, ServiceUnavailable, StaleModel, TransparencyError
from odp.protocol.wire.tables import broadcast_from
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
) -> Available:
    """The newest model of ``population``, or the last one that is complete in the cache.

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
            return _newest(services, population, cache, folder, charters, log, catalogues)
        except StaleModel:
            return _newest(services, population, cache, folder, charters, log, catalogues)
    except CertificateError:
        raise
    except ServiceUnavailable as error:
        cached = _cached_model(population, cache, folder, catalogues_of(services, catalogues))
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
) -> Available:
    offer = services.newest_model(population)
    downloaded = download_model(
        services, offer, charters=charters, log=log(), cache=cache, population=population, catalogues=catalogues
    )
    # It only saves a person from an outage: a disk that cannot hold it costs that, and nothing now.
    with contextlib.suppress(OSError):
        make_folders(folder)
        stored_offer = server_pb2.GetModelResponse(task=offer.task, model=offer.model)
        write_atomically(_path(folder, population), stored_offer.SerializeToString())
    return Available(downloaded)


def _cached_model(
    population: str, cache: TableCache, folder: Path, catalogues: CatalogueMemory
) -> DownloadedModel | None:
    """The cached model, checked again; None if there is none, or if a part is missing or damaged."""
    try:
        with _path(folder, population).open("rb") as file:
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


def _path(folder: Path, population: str) -> Path:
    return folder / f"{population}.offer"

"""Rows from whole tables: every device downloads the same tables, and picks its rows locally."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from device_runtime.network.services import Services, Traffic
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import Work
from odp.errors import ConfigurationError, ServiceError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import ModelVersion, Slices
from odp.protocol.wire.tables import broadcast_from
from odp.refusing import refusing

# A round that is open, and the one before it for devices that are late.
_MOST_HELD = 2


class WholeModel:
    """Whole model versions, each checked against its manifest; the devices of a process share one download.

    The distributor learns which version of a table the process holds, and nothing of the rows that are used of it.
    Thread-safe.

    Args:
      services: how to reach the distributor.
      cache: what was downloaded before; None downloads every table whole.
    """

    def __init__(self, services: Services, cache: TableCache | None = None) -> None:
        self._services = services
        self._cache = cache
        # Held during a download: other threads that need the same tables wait for them.
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, ModelVersion] = OrderedDict()

    @refusing("answer with a model")
    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """The rows of ``keys``; the first device that waits for a download accounts for its bytes.

        Raises as ``device_runtime.rows.retrieval.Retrieval``.
        """
        broadcast = self._model(work, traffic)
        table = broadcast.keyed.rows if work.model.keyed else np.zeros((0, 0), dtype=np.float32)
        if len(keys) and keys[-1] >= len(table):
            raise ServiceError(f"the model of round {work.round} lacks rows that its task asks for")
        rows = table[keys]
        return Slices(broadcast.version, np.asarray(keys, dtype=np.int64), rows, broadcast.dense)

    def _model(self, work: Work, traffic: Traffic) -> ModelVersion:
        model = work.model
        with self._lock:
            version = self._held.get(model.model_sha256)
            if version is None:
                tables = {
                    entry.name: self._services.download(work.distributor, model.model_sha256, entry, traffic)
                    if self._cache is None
                    else fetch_table(
                        self._services, work.distributor, model.model_sha256, entry, self._cache, traffic=traffic
                    )
                    for entry in model.manifest.tables
                }
                try:
                    version = broadcast_from(model.manifest, tables)
                except ConfigurationError as error:
                    raise ServiceError(f"the distributor at {work.distributor} sent a wrong model: {error}") from error
                self._held[model.model_sha256] = version
                while len(self._held) > _MOST_HELD:
                    self._held.popitem(last=False)
            return version

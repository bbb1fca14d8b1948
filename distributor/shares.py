"""One party's shares of answers by private information retrieval, out of the models on its disk.

Leader and helper hold the same tables and run the same code. A share is computed by passes over the whole table, and
what it is computed from says nothing of the rows that were asked for without the other party's half.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from distributor.header import open_header
from distributor.interface import UnknownModel
from distributor.model_store import ModelStore
from distributor.query_batches import QueryBatches
from odp.crypto.pir import two_server
from odp.errors import ConfigurationError
from odp.protocol.wire.tables import keyed_entry, table_from_bytes, written_rows
from odp.signed.broadcast.terms import PIR, method_of

#: Models whose tables are kept ready; one more is read from the disk again.
_MOST_READY = 3
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Ready:
    """A model that can be asked: its keyed table, and the bytes of its dense ones in the manifest's order."""

    table: str
    database: two_server.Database
    dense: tuple[bytes, ...]


class Shares:
    """Answers from the models of ``store``; thread-safe."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._ready: OrderedDict[bytes, Ready] = OrderedDict()
        self._batches = QueryBatches()

    def answer(self, ready: Ready, query: bytes, *, pad_seed: bytes | None) -> bytes:
        """A share; waiting queries may share one pass. Raises as ``two_server.answer``."""
        return self._batches.answer(ready.database, query, pad_seed)

    def of(self, model: bytes) -> Ready:
        """The model of this id; its tables are checked against their hashes when read.

        Raises:
          UnknownModel: it is not on the disk any more.
          ConfigurationError: its task asks in another way, or a file is not what was published.
        """
        database = self._known(model)
        if database is None:
            with self._reading:  # whoever asks for a model that is not ready waits for it; the others go on
                database = self._known(model)
                if database is None:
                    database = self._read(model)
                    self._keep(model, database)
        return database

    def _known(self, model: bytes) -> Ready | None:
        with self._lock:
            database = self._ready.get(model)
            if database is not None:
                self._ready.move_to_end(model)
            return database

    def _keep(self, model: bytes, ready: Ready) -> None:
        with self._lock:
            self._ready[model] = ready
            while len(self._ready) > _MOST_READY:
                self._ready.popitem(last=False)

    def _read(self, model: bytes) -> Ready:
        try:
            stored = self._store.load(model)
            header = open_header(stored.task, stored.manifest)
            if method_of(header.task) != PIR:
                raise ConfigurationError(f"model {model[:6].hex()} does not use private information retrieval")
            data = [
                b"".join(self._store.chunks(model, index, _READ_BYTES)) for index in range(len(header.manifest.tables))
            ]
        except FileNotFoundError:
            raise UnknownModel(model) from None
        written = {}
        for entry, content in zip(header.manifest.tables, data, strict=True):
            table_from_bytes(entry, content)
            written[entry.name] = content
        keyed = keyed_entry(header.manifest)
        dense = tuple(content for entry, content in zip(header.manifest.tables, data, strict=True) if not entry.keyed)
        database = two_server.Database.of(
            written_rows(keyed, written[keyed.name]),
            keys=header.slices,
            seed=model,
            table_sha256=keyed.sha256,
        )
        return Ready(keyed.name, database, dense)

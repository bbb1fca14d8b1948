"""One party's shares of answers by private information retrieval, out of the models on its disk.

Leader and helper hold the same tables and run the same code. A share is computed by passes over the whole table, and
what it is computed from says nothing of the rows that were asked for without the other party's half.

One pass answers a batch of queries where rows are wide, which saves processor time. Rows of a few cache lines are
folded into one query's buckets as fast as they are read, so that a pass for several costs what as many passes cost;
wider ones are read once for all of them. As many passes run at once as there are processors.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from distributor.interface import UnknownModel, open_header
from distributor.model_store import ModelStore
from odp._system.recent import Recent
from odp.crypto.pir import scanning, two_server
from odp.errors import ConfigurationError, StateError
from odp.protocol.wire.tables import keyed_entry, table_from_bytes, written_rows
from odp.signed.broadcast.terms import PIR, method_of

#: Models whose tables are kept ready; one more is read from the disk again.
_MOST_READY = 3
_READ_BYTES = 2**20
#: Queries of one pass.
MOST_BATCHED = 8


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
        self._ready: Recent[bytes, Ready] = Recent(_MOST_READY)
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
        return self._ready.get_or_make(model, lambda: self._read(model))

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


@dataclass(eq=False)
class _Query:
    """A query. The lock of its ``QueryBatches`` guards ``taken``; the rest is written before ``done`` is set."""

    request: bytes
    pad_seed: bytes | None
    taken: bool = False
    answer: bytes | None = None
    refused: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class QueryBatches:
    """``two_server.answer`` for many threads; ``passes`` run at once (None: one per processor)."""

    def __init__(self, *, passes: int | None = None) -> None:
        self._passes = threading.BoundedSemaphore((os.cpu_count() or 1) if passes is None else passes)
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Query]] = {}

    def answer(self, database: two_server.Database, request: bytes, pad_seed: bytes | None) -> bytes:
        """The reply to one query; any caller's thread may compute it. Raises RequestError as ``two_server.answer``."""
        if database.records.shape[1] <= scanning.NARROW:
            return two_server.answer(database, request, pad_seed=pad_seed)
        mine, table = _Query(request, pad_seed), database.shape.digest
        with self._lock:
            self._waiting.setdefault(table, []).append(mine)
        with self._passes:
            if batch := self._take(table, mine):
                _pass(database, batch)
        mine.done.wait()
        if mine.answer is None:
            raise mine.refused or StateError("a pass over a table was interrupted; try again")
        return mine.answer

    def _take(self, table: bytes, mine: _Query) -> list[_Query]:
        """``mine`` and other waiting queries, or nothing if another thread took it."""
        with self._lock:
            if mine.taken:
                return []
            waiting = self._waiting[table]
            waiting.remove(mine)
            batch = [mine, *waiting[: MOST_BATCHED - 1]]
            del waiting[: MOST_BATCHED - 1]
            if not waiting:
                del self._waiting[table]
            for query in batch:
                query.taken = True
            return batch


def _pass(database: two_server.Database, batch: list[_Query]) -> None:
    try:
        try:
            replies = two_server.answer_many(database, [(query.request, query.pad_seed) for query in batch])
        except two_server.RequestError:
            for query in batch:  # one that is malformed costs the others their pass and nothing else
                try:
                    query.answer = two_server.answer(database, query.request, pad_seed=query.pad_seed)
                except two_server.RequestError as error:
                    query.refused = error
        else:
            for query, reply in zip(batch, replies, strict=True):
                query.answer = reply
    finally:
        for query in batch:
            query.done.set()

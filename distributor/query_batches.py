"""Batches private queries: one pass over a table answers several, which saves processor time for wide rows.

Rows of a few cache lines are folded into one query's buckets as fast as they are read, so that a pass for several costs
what as many passes cost; wider ones are read once for all of them. As many passes run at once as there are processors.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from odp.crypto.pir import scanning, two_server
from odp.errors import StateError

#: Queries of one pass.
MOST_BATCHED = 8


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
            batch = self._take(table, mine)
            if batch:
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

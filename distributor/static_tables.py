"""Rows of tables that never change, by lattices: from the distributor's host alone, which learns nothing of the keys.

Only the last model of a task never changes. The host makes a hint of it once, which takes a thousand passes over the
table, and keeps it on its disk; devices download the hint once and then ask for few bytes. Hints are made one after the
other: whoever asks meanwhile is told when to come back, and holds no thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from distributor.header import open_header
from distributor.interface import UnknownModel
from distributor.model_store import ModelStore
from distributor.servicer import DistributorService
from odp._validate import one_of
from odp.algorithms.registry import algorithm_for
from odp.broadcast.terms import LARGEST_LATTICE_TABLE as LARGEST_TABLE
from odp.broadcast.terms import LATTICE_KEYS
from odp.crypto.pir import lwe
from odp.errors import Busy, ConfigurationError, OdpError
from odp.signed.task import HASH_BYTES, check_length
from odp.transport.call import progress
from odp.transport.channel import CHUNK_BYTES
from odp.transport.logs import Log, short
from odp.transport.service import NotFound
from odp.transport.turns import Turns
from odp.v1 import retrieval_pb2
from odp.wire.tables import entry_bytes, keyed_entry, table_from_bytes, written_rows

MAX_HINTS = 4

_MOST_READY = 2
# Hints that are made or wait to be, each with its table in memory.
_MOST_MAKING = 4
_RETRY_SECONDS = (1.0, 3.0)
_LONGEST_NAME = 64


@dataclass(frozen=True)
class _Static:
    table: str
    database: lwe.LweDatabase
    hint: bytes
    hint_sha256: bytes


class StaticTables:
    """Answers for the last models of tasks in ``store``; thread-safe."""

    def __init__(self, models: DistributorService, store: ModelStore, log: Log) -> None:
        self._models = models
        self._store = store
        self._log = log
        self._hints = Turns(at_once=MAX_HINTS, waiting=0, service="distributor", what="hints")
        self._lock = threading.Lock()
        self._ready: OrderedDict[bytes, _Static] = OrderedDict()
        self._making: set[bytes] = set()
        self._maker = threading.Lock()

    def describe(self, request: retrieval_pb2.DescribeHintRequest) -> retrieval_pb2.DescribeHintResponse:
        """Shape and hash of the hint.

        Raises NotFound for a model that is not held, ConfigurationError for one that is not its task's last or too
        large, and for another table; Busy while the hint is made.
        """
        found = self._of(request.model_sha256, request.table)
        return retrieval_pb2.DescribeHintResponse(
            model_sha256=request.model_sha256,
            shape=found.database.shape.to_bytes(),
            hint_sha256=found.hint_sha256,
        )

    def hint(
        self, request: retrieval_pb2.GetHintRequest, context: grpc.ServicerContext
    ) -> Iterator[retrieval_pb2.GetHintResponse]:
        """The hint in chunks of at most 1 MiB. Raises as ``describe``, at once."""
        found = self._of(request.model_sha256, request.table)
        permit = contextlib.ExitStack()
        permit.enter_context(self._hints.turn(progress(context)))
        # By a callback of the call, not by the iterator's end: an iterator that nobody started has no end.
        if not context.add_callback(permit.close):
            permit.close()
        self._log.event("hint", model=short(request.model_sha256), bytes=len(found.hint))
        starts = range(0, len(found.hint), CHUNK_BYTES)
        return (retrieval_pb2.GetHintResponse(chunk=found.hint[start : start + CHUNK_BYTES]) for start in starts)

    def select(self, request: retrieval_pb2.SelectByLatticeRequest) -> retrieval_pb2.SelectByLatticeResponse:
        """The products of one query. Raises as ``describe``, and ConfigurationError for a malformed query."""
        found = self._of(request.model_sha256, request.table)
        with self._models.selection():
            answer = lwe.answer(found.database, request.query)
        sizes = {"bytes_in": request.ByteSize(), "bytes_out": len(answer)}
        self._log.event("select_by_lattice", model=short(request.model_sha256), **sizes)
        return retrieval_pb2.SelectByLatticeResponse(model_sha256=request.model_sha256, answer=answer)

    def _of(self, model: bytes, table: str) -> _Static:
        check_length("model_sha256", model, HASH_BYTES)
        if len(table) > _LONGEST_NAME:
            raise ConfigurationError(f"Expected table={table[:16]!r}.. to have at most {_LONGEST_NAME} characters")
        self._models.require(model)
        with self._lock:
            found = self._ready.get(model)
            if found is not None:
                self._ready.move_to_end(model)
        if found is None:
            found = self._loaded(model)
        one_of((found.table,), table=table)
        return found

    def _loaded(self, model: bytes) -> _Static:
        """The model with its hint from the disk; where there is none, has it made and raises Busy."""
        with self._lock:
            if model in self._making:
                raise _busy()
            if len(self._making) >= _MOST_MAKING:
                raise _busy()
            self._making.add(model)
        try:
            # Checked before anything costly: whoever asks for what cannot be had is told so at once.
            name, database = self._database(model)
            hint = self._store.hint(model)
        except BaseException:
            self._made(model)
            raise
        # One of another length was made by another version of this program.
        if hint is None or len(hint) != lwe.hint_bytes(database.shape):
            threading.Thread(target=self._make, args=(model, database), name="hint", daemon=True).start()
            raise _busy()
        found = _Static(name, database, hint, hashlib.sha256(hint).digest())
        with self._lock:
            self._making.discard(model)
            self._ready[model] = found
            while len(self._ready) > _MOST_READY:
                self._ready.popitem(last=False)
        return found

    def _make(self, model: bytes, database: lwe.LweDatabase) -> None:
        try:
            with self._maker:
                self._store.keep_hint(model, lwe.hint(database))
            self._log.event("hint_made", model=short(model))
        except OdpError as error:
            self._log.warning("hint_not_made", model=short(model), reason=str(error))
        finally:
            self._made(model)

    def _made(self, model: bytes) -> None:
        with self._lock:
            self._making.discard(model)

    def _database(self, model: bytes) -> tuple[str, lwe.LweDatabase]:
        stored = self._store.load(model)
        header = open_header(stored.task, stored.manifest)
        rounds = len(algorithm_for(header.task).planned_releases())
        if header.manifest.version != rounds:
            raise ConfigurationError(
                f"version={header.manifest.version} of task {header.task.name!r} is not its last, which is {rounds}: "
                "only that one never changes; ask in another way"
            )
        entry = keyed_entry(header.manifest)
        if entry_bytes(entry) > LARGEST_TABLE:
            raise ConfigurationError(
                f"table {entry.name!r} has {entry_bytes(entry)} bytes; retrieval by lattices is for at most "
                f"{LARGEST_TABLE}"
            )
        index = list(header.manifest.tables).index(entry)
        try:
            data = b"".join(self._store.chunks(model, index, CHUNK_BYTES))
        except FileNotFoundError:
            raise NotFound(str(UnknownModel(model))) from None
        table_from_bytes(entry, data)
        database = lwe.LweDatabase.of(
            written_rows(entry, data), keys=LATTICE_KEYS, seed=model, table_sha256=entry.sha256
        )
        return entry.name, database


def _busy() -> Busy:
    return Busy("the distributor makes the hint of this table; try again in a moment", *_RETRY_SECONDS)

"""The distributor's host: it receives models, stores them, and passes sealed requests to the enclave.

The host reads models and sizes, never keys or rows. Its log says which model was asked for and how many bytes went
where; what a device asks for stays ciphertext here.

Whole tables, what is left of them, and the blocks of them that changed are read from the disk, piece by piece. Tables
are public to everybody who knows their model's id. A request that resumes a download, or lists missing blocks,
reveals which version of the table its device has, and nothing else about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc
import numpy as np

from distributor.interface import Distributor, ModelHeader, UnknownModel, open_header
from distributor.model_store import KEEP_DAYS, Held, ModelStore, forgettable
from odp._system.recent import Recent
from odp._validate import identifier, one_of
from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.errors import ConfigurationError, OdpError, StateError
from odp.protocol.wire.tables import block_count, block_hashes, entry_bytes
from odp.signed.tables.table import is_table
from odp.signed.task import HASH_BYTES, check_length, parse_known
from odp.transport.backpressure import Backpressure
from odp.transport.call import hold_turn, progress
from odp.transport.channel import CHUNK_BYTES
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.transport.sweeping import DAY, SweepClock
from odp.v1 import common_pb2, distributor_pb2, distributor_pb2_grpc, population_pb2

#: Lists kept in memory, of at most 512 KiB each.
_MOST_LISTS = 64
_NUMBER = np.dtype("<u4")


def pieces(store: ModelStore, request: distributor_pb2.DownloadRequest, index: int, size: int) -> Iterator[bytes]:
    """The bytes that ``request`` asks for, of table ``index`` with ``size`` bytes, in pieces of at most 1 MiB; opened
    at once.

    Raises:
      ConfigurationError: ``first_chunk`` or ``blocks`` is not within the table, or both are given.
      FileNotFoundError: the model is not stored.
    """
    chunks = -(-size // CHUNK_BYTES)
    if request.first_chunk >= chunks:
        raise ConfigurationError(f"Expected first_chunk={request.first_chunk} to be below {chunks}")
    if not request.blocks:
        return store.chunks(request.model_sha256, index, CHUNK_BYTES, start=request.first_chunk * CHUNK_BYTES)
    if request.first_chunk:
        raise ConfigurationError("Expected first_chunk or blocks, not both")
    return store.blocks(request.model_sha256, index, _numbers(request.blocks, block_count(size)))


def _numbers(blocks: bytes, count: int) -> list[int]:
    if len(blocks) % _NUMBER.itemsize or len(blocks) > count * _NUMBER.itemsize:
        raise ConfigurationError(f"Expected at most {count} blocks of 4 bytes each, got {len(blocks)} bytes")
    numbers = np.frombuffer(blocks, dtype=_NUMBER).astype(np.int64)
    if not (np.diff(numbers) > 0).all() or numbers[-1] >= count:
        raise ConfigurationError(f"Expected blocks to be ascending and below {count}")
    return [int(number) for number in numbers]


class BlockLists:
    """Lists of blocks of stored tables, each computed once; thread-safe."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._lists: Recent[tuple[bytes, int], bytes] = Recent(_MOST_LISTS)

    def of(self, model: bytes, index: int) -> bytes:
        """The list of a table. Raises FileNotFoundError if the model is not stored."""
        return self._lists.get_or_make(
            (model, index), lambda: block_hashes(self._store.chunks(model, index, CHUNK_BYTES))
        )


NAME = "odp.v1.DistributorService"
ROLE = "distributor"
#: Calls at work at once, and in the queue. Streams may hold a thread for minutes, and whoever waits holds one too: the
#: threads are more than all of them together, so that whatever the fleet does, somebody answers that it is busy.
MAX_PUBLISHES = 2
MAX_DOWNLOADS, WAITING_DOWNLOADS = 8, 16
MAX_SELECTS, WAITING_SELECTS = 16, 16
WORKERS = MAX_PUBLISHES + MAX_DOWNLOADS + WAITING_DOWNLOADS + MAX_SELECTS + WAITING_SELECTS + 6

_LONGEST_NAME = 64
# How exactly the last use of a model is known: a file's time is written so often at most.
_USE_SECONDS = 3600.0


class Replication(Protocol):
    """Sends models to another party that must have them too."""

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError, before any table is received, if the model could not be sent on."""

    def ensure(self, header: ModelHeader) -> None:
        """Returns when the other party has the stored model, if it needs it. Raises ServiceError."""


class DistributorService:
    """Serves ``core``, and keeps ``store`` equal to its content; thread-safe.

    ``replication`` hands on models that somebody else must hold too, before their Publish is answered. ``keep_seconds``
    is how long a model that no open round can need is kept after it was asked for last, by ``clock``, seconds since
    1970.
    """

    def __init__(
        self,
        core: Distributor,
        store: ModelStore,
        log: Log,
        *,
        replication: Replication | None = None,
        keep_seconds: float = KEEP_DAYS * DAY,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._store, self._log = core, store, log
        self._lists = BlockLists(store)
        self._replication, self._keep_seconds, self._clock = replication, keep_seconds, clock
        self._sweeps = SweepClock(clock=clock, monotonic=monotonic)
        self._noted: dict[bytes, float] = {}
        # Held while disk and enclave change together, never while a stream is read.
        self._changing = threading.Lock()
        self._publishes = Backpressure(at_once=MAX_PUBLISHES, waiting=0, service=ROLE, what="publishes")
        self._downloads = Backpressure(at_once=MAX_DOWNLOADS, waiting=WAITING_DOWNLOADS, service=ROLE, what="downloads")
        self._selects = Backpressure(at_once=MAX_SELECTS, waiting=WAITING_SELECTS, service=ROLE, what="selections")

    def restore(self) -> None:
        """Installs every stored model again; the enclave verifies each. Call once, before serving.

        A folder that the enclave refuses is deleted: its content is not what its developer signed, or newer versions
        replaced it. Raises StateError where the disk cannot be read.
        """
        with self._changing:
            for model in self._store.models():
                try:
                    replaced = self._install(model)
                except (ConfigurationError, SignatureError) as error:
                    self._log.warning("model_dropped", model=short(model), reason=str(error))
                    self._store.remove(model)
                else:
                    self._log.event("model_restored", model=short(model))
                    for old in replaced:
                        self._store.remove(old)

    def publish(
        self, requests: Iterator[distributor_pb2.PublishRequest], context: grpc.ServicerContext
    ) -> distributor_pb2.PublishResponse:
        """Receives one model. Disk and enclave have it when this returns; neither has it when it raises.

        But for one case: where only the handing on failed, disk and enclave keep the model, and the same Publish again
        hands it on.
        """
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise ConfigurationError("the first message of a publish stream must be its header")
        header = open_header(first.header.task, first.header.model)
        with self._publishes.admitted(progress(context)):
            if self._replication is not None:
                self._replication.check(header)
            reply = distributor_pb2.PublishResponse(model_sha256=header.model_sha256)
            fields = {"model": short(header.model_sha256), "task": short(header.task_sha256)}
            if self._core.holds(header.model_sha256):
                self._note_use(header.model_sha256)
                self._replicate(header)
                self._log.event("publish_known", **fields)
                return reply
            self._core.require_capacity(first.header.task, first.header.model)
            self._log.event("publishing", version=header.manifest.version, bytes=header.total_bytes, **fields)
            try:
                with self._store.receive(
                    header.model_sha256, first.header.task, first.header.model, header.total_bytes
                ) as incoming:
                    for pieces in _tables(requests, header):
                        incoming.write_table(pieces)
                    with self._changing:
                        incoming.commit()
                        self._note_use(header.model_sha256)
                        self._install_or_remove(header.model_sha256)
            except (grpc.RpcError, OdpError) as error:
                # A cut stream may also look like one that ended early: both leave nothing.
                reason = str(error) if isinstance(error, OdpError) else "the stream was interrupted"
                self._log.warning("publish_failed", reason=reason, **fields)
                raise
            self._replicate(header)
            self._log.event("published", **fields)
            return reply

    def select(self, request: distributor_pb2.SelectRequest) -> distributor_pb2.SelectResponse:
        """Passes sealed keys to the enclave and sealed rows back."""
        model = _checked_id(request.model_sha256)
        try:
            with self.selection():
                sealed_rows = self._core.select(model, request.sealed_keys)
        except UnknownModel as error:
            raise NotFound(str(error)) from None
        self._note_use(model)
        self._log.event("select", model=short(model), bytes_in=len(request.sealed_keys), bytes_out=len(sealed_rows))
        return distributor_pb2.SelectResponse(sealed_rows=sealed_rows)

    def download(
        self, request: distributor_pb2.DownloadRequest, context: grpc.ServicerContext
    ) -> Iterator[distributor_pb2.DownloadResponse]:
        """Checks the request at once; the iterator reads the requested bytes, in chunks of at most 1 MiB."""
        index, size = self._table(request.model_sha256, request.table)
        hold_turn(self._downloads, context)
        try:
            chunks = pieces(self._store, request, index, size)
        except FileNotFoundError:
            raise NotFound(str(UnknownModel(request.model_sha256))) from None
        self._log.event("download", model=short(request.model_sha256), table=request.table)
        return (distributor_pb2.DownloadResponse(chunk=chunk) for chunk in chunks)

    def list_blocks(self, request: distributor_pb2.ListBlocksRequest) -> distributor_pb2.ListBlocksResponse:
        """The hashes of a table's blocks."""
        index, _ = self._table(request.model_sha256, request.table)
        with self._downloads.admitted():
            try:
                return distributor_pb2.ListBlocksResponse(sha256=self._lists.of(request.model_sha256, index))
            except FileNotFoundError:
                raise NotFound(str(UnknownModel(request.model_sha256))) from None

    def selection(self) -> contextlib.AbstractContextManager[None]:
        """Admission of one selection by any method. Raises Busy."""
        return self._selects.admitted()

    def sweep(self) -> tuple[bytes, ...]:
        """Deletes the models that ``distributor.model_store`` releases; returns their ids. Raises StateError."""
        with self._changing:
            now, models = self._sweeps.now(), map(self._held, self._store.models())
            doomed = forgettable(models, now=now, seconds=self._keep_seconds)
            for model in doomed:
                self._forget(model)
        return doomed

    def forget_task(self, request: distributor_pb2.ForgetTaskRequest) -> distributor_pb2.ForgetTaskResponse:
        """Deletes all models of a task whose developer ended it. Idempotent.

        Raises SignatureError, ConfigurationError where the order is not that developer's.
        """
        order = parse_known(population_pb2.AbandonOrder(), request.order, "order that ends a task")
        with self._changing:
            for model in self._store.models():
                header = self.header(model)
                if header.task_sha256 == order.task_sha256:
                    verify(header.task.developer_key, request.signature, domains.ABANDON, request.order)
                    self._forget(model)
        return distributor_pb2.ForgetTaskResponse()

    def _forget(self, model: bytes) -> None:
        """Deletes a model, on disk first: after a kill in between, the program restarts without it."""
        self._store.remove(model)
        self._core.forget(model)
        self._noted.pop(model, None)
        self._log.event("model_forgotten", model=short(model))

    def require(self, model: bytes) -> None:
        """Records a use of a model. Raises NotFound unless disk and core have it."""
        if not self._core.holds(model):
            raise NotFound(str(UnknownModel(model)))
        self._note_use(model)

    def header(self, model: bytes) -> ModelHeader:
        """The checked header of a stored model. Raises ConfigurationError if its folder is incomplete."""
        stored = self._store.load(model)
        return open_header(stored.task, stored.manifest)

    def _table(self, model: bytes, name: str) -> tuple[int, int]:
        """Index and size of a table of an available model."""
        self.require(_checked_id(model))
        if len(name) > _LONGEST_NAME:
            raise ConfigurationError(f"Expected table={name[:16]!r}.. to have at most {_LONGEST_NAME} characters")
        identifier(table=name)
        tables = self._manifest(model).tables
        names = [table.name for table in tables]
        one_of(names, table=name)
        index = names.index(name)
        return index, entry_bytes(tables[index])

    def _held(self, model: bytes) -> Held:
        header = self.header(model)
        last = None if is_table(header.task) else len(algorithm_for(header.task).planned_releases())
        return Held(model, header.task_sha256, header.manifest.version, last, self._store.used(model))

    def _note_use(self, model: bytes) -> None:
        now = self._clock()
        if not 0 <= now - self._noted.get(model, float("-inf")) < _USE_SECONDS:
            self._noted[model] = now
            self._store.note_use(model, now)

    def _replicate(self, header: ModelHeader) -> None:
        if self._replication is not None:
            self._replication.ensure(header)

    def _manifest(self, model: bytes) -> common_pb2.ModelManifest:
        return common_pb2.ModelManifest.FromString(self._store.load(model).manifest.manifest)

    def _install_or_remove(self, model: bytes) -> None:
        try:
            replaced = self._install(model)
        except BaseException:
            self._store.remove(model)
            raise
        for old in replaced:
            self._log.event("model_replaced", model=short(old))
            with contextlib.suppress(StateError):  # the new model is safe; a restart deletes the old one
                self._store.remove(old)

    def _install(self, model: bytes) -> tuple[bytes, ...]:
        stored = self._store.load(model)
        header = open_header(stored.task, stored.manifest)
        if header.model_sha256 != model or len(stored.tables) != len(header.table_bytes):
            raise ConfigurationError(f"the folder of model {short(model)} has another model in it")
        return self._core.install_chunks(stored.task, stored.manifest, self._store.contents(stored, CHUNK_BYTES))


def distributor_servicer(service: DistributorService, log: Log) -> distributor_pb2_grpc.DistributorServiceServicer:
    """``service`` as gRPC methods, its errors as statuses."""

    return servicer(
        distributor_pb2_grpc.DistributorServiceServicer,
        log,
        {
            "Select": lambda request, _: service.select(request),
            "Download": service.download,
            "ListBlocks": lambda request, _: service.list_blocks(request),
        },
    )


def _checked_id(model: bytes) -> bytes:
    check_length("model_sha256", model, HASH_BYTES)
    return model


def _tables(requests: Iterator[distributor_pb2.PublishRequest], header: ModelHeader) -> Iterator[Iterator[memoryview]]:
    """The pieces of each table in turn, checked against the manifest; read each table to its end before the next.

    Raises ConfigurationError where the stream holds fewer or more bytes than declared, a chunk is empty or above 1 MiB,
    or a table has another SHA-256.
    """
    chunks = _chunks(requests, header)
    rest = memoryview(b"")

    def pieces_of(size: int, sha256: bytes, name: str) -> Iterator[memoryview]:
        nonlocal rest
        digest = hashlib.sha256()
        left = size
        while left:
            chunk = rest or next(chunks)
            piece, rest = chunk[:left], chunk[left:]
            left -= len(piece)
            digest.update(piece)
            yield piece
        if digest.digest() != sha256:
            raise ConfigurationError(f"table {name!r}: its bytes do not have the manifest's SHA-256")

    for table, size in zip(header.manifest.tables, header.table_bytes, strict=True):
        yield pieces_of(size, table.sha256, table.name)
    if rest or next(requests, None) is not None:
        raise ConfigurationError(f"the publish stream holds more than the {header.total_bytes} bytes of the manifest")


def _chunks(requests: Iterator[distributor_pb2.PublishRequest], header: ModelHeader) -> Iterator[memoryview]:
    for request in requests:
        if request.WhichOneof("part") != "chunk" or not 0 < len(request.chunk) <= CHUNK_BYTES:
            raise ConfigurationError(f"Expected chunks of 1 to {CHUNK_BYTES} bytes after the publish header")
        yield memoryview(request.chunk)
    raise ConfigurationError(f"the publish stream ended before the {header.total_bytes} bytes of the manifest")

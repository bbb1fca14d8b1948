"""TableService: the developer's server signs public tables and announces them to devices.

The bytes of a table pass through to the distributor; the server keeps signatures alone. A version is signed first,
published, and announced last, so that devices never learn of one that the distributor does not have.

::

    tables/<name>       serialized TableRecord, replaced atomically; or a row, where servers share a database
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from odp import _validate
from odp._system.files.durability import Health
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import state_errors, write_atomically
from odp.crypto.signing import SigningKey
from odp.errors import Busy, ConfigurationError, StateError
from odp.protocol.wire.encoding import encoding_of
from odp.signed.tables.table import OpenedTable, check_shape, open_version, sign_table, sign_version
from odp.signed.task import HASH_BYTES, MOST_ITEMS, check_length, model_sha256, task_sha256
from odp.transport.backpressure import Backpressure, Progress
from odp.transport.call import progress
from odp.transport.channel import CHUNK_BYTES
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.v1 import common_pb2, table_pb2, table_pb2_grpc
from server.clients import Distributor
from server.operator_token import OperatorToken

NAME = "odp.v1.TableService"
FOLDER = "tables"
#: Names that one server keeps.
MOST_TABLES = 10_000

_AT_ONCE, _WAITING = 2, 8


class TableRecords(Protocol):
    """The store of serialized TableRecords. ``server.storage.log_rows.LogRows`` is one, for servers that share it."""

    def table(self, name: str) -> bytes | None:
        """The record of a public table."""

    def set_table(self, name: str, record: bytes, *, before: bytes | None) -> bool:
        """Stores the record of a public table; False where it is not ``before`` any more."""

    def count_tables(self) -> int:
        """Public tables with a record."""

    def where(self, name: str) -> str:
        """Where the record of a table lies, for the operator."""


class TableFiles:
    """Implements ``TableRecords`` in a folder, for one program. Every method raises StateError."""

    def __init__(self, folder: Path, *, health: Health | None = None) -> None:
        """Creates ``folder`` if it is missing. Raises StateError."""
        self._folder = folder
        self._health = Health() if health is None else health
        self._lock = threading.Lock()
        with state_errors(folder):
            make_folders(folder)

    def table(self, name: str) -> bytes | None:
        with state_errors(self._folder):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def set_table(self, name: str, record: bytes, *, before: bytes | None) -> bool:
        with self._lock:
            if self.table(name) != before:
                return False
            with state_errors(self._folder), self._health:
                write_atomically(self._folder / name, record)
            return True

    def count_tables(self) -> int:
        with state_errors(self._folder):
            return sum(1 for _ in self._folder.iterdir())

    def where(self, name: str) -> str:
        return str(self._folder / name)


class TableBook:
    """The signed versions of every table of a server, in ``records``; thread-safe."""

    def __init__(self, records: TableRecords, key: SigningKey) -> None:
        self._records = records
        self._key = key
        self._lock = threading.Lock()

    def sign(self, request: table_pb2.TableHeader) -> table_pb2.TableRecord:
        """Signs the next version; the content that was signed last gets its version again.

        Raises:
          ConfigurationError: a field is out of its range, or the name is taken by a table of other requests.
          StateError: the folder cannot be used.
        """
        check_shape(request.name, request.rows_per_request)
        _validate.integer(low=1, high=MOST_ITEMS, rows=request.rows)
        _validate.integer(low=1, high=2**16, width=request.width)
        encoding_of(request.encoding)
        check_length("sha256", request.sha256, HASH_BYTES)
        definition = sign_table(request.name, request.rows_per_request, self._key)
        entry = common_pb2.TableManifest(
            name=request.name,
            rows=request.rows,
            width=request.width,
            sha256=request.sha256,
            keyed=True,
            encoding=request.encoding,
        )
        with self._lock:
            stored, last_record = self._read(request.name)
            version = 0
            if last_record is not None:
                last = self._opened(last_record, request.name, last_record.signed)
                if last_record.definition != definition:
                    raise ConfigurationError(
                        f"Expected rows_per_request={request.rows_per_request} to be {last.rows_per_request}, as in "
                        f"the versions of table {request.name!r} before; give the other table another name"
                    )
                if last.entry == entry:
                    return last_record
                version = last.version + 1
            record = table_pb2.TableRecord(definition=definition)
            if last_record is not None and last_record.HasField("announced"):
                record.announced.CopyFrom(last_record.announced)
            record.signed.CopyFrom(sign_version(definition, version, entry, self._key))
            self._write(request.name, record, before=stored)
            return record

    def announce(self, name: str, model: bytes) -> OpenedTable:
        """Announces the version that was signed last to devices. Idempotent.

        Raises:
          NotFound: no table of this name was signed.
          ConfigurationError: ``model`` is not the version that was signed last.
          StateError: the folder cannot be used.
        """
        _validate.identifier(name=name)
        check_length("model_sha256", model, HASH_BYTES)
        with self._lock:
            stored, record = self._read(name)
            if record is None:
                raise NotFound(f"table {name!r} was never signed here; publish it")
            opened = self._opened(record, name, record.signed)
            if opened.model_sha256 != model:
                raise ConfigurationError(
                    f"Expected model_sha256={short(model)} to be {short(opened.model_sha256)}, the version of table "
                    f"{name!r} that was signed last; publish again"
                )
            if record.announced != record.signed:
                record.announced.CopyFrom(record.signed)
                self._write(name, record, before=stored)
            return opened

    def newest(self, name: str) -> table_pb2.TableRecord:
        """The record of an announced table. Raises NotFound, ConfigurationError, StateError."""
        _validate.identifier(name=name)
        _, record = self._read(name)
        if record is None or not record.HasField("announced"):
            raise NotFound(f"table {name!r} was not published here; `odp table publish` does that")
        return record

    def _opened(self, record: table_pb2.TableRecord, name: str, manifest: common_pb2.SignedManifest) -> OpenedTable:
        try:
            return open_version(record.definition, manifest, name=name)
        except ConfigurationError as error:
            raise self._damaged(name) from error

    def _read(self, name: str) -> tuple[bytes | None, table_pb2.TableRecord | None]:
        if (stored := self._records.table(name)) is None:
            return None, None
        try:
            return stored, table_pb2.TableRecord.FromString(stored)
        except DecodeError as error:
            raise self._damaged(name) from error

    def _write(self, name: str, record: table_pb2.TableRecord, *, before: bytes | None) -> None:
        if before is None and self._records.count_tables() >= MOST_TABLES:
            raise ConfigurationError(
                f"this server has {MOST_TABLES} tables already; remove some, as {self._records.where(name)}"
            )
        if not self._records.set_table(name, record.SerializeToString(), before=before):
            raise Busy(f"another server publishes table {name!r} at this moment; publish again", 1.0, 2.0)

    def _damaged(self, name: str) -> StateError:
        return StateError(f"{self._records.where(name)} is damaged; restore it from a backup, or remove it")


class TablePublisher:
    """Publishes tables: ``book`` signs them, the distributor stores them, and the announcement comes last.

    ``address_of`` gives the address of a distributor that holds those of a definition (its SHA-256).
    """

    def __init__(
        self, book: TableBook, distributor: Distributor, *, address_of: Callable[[bytes], str], log: Log
    ) -> None:
        self._book = book
        self._distributor = distributor
        self._address_of = address_of
        self._log = log
        # A table can have a GiB: what passes through this program is a few chunks of it.
        self._backpressure = Backpressure(at_once=_AT_ONCE, waiting=_WAITING, service="server", what="tables")

    def publish(
        self, requests: Iterator[table_pb2.PublishTableRequest], *, progress: Progress | None = None
    ) -> table_pb2.PublishedTable:
        """Publishes the next version of a table, from its stream, whose ``progress`` its turn hangs on.

        Raises:
          ConfigurationError: the stream is no header and the bytes that it names, or as ``TableBook.sign``.
          Busy: too many tables come in at once.
          ServiceError, ServiceUnavailable: the distributor does not take it; publishing again finishes it.
          StateError: the folder cannot be used.
        """
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise ConfigurationError("the first message of a table's stream must be its header")
        with self._backpressure.admitted(progress):
            record = self._book.sign(first.header)
            self._distributor.publish(record.definition, record.signed, _chunks(requests))
            opened = self._book.announce(first.header.name, model_sha256(record.signed))
        self._log.event("table_published", name=opened.name, version=opened.version)
        return self._published(record, record.signed)

    def newest(self, name: str) -> table_pb2.PublishedTable:
        """The newest announced version. Raises as ``TableBook.newest``."""
        record = self._book.newest(name)
        return self._published(record, record.announced)

    def _published(
        self, record: table_pb2.TableRecord, manifest: common_pb2.SignedManifest
    ) -> table_pb2.PublishedTable:
        return table_pb2.PublishedTable(
            definition=record.definition,
            manifest=manifest,
            distributor_address=self._address_of(task_sha256(record.definition)),
        )


def _chunks(requests: Iterator[table_pb2.PublishTableRequest]) -> Iterator[bytes]:
    for request in requests:
        if request.WhichOneof("part") != "chunk" or not 0 < len(request.chunk) <= CHUNK_BYTES:
            raise ConfigurationError(f"Expected chunks of 1 to {CHUNK_BYTES} bytes after the table's header")
        yield request.chunk


def table_servicer(
    publisher: TablePublisher, *, operator: OperatorToken, log: Log
) -> table_pb2_grpc.TableServiceServicer:
    """``publisher`` as gRPC methods; publishing is the operator's."""

    def publish(
        requests: Iterator[table_pb2.PublishTableRequest], context: grpc.ServicerContext
    ) -> table_pb2.PublishTableResponse:
        operator.require(context)
        return table_pb2.PublishTableResponse(table=publisher.publish(requests, progress=progress(context)))

    def newest(request: table_pb2.GetTableRequest, _: object) -> table_pb2.GetTableResponse:
        return table_pb2.GetTableResponse(table=publisher.newest(request.name))

    return servicer(table_pb2_grpc.TableServiceServicer, log, {"PublishTable": publish, "GetTable": newest})

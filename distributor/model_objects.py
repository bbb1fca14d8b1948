"""The host's store of models as objects, as in an S3 bucket: each complete or absent.

::

    models/<model_sha256 hex>           what a model is: its task, its manifest, and where its tables are
    data/<upload>/0000.f32 ..           the tables in the manifest's order
    used/<model_sha256 hex>             when it was used last, seconds since 1970

The tables come first, then the object that names them: without it they are leftovers of a killed program, which the
next start deletes. A removal deletes that object first. The keys belong to one distributor.

An object is whole or absent, and never changes (``S3Objects``).
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

from google.protobuf.message import DecodeError

from distributor.model_store import StoredModel
from odp.errors import ConfigurationError, DiskFull, StateError
from odp.protocol.wire.tables import BLOCK_BYTES
from odp.storage.s3 import S3Objects
from odp.v1 import common_pb2, distributor_pb2

_NAME = re.compile(r"models/([0-9a-f]{64})")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_MOST_TABLES = 10_000
#: The largest object of S3.
_LARGEST = 5 * 2**40
_TOGETHER = 2**20 // BLOCK_BYTES
_PIECE = 2**20


class _Data(NamedTuple):
    upload: str
    tables: int


class ModelObjects:
    """Implements ``distributor.model_store.ModelStore`` with ``objects``. Raises StateError."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._readers: Counter[str] = Counter()
        # Uploads of models that are gone, which somebody still reads.
        self._doomed: dict[str, list[str]] = {}
        # Where the tables of models are; a model never changes.
        self._known: dict[bytes, _Data] = {}
        self._remove_leftovers()

    def models(self) -> tuple[bytes, ...]:
        matches = (_NAME.fullmatch(key) for key in self._objects.keys("models/"))
        return tuple(bytes.fromhex(match[1]) for match in matches if match is not None)

    def load(self, model: bytes) -> StoredModel:
        try:
            record, data = self._record(model)
        except FileNotFoundError as error:
            raise ConfigurationError(f"model {model.hex()[:12]} is not stored") from error
        names = tuple(f"{index:04d}.f32" for index in range(data.tables))
        return StoredModel(model, record.task, record.model, names)

    def receive(
        self, model: bytes, task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, total_bytes: int
    ) -> IncomingObjects:
        if total_bytes > _LARGEST:
            raise DiskFull(f"a model of {total_bytes:,} bytes does not fit an object store: at most {_LARGEST:,} do")
        header = distributor_pb2.PublishHeader(task=task, model=manifest)
        return IncomingObjects(self._objects, f"models/{model.hex()}", header)

    def remove(self, model: bytes) -> None:
        try:
            _, data = self._record(model)
        except FileNotFoundError:
            return
        with self._lock:
            self._known.pop(model, None)
        self._objects.delete([f"models/{model.hex()}"])
        self._objects.delete([f"used/{model.hex()}"])
        tables = [_table(data.upload, index) for index in range(data.tables)]
        with self._lock:
            if self._readers[data.upload]:
                self._doomed[data.upload] = tables
                return
        self._objects.delete(tables)

    def used(self, model: bytes) -> float:
        try:
            self._data(model)
            try:
                return float(b"".join(self._objects.read(f"used/{model.hex()}")))
            except FileNotFoundError:
                return 0.0
        except (FileNotFoundError, ValueError) as error:
            raise StateError(f"model {model.hex()[:12]} is not stored, or its last use is not a number") from error

    def note_use(self, model: bytes, now: float) -> None:
        with contextlib.suppress(StateError, FileNotFoundError):
            self._data(model)
            self._objects.put(f"used/{model.hex()}", [repr(now).encode()])

    def contents(self, stored: StoredModel, size: int) -> Iterator[bytes]:
        for index in range(len(stored.tables)):
            try:
                yield from self.chunks(stored.model_sha256, index, size)
            except FileNotFoundError as error:
                raise StateError(f"model {stored.model_sha256.hex()[:12]} lost a table; publish it again") from error

    def chunks(self, model: bytes, index: int, size: int, *, start: int = 0) -> Iterator[bytes]:
        data, key = self._open(model, index)
        return self._reading(data.upload, lambda: self._objects.read(key, start=start, size=size))

    def blocks(self, model: bytes, index: int, numbers: Sequence[int]) -> Iterator[bytes]:
        data, key = self._open(model, index)

        def read() -> Iterator[bytes]:
            for first in range(0, len(numbers), _TOGETHER):
                yield b"".join(
                    piece
                    for number in numbers[first : first + _TOGETHER]
                    for piece in self._objects.read(key, start=number * BLOCK_BYTES, length=BLOCK_BYTES)
                )

        return self._reading(data.upload, read)

    def _open(self, model: bytes, index: int) -> tuple[_Data, str]:
        data = self._data(model)
        if not 0 <= index < data.tables:
            raise FileNotFoundError(f"model {model.hex()[:12]} has no table {index}")
        return data, _table(data.upload, index)

    def _reading(self, upload: str, read: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """What ``read`` gives; until its end the tables stay, whoever removes their model."""
        with self._lock:
            self._readers[upload] += 1
        return iter(_Reader(read, lambda: self._read(upload)))

    def _read(self, upload: str) -> None:
        with self._lock:
            self._readers[upload] -= 1
            doomed = self._doomed.pop(upload, None) if not self._readers[upload] else None
        if doomed is not None:
            self._objects.delete(doomed)

    def _data(self, model: bytes) -> _Data:
        """As ``_record``, from memory where it was read before."""
        with self._lock:
            data = self._known.get(model)
        if data is None:
            _, data = self._record(model)
            with self._lock:
                self._known[model] = data
        return data

    def _record(self, model: bytes) -> tuple[distributor_pb2.PublishHeader, _Data]:
        """Raises FileNotFoundError where there is none, ConfigurationError where it is not what a commit wrote."""
        raw = b"".join(self._objects.read(f"models/{model.hex()}"))
        upload, tables, header = raw[:32], raw[32:36], raw[36:]
        try:
            record = distributor_pb2.PublishHeader.FromString(header)
            data = _Data(upload.decode("ascii"), int.from_bytes(tables, "big"))
        except (DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the object of model {model.hex()[:12]} is corrupt") from error
        if not _UPLOAD.fullmatch(data.upload) or data.tables > _MOST_TABLES:
            raise ConfigurationError(f"the object of model {model.hex()[:12]} is corrupt")
        return record, data

    def _remove_leftovers(self) -> None:
        blocks = set()
        for model in self.models():
            with contextlib.suppress(ConfigurationError):
                blocks.add(self._record(model)[1].upload)
        self._objects.delete([key for key in self._objects.keys("data/") if key.split("/")[1] not in blocks])


class _Reader:
    """Gives what ``read`` gives, and calls ``done`` once: at the end, at an error, or when nobody holds it any more."""

    def __init__(self, read: Callable[[], Iterator[bytes]], done: Callable[[], None]) -> None:
        self._done = done
        self._is_done = False
        try:
            self._pieces = read()
        except BaseException:
            self._finish()
            raise

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except BaseException:
            self._finish()
            raise

    def _finish(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._done()

    def __del__(self) -> None:
        with contextlib.suppress(StateError):
            self._finish()


class IncomingObjects:
    """Implements ``distributor.model_store.IncomingModel``."""

    def __init__(self, objects: S3Objects, key: str, header: distributor_pb2.PublishHeader) -> None:
        self._objects, self._key, self._header = objects, key, header
        self._upload = uuid.uuid4().hex
        self._tables = 0
        # Whether an object may name the tables: then only a start, which can look, deletes them.
        self._may_be_named = False

    def write_table(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._objects.put(_table(self._upload, self._tables), pieces)
        self._tables += 1

    def commit(self) -> None:
        if self._objects.keys(self._key):
            return
        record = self._upload.encode() + self._tables.to_bytes(4, "big") + self._header.SerializeToString()
        self._may_be_named = True
        self._objects.put(self._key, [record])

    def __enter__(self) -> IncomingObjects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._may_be_named:
            with contextlib.suppress(StateError):  # the next start removes them
                self._objects.delete([_table(self._upload, index) for index in range(self._tables)])


def _table(upload: str, index: int) -> str:
    # By place, not by name: a name of a manifest never becomes part of a key.
    return f"data/{upload}/{index:04d}.f32"

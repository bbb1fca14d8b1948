"""The distributor's enclave: verified model tables, and rows of them by encrypted keys.

What leaves the enclave about a request is one ciphertext whose length depends on the task and the model alone, or one
refusal that is the same for every malformed request. Messages and bytes come in and go out; nothing here reads files,
opens sockets or logs. Which memory is touched does not depend on the keys of a request (``distributor.scan``), unless
the enclave's policy says ``"select":"direct"``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from distributor.interface import ModelHeader, UnknownModel, open_header
from distributor.scan import ScannedTable, in_range
from odp.crypto import hpke
from odp.crypto.domains import select_info, selected_aad
from odp.errors import ConfigurationError, OdpError, StateError
from odp.protocol.wire.tables import entry_row_bytes, keyed_entry, table_from_bytes
from odp.trust.enclave.policy import Selection
from odp.v1 import common_pb2, distributor_pb2

#: Versions of one task that stay selectable: a device that checked in just before a release still finds its model.
KEPT_VERSIONS = 3
#: Contents that a developer may sign for one version: all are kept, each under its own id.
SAME_VERSION = 4
#: Memory for models, all tasks together.
CAPACITY_BYTES = 8 * 2**30
#: Of one developer's key: its part of that memory, and models of all its tasks and tables.
DEVELOPER_SHARE = 0.5
DEVELOPER_MODELS = 256
#: Maximum number of waiting requests that one pass over a table serves.
BATCH = 8

_REPLY_KEY_BYTES = 32
_WORD_BYTES = 4
# One key encrypts one reply, so that a constant nonce never meets the same key with another plaintext: models are
# immutable, and a replayed request gets the same bytes again.
_NONCE = bytes(12)
_KEY_DTYPE = np.dtype("<u4")
_MALFORMED = "malformed select request"


@dataclass(frozen=True)
class _Model:
    header: ModelHeader
    table: str  # name of the keyed table
    rows: npt.NDArray[np.float32]  # [rows, words] of it as written, filled up to words of 4 bytes: not always numbers
    row_bytes: int  # of each of them as written
    scanned: ScannedTable | None  # the same; None where nothing can be selected
    slices: int  # keys per request
    sealed_bytes: int | None  # length of every well-formed request; without a keyed table none is well formed
    dense: tuple[bytes, ...]

    @property
    def version(self) -> int:
        return self.header.manifest.version


@dataclass(frozen=True)
class _Question:
    """An opened request: ``keys`` uint32 [slices] are in range."""

    keys: npt.NDArray[np.uint32]
    reply_key: bytes


class DistributorCore:
    """Holds published models and answers selections; thread-safe.

    ``key`` is the enclave's private HPKE key, whose public half its evidence carries. ``select`` is the policy's.
    ``kept_versions`` counts distinct versions per task; a version that was published with several contents keeps them
    all.
    """

    def __init__(
        self,
        key: hpke.HpkeKey,
        *,
        select: Selection = "oblivious",
        kept_versions: int = KEPT_VERSIONS,
        capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:
        self._key = key
        self._oblivious = select == "oblivious"
        self._kept_versions, self._capacity_bytes = kept_versions, capacity_bytes
        self._lock = threading.Lock()
        self._models: dict[bytes, _Model] = {}

    def install(
        self,
        signed_task: common_pb2.SignedTask,
        signed_manifest: common_pb2.SignedManifest,
        tables: Mapping[str, bytes | bytearray],
    ) -> tuple[bytes, ...]:
        """Verifies a model and makes it selectable; returns the ids of the models that it replaced.

        ``tables`` holds each declared table's bytes. Idempotent.

        Raises SignatureError and ConfigurationError as ``open_header``; ConfigurationError also where a table is
        missing, undeclared, of another length or hash, or holds a value that is not finite, and where the version is
        older than those kept, was published with too many contents, or is beyond what its developer may have here;
        StateError where the enclave's memory is used up.
        """
        header = open_header(signed_task, signed_manifest)
        with self._lock:
            if header.model_sha256 in self._models:
                return ()
        self.check_capacity(header)
        model = _verified(header, tables)
        with self._lock:
            self._check_capacity(header)
            self._models[header.model_sha256] = model
            replaced = self._outdated(header.task_sha256)
            for model_id in replaced:
                del self._models[model_id]
        return replaced

    def begin(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> Upload:
        """Starts a model that comes in pieces. Raises as ``install`` for its header and for lack of memory."""
        self.check_capacity(open_header(signed_task, signed_manifest))
        return Upload(self, signed_task, signed_manifest)

    def install_chunks(
        self,
        signed_task: common_pb2.SignedTask,
        signed_manifest: common_pb2.SignedManifest,
        chunks: Iterable[bytes],
    ) -> tuple[bytes, ...]:
        """As ``install``, of the tables' bytes one after the other in the manifest's order."""
        upload = self.begin(signed_task, signed_manifest)
        for chunk in chunks:
            upload.add(chunk)
        return upload.finish()

    def holds(self, model: bytes) -> bool:
        """Whether the model of this id is available for selections."""
        with self._lock:
            return model in self._models

    def models(self) -> tuple[bytes, ...]:
        """The ids of all models held."""
        with self._lock:
            return tuple(self._models)

    def check_capacity(self, header: ModelHeader) -> None:
        """Raises, before any table is sent, the errors of ``install`` for lack of memory: see there."""
        with self._lock:
            self._check_capacity(header)

    def require_capacity(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> None:
        """As ``check_capacity`` for an unopened header. Raises as ``open_header`` too."""
        self.check_capacity(open_header(signed_task, signed_manifest))

    def forget(self, model_sha256: bytes) -> None:
        """Drops a model. Unknown ids are ignored, so that a host can repeat it after a crash."""
        with self._lock:
            self._models.pop(model_sha256, None)

    def select(self, model_sha256: bytes, sealed_keys: bytes) -> bytes:
        """Answers ``SelectResponse.sealed_rows`` for ``SelectRequest.sealed_keys``.

        Its length follows from the task and the model alone. Raises UnknownModel, and ConfigurationError with one and
        the same message for everything else: not decryptable under this model, of another length, another table,
        another number of keys, a key out of range, or a reply key of another length.
        """
        (answer,) = self.select_many([(model_sha256, sealed_keys)])
        if isinstance(answer, OdpError):
            raise answer
        return answer

    def select_many(self, requests: Sequence[tuple[bytes, bytes]]) -> list[bytes | OdpError]:
        """``select`` of each (model, sealed keys): the answer, or the error that ``select`` would raise.

        The requests of one model share passes over its table; one that is refused changes nothing for the others.
        """
        answers: list[bytes | OdpError] = [UnknownModel(model_id) for model_id, _ in requests]
        for model_id in dict.fromkeys(model_id for model_id, _ in requests):
            with self._lock:
                model = self._models.get(model_id)
            if model is not None:
                places = [place for place, (requested, _) in enumerate(requests) if requested == model_id]
                rows = self._answers(model, [requests[place][1] for place in places])
                for place, answer in zip(places, rows, strict=True):
                    answers[place] = answer
        return answers

    def _answers(self, model: _Model, sealed: Sequence[bytes]) -> list[bytes | OdpError]:
        opened = [self._opened(model, sealed_keys) for sealed_keys in sealed]
        keys = [question.keys for question in opened if isinstance(question, _Question)]
        rows = iter(np.split(self._rows(model, np.concatenate(keys)), len(keys)) if keys else ())
        return [
            _sealed(model, next(rows), question.reply_key) if isinstance(question, _Question) else question
            for question in opened
        ]

    def _opened(self, model: _Model, sealed_keys: bytes) -> _Question | ConfigurationError:
        """The opened request. Every refusal is the same, and does not reveal the step at which a request failed."""
        refused = ConfigurationError(_MALFORMED)
        if len(sealed_keys) != model.sealed_bytes:
            return refused
        try:
            request = distributor_pb2.SelectKeys.FromString(
                self._key.open(sealed_keys, select_info(model.header.model_sha256))
            )
        except (OdpError, DecodeError, ValueError):
            return refused
        keys = request.keys
        if (
            request.table != model.table
            or len(keys) != model.slices * _KEY_DTYPE.itemsize
            or len(request.reply_key) != _REPLY_KEY_BYTES
        ):
            return refused
        indices = np.frombuffer(keys, dtype=_KEY_DTYPE)
        return _Question(indices, request.reply_key) if in_range(indices, len(model.rows)) else refused

    def _rows(self, model: _Model, keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
        return model.scanned.take(keys) if self._oblivious and model.scanned is not None else model.rows[keys]

    def _check_capacity(self, header: ModelHeader) -> None:
        if header.model_sha256 in self._models:
            return
        version = header.manifest.version
        versions = [model.version for model in self._of_task(header.task_sha256).values()]
        newest = self._newest(versions)
        if len(newest) == self._kept_versions and version < newest[-1]:
            raise ConfigurationError(
                f"Expected version={version} to be at least {newest[-1]}, the oldest one kept here"
            )
        if versions.count(version) >= SAME_VERSION:
            raise ConfigurationError(
                f"version={version} was published with {SAME_VERSION} contents already; publish the next version"
            )
        self._check_quota(header)
        held = sum(model.header.total_bytes for model in self._models.values())
        if held + header.total_bytes > self._capacity_bytes:
            raise StateError(
                f"the distributor holds {held} of {self._capacity_bytes} bytes of models, no room for "
                f"{header.total_bytes} more; stop it and delete models of finished tasks from its state folder"
            )

    def _check_quota(self, header: ModelHeader) -> None:
        key, most = header.task.developer_key, int(DEVELOPER_SHARE * self._capacity_bytes)
        # What the new version replaces makes room for it: a task that keeps to its versions never meets this limit.
        versions = {model.version for model in self._of_task(header.task_sha256).values()}
        staying = self._newest([header.manifest.version, *versions])
        of_developer = [
            model.header
            for model in self._models.values()
            if model.header.task.developer_key == key
            and (model.header.task_sha256 != header.task_sha256 or model.version in staying)
        ]
        held = sum(header_of_model.total_bytes for header_of_model in of_developer)
        if len(of_developer) >= DEVELOPER_MODELS or held + header.total_bytes > most:
            raise ConfigurationError(
                f"the developer {key.hex()[:16]}.. has {len(of_developer)} models of {held} bytes here, of at "
                f"most {DEVELOPER_MODELS} models and {most} bytes; end tasks that you no longer need"
            )

    def _outdated(self, task: bytes) -> tuple[bytes, ...]:
        models = self._of_task(task)
        newest = self._newest([model.version for model in models.values()])
        return tuple(model_id for model_id, model in models.items() if model.version not in newest)

    def _newest(self, versions: Sequence[int]) -> list[int]:
        return sorted(set(versions), reverse=True)[: self._kept_versions]

    def _of_task(self, task: bytes) -> dict[bytes, _Model]:
        return {model_id: model for model_id, model in self._models.items() if model.header.task_sha256 == task}


class Upload:
    """A model in transfer to the enclave. Not thread-safe."""

    def __init__(
        self, core: DistributorCore, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest
    ) -> None:
        self._core = core
        self._signed = signed_task, signed_manifest
        header = open_header(signed_task, signed_manifest)
        self._left = header.total_bytes
        names = [table.name for table in header.manifest.tables]
        self._wanted = list(zip(names, header.table_bytes, strict=True))
        self._tables: dict[str, bytearray] = {name: bytearray() for name in names}

    def add(self, chunk: bytes) -> None:
        """Adds the next bytes. Raises ConfigurationError if the manifest declares fewer."""
        self._left -= len(chunk)
        if self._left < 0:
            raise ConfigurationError("the tables hold more bytes than their manifest declares")
        rest = memoryview(chunk)
        while rest:
            name, size = self._wanted[0]
            table = self._tables[name]
            piece = rest[: size - len(table)]
            table += piece
            rest = rest[len(piece) :]
            if len(table) == size:
                del self._wanted[0]

    def finish(self) -> tuple[bytes, ...]:
        """As ``DistributorCore.install`` for the added bytes."""
        return self._core.install(*self._signed, self._tables)


def _sealed(model: _Model, rows: npt.NDArray[np.float32], reply_key: bytes) -> bytes:
    written = np.ascontiguousarray(rows).view(np.uint8)[:, : model.row_bytes].tobytes()
    plaintext = distributor_pb2.SelectedRows(rows=written, dense=model.dense).SerializeToString()
    return AESGCM(reply_key).encrypt(_NONCE, plaintext, selected_aad(model.header.model_sha256))


def _words(data: bytes | bytearray, row_bytes: int) -> npt.NDArray[np.float32]:
    """The rows of a table as words of 4 bytes [rows, words]; zeros fill up the last word of each."""
    written = np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)
    rest = -row_bytes % _WORD_BYTES
    return np.ascontiguousarray(np.pad(written, ((0, 0), (0, rest))) if rest else written).view(np.float32)


def _verified(header: ModelHeader, tables: Mapping[str, bytes | bytearray]) -> _Model:
    declared = {table.name: table for table in header.manifest.tables}
    if set(tables) != set(declared):
        raise ConfigurationError(f"Expected tables={sorted(tables)} to be {sorted(declared)}, as in the manifest")
    verified = {name: table_from_bytes(entry, tables[name]) for name, entry in declared.items()}
    dense = tuple(bytes(tables[table.name]) for table in verified.values() if not table.keyed)
    if len(dense) == len(verified):
        nothing = np.zeros((0, 0), np.float32)
        return _Model(
            header, table="", rows=nothing, row_bytes=0, scanned=None, slices=0, sealed_bytes=None, dense=dense
        )
    keyed = verified[keyed_entry(header.manifest).name]
    slices = header.slices
    size = entry_row_bytes(keyed_entry(header.manifest))
    words = _words(tables[keyed.name], size)
    request = distributor_pb2.SelectKeys(
        table=keyed.name, keys=bytes(slices * _KEY_DTYPE.itemsize), reply_key=bytes(_REPLY_KEY_BYTES)
    )
    return _Model(
        header=header,
        table=keyed.name,
        rows=words,
        row_bytes=size,
        scanned=ScannedTable(words),
        slices=slices,
        sealed_bytes=request.ByteSize() + hpke.OVERHEAD,
        dense=dense,
    )

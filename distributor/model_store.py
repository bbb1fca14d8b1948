"""The storage of the distributor's host: published models, each of them complete or absent.

``ModelStore`` says what every store guarantees. ``tests/distributor/test_model_store.py`` is its conformance suite, and
``model_folders`` the implementation. The bytes are not trusted: the enclave verifies a reloaded model as it does a
published one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from odp.v1 import common_pb2


@dataclass(frozen=True)
class StoredModel:
    """One complete model, as it is stored: ``tables`` are the store's names of them, in the manifest's order."""

    model_sha256: bytes
    task: common_pb2.SignedTask
    manifest: common_pb2.SignedManifest
    tables: tuple[str, ...]


class IncomingModel(Protocol):
    """A model in transfer. Leaving the context without ``commit`` deletes every byte of it."""

    def write_table(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes the manifest's next table, durably.

        Raises StateError when the disk is full, and whatever ``pieces`` raises.
        """
        ...

    def commit(self) -> None:
        """Adds the model to the store, durably. An existing one with the same id stays: its content is the same."""
        ...

    def __enter__(self) -> IncomingModel: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ModelStore(Protocol):
    """A host's store of models; callers serialise ``commit`` and ``remove`` of one model.

    A process that dies at any moment leaves whole models, and nothing else that the next one finds. From the first sync
    on that failed, nothing is received, kept or removed any more (DiskFailed).
    """

    def models(self) -> tuple[bytes, ...]:
        """The ids of all complete models, ascending."""
        ...

    def load(self, model: bytes) -> StoredModel:
        """The stored form of a model, unverified.

        Raises ConfigurationError where it is not what a commit wrote, StateError where the disk fails.
        """
        ...

    def receive(
        self, model: bytes, task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, total_bytes: int
    ) -> IncomingModel:
        """Starts a model of ``total_bytes``; a context manager. Raises DiskFull if it does not fit."""
        ...

    def remove(self, model: bytes) -> None:
        """Deletes a model; readers that opened a table before still read it to its end. Unknown ids are ignored."""
        ...

    def used(self, model: bytes) -> float:
        """The last time a model was published or used, from ``note_use``; seconds since 1970.

        Raises StateError where the model is not stored or the disk fails.
        """
        ...

    def note_use(self, model: bytes, now: float) -> None:
        """Records a use of a model; a failed write is ignored, since nothing else depends on it."""
        ...

    def contents(self, stored: StoredModel, size: int) -> Iterator[bytes]:
        """The tables' bytes one after the other, unverified, in pieces of at most ``size``.

        Raises StateError where the disk fails.
        """
        ...

    def chunks(self, model: bytes, index: int, size: int, *, start: int = 0) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads it from byte ``start`` on in pieces of ``size`` bytes.

        Raises FileNotFoundError (at once) where the model is not stored.
        """
        ...

    def blocks(self, model: bytes, index: int, numbers: Sequence[int]) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads its blocks of these numbers, at most 1 MiB at a time.

        Raises FileNotFoundError (at once) where the model is not stored.
        """
        ...

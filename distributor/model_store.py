"""The storage of the distributor's host: published models, each of them complete or absent, and when one is deleted.

``ModelStore`` says what every store guarantees. ``tests/distributor/test_model_store.py`` is its conformance suite, and
``model_folders`` the implementation. The bytes are not trusted: the enclave verifies a reloaded model as it does a
published one.

Models are deleted by age that no open round can need and no device uses any more. A round trains on the newest version
of its task, so that one stays until the version behind the last round is there: then no round is open. Of a public
table, which has no last version, the newest one stays. Everything else of them goes when nobody asked for it for some
days. Versions that newer ones replaced go at once, by their number (``distributor.enclave``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from odp import _validate
from odp.v1 import common_pb2

#: Days that a model which nobody asks for is kept.
KEEP_DAYS = 30.0


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

    def commit(self) -> None:
        """Adds the model to the store, durably. An existing one with the same id stays: its content is the same."""

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

    def load(self, model: bytes) -> StoredModel:
        """The stored form of a model, unverified.

        Raises ConfigurationError where it is not what a commit wrote, StateError where the disk fails.
        """

    def receive(
        self, model: bytes, task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, total_bytes: int
    ) -> IncomingModel:
        """Starts a model of ``total_bytes``; a context manager. Raises DiskFull if it does not fit."""

    def remove(self, model: bytes) -> None:
        """Deletes a model; readers that opened a table before still read it to its end. Unknown ids are ignored."""

    def used(self, model: bytes) -> float:
        """The last time a model was published or used, from ``note_use``; seconds since 1970.

        Raises StateError where the model is not stored or the disk fails.
        """

    def note_use(self, model: bytes, now: float) -> None:
        """Records a use of a model; a failed write is ignored, since nothing else depends on it."""

    def contents(self, stored: StoredModel, size: int) -> Iterator[bytes]:
        """The tables' bytes one after the other, unverified, in pieces of at most ``size``.

        Raises StateError where the disk fails.
        """

    def chunks(self, model: bytes, index: int, size: int, *, start: int = 0) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads it from byte ``start`` on in pieces of ``size`` bytes.

        Raises FileNotFoundError (at once) where the model is not stored.
        """

    def blocks(self, model: bytes, index: int, numbers: Sequence[int]) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads its blocks of these numbers, at most 1 MiB at a time.

        Raises FileNotFoundError (at once) where the model is not stored.
        """


@dataclass(frozen=True)
class Held:
    """A stored model: ``last`` is the version behind its task's last round, None for a public table.

    ``used`` is when it was published or asked for, in seconds since 1970, to the hour.
    """

    model: bytes
    task: bytes
    version: int
    last: int | None
    used: float


def check_keep_days(keep_days: float) -> None:
    """Raises ConfigurationError unless it is from one day, in which late devices finish, to a century."""
    _validate.within(low=1.0, high=36_525.0, keep_days=keep_days)


def forgettable(held: Iterable[Held], *, now: float, seconds: float) -> tuple[bytes, ...]:
    """The ids of the models without use in the ``seconds`` before ``now`` that no open round can need."""
    models = tuple(held)
    newest: dict[bytes, int] = {}
    for model in models:
        newest[model.task] = max(model.version, newest.get(model.task, 0))

    def free(model: Held) -> bool:
        return model.version < newest[model.task] if model.last is None else newest[model.task] >= model.last

    return tuple(model.model for model in models if now - model.used > seconds and free(model))

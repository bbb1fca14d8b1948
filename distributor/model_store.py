"""The host's disk of published models: one immutable folder per model, complete or absent.

::

    models/<model_sha256 hex>/task          serialized SignedTask
                              manifest      serialized SignedManifest
                              0000.f32 ..   the tables in the manifest's order
                              hint          what devices download of a table that never changes, once it was made
    models/.incoming-*, .removed-*          leftovers of a killed program: deleted on start

A folder gets its final name only when every byte of it is synced, and loses that name before its first file is
deleted, so that a kill at any moment leaves whole models and leftovers, nothing between. The bytes are not trusted:
the enclave verifies a reloaded model as it does a published one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, DiskFull, StateError
from odp.transport.durability import Health, create_file, finish, sync_folder
from odp.transport.private_files import make_folders
from odp.transport.state_folder import state_errors, write_atomically
from odp.v1 import common_pb2
from odp.wire.blocks import BLOCK_BYTES

_NAME = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming-"
_REMOVED = ".removed-"
_TASK = "task"
_MANIFEST = "manifest"
_HINT = "hint"
_RESERVE_BYTES = 16 * 2**20
_TOGETHER = 2**20 // BLOCK_BYTES


@dataclass(frozen=True)
class StoredModel:
    """One complete folder, as it lies on disk: ``tables`` are paths in the manifest's order."""

    model_sha256: bytes
    task: common_pb2.SignedTask
    manifest: common_pb2.SignedManifest
    tables: tuple[Path, ...]


class ModelStore:
    """Folders of models under ``root``; callers serialise ``commit`` and ``remove`` of one model.

    ``free_bytes`` tells how much space a path's disk has left. From the first sync on that failed, which ``health`` is
    told of, nothing is received, kept or removed any more (DiskFailed).
    """

    def __init__(
        self,
        root: Path,
        *,
        health: Health | None = None,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._root = root
        self._health = Health() if health is None else health
        self._free_bytes = free_bytes
        with state_errors(root):
            make_folders(root)
            for path in sorted(root.iterdir()):
                if path.name.startswith((_INCOMING, _REMOVED)):
                    shutil.rmtree(path)

    def models(self) -> tuple[bytes, ...]:
        """The ids of all complete folders."""
        with state_errors(self._root):
            names = sorted(path.name for path in self._root.iterdir() if _NAME.fullmatch(path.name))
        return tuple(bytes.fromhex(name) for name in names)

    def load(self, model: bytes) -> StoredModel:
        """The stored form of a model, unverified.

        Raises ConfigurationError where its files are not what a commit wrote, StateError where the disk fails.
        """
        folder = self._folder(model)
        try:
            task = common_pb2.SignedTask.FromString((folder / _TASK).read_bytes())
            manifest = common_pb2.SignedManifest.FromString((folder / _MANIFEST).read_bytes())
            tables = tuple(sorted(folder.glob("*.f32")))
        except FileNotFoundError as error:
            raise ConfigurationError(f"model folder {folder} is incomplete") from error
        except DecodeError as error:
            raise ConfigurationError(f"model folder {folder} is corrupt") from error
        except OSError as error:
            raise StateError(f"model folder {folder}: {error.strerror or error}; check the disk") from error
        return StoredModel(model, task, manifest, tables)

    def receive(
        self, model: bytes, task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, total_bytes: int
    ) -> IncomingModel:
        """A temporary folder for a model of ``total_bytes``; use as a context manager.

        Raises StateError where the disk has no room for it.
        """
        free = self._free_bytes(self._root)
        if free < total_bytes + _RESERVE_BYTES:
            raise DiskFull(
                f"state folder {self._root}: disk full ({free // 2**20} MiB free, "
                f"{(total_bytes + _RESERVE_BYTES) // 2**20} MiB needed); free some space and publish again"
            )
        folder = self._root / f"{_INCOMING}{uuid.uuid4().hex}"
        with self._health, state_errors(self._root):
            folder.mkdir(mode=0o700)
            try:
                _write(folder / _TASK, task.SerializeToString())
                _write(folder / _MANIFEST, manifest.SerializeToString())
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return IncomingModel(folder, self._folder(model), self._health)

    def remove(self, model: bytes) -> None:
        """Deletes a model; readers that opened a table before still read it to its end. Unknown ids are ignored."""
        doomed = self._root / f"{_REMOVED}{uuid.uuid4().hex}"
        with self._health, state_errors(self._root):
            try:
                self._folder(model).rename(doomed)
            except FileNotFoundError:
                return
            sync_folder(self._root)
            shutil.rmtree(doomed)

    def used(self, model: bytes) -> float:
        """When a model was published or asked for, as ``note_use`` wrote it; seconds since 1970.

        Raises StateError where the model is not stored or the disk fails.
        """
        with state_errors(self._root):
            return (self._folder(model) / _TASK).stat().st_mtime

    def note_use(self, model: bytes, now: float) -> None:
        """Remembers that somebody asked for a model; what cannot be written is forgotten: nothing else follows."""
        with contextlib.suppress(OSError):
            os.utime(self._folder(model) / _TASK, (now, now))

    def hint(self, model: bytes) -> bytes | None:
        """What ``keep_hint`` kept of a model; None where nothing was. Raises StateError where the disk fails."""
        with state_errors(self._root):
            try:
                return (self._folder(model) / _HINT).read_bytes()
            except FileNotFoundError:
                return None

    def keep_hint(self, model: bytes, hint: bytes) -> None:
        """Keeps a hint beside its model, whole or not at all. Raises StateError where the model is gone."""
        with self._health, state_errors(self._root):
            write_atomically(self._folder(model) / _HINT, hint)

    def contents(self, stored: StoredModel, size: int) -> Iterator[bytes]:
        """The tables' bytes one after the other, unverified, in pieces of at most ``size``.

        Raises StateError where the disk fails.
        """
        with state_errors(self._root):
            for path in stored.tables:
                yield from _read(path.open("rb"), size)

    def chunks(self, model: bytes, index: int, size: int, *, start: int = 0) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads it from byte ``start`` on in pieces of ``size`` bytes.

        Raises FileNotFoundError (at once) where the model is not stored.
        """
        file = self._open(model, index)
        file.seek(start)
        return _read(file, size)

    def blocks(self, model: bytes, index: int, numbers: Sequence[int]) -> Iterator[bytes]:
        """Opens table ``index`` of a model at once, then reads its blocks of these numbers, up to 1 MiB together.

        Raises FileNotFoundError (at once) where the model is not stored.
        """
        return _read_blocks(self._open(model, index), numbers)

    def _open(self, model: bytes, index: int) -> BinaryIO:
        return _table_path(self._folder(model), index).open("rb")

    def _folder(self, model: bytes) -> Path:
        return self._root / model.hex()


class IncomingModel:
    """A model that is being received. Leaving the context without ``commit`` deletes every byte of it."""

    def __init__(self, folder: Path, final: Path, health: Health) -> None:
        self.folder = folder
        self._health = health
        self._final = final
        self._tables = 0
        self._committed = False

    def write_table(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes the manifest's next table, durably.

        Raises StateError when the disk is full, and whatever ``pieces`` raises.
        """
        path = _table_path(self.folder, self._tables)
        with state_errors(self.folder.parent):
            file = create_file(path)
        with file:
            for piece in pieces:
                # Not around the loop: an error of the stream that yields the pieces is not one of the disk.
                with state_errors(self.folder.parent):
                    file.write(piece)
            with self._health, state_errors(self.folder.parent):
                finish(file, path)
        self._tables += 1

    def commit(self) -> None:
        """Gives the folder its final name, durably. A folder of that name already holds the same content: it stays."""
        with self._health, state_errors(self.folder.parent):
            sync_folder(self.folder)
            if not self._final.exists():
                self.folder.rename(self._final)
                self._committed = True
            # Also of a name that was there: an earlier process may have been killed before it was on the disk.
            sync_folder(self._final.parent)

    def __enter__(self) -> IncomingModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._committed:
            shutil.rmtree(self.folder, ignore_errors=True)


def _table_path(folder: Path, index: int) -> Path:
    # By place, not by name: a name of a manifest never becomes part of a path.
    return folder / f"{index:04d}.f32"


def _read(file: BinaryIO, size: int) -> Iterator[bytes]:
    with file:
        while chunk := file.read(size):
            yield chunk


def _read_blocks(file: BinaryIO, numbers: Sequence[int]) -> Iterator[bytes]:
    with file:
        for start in range(0, len(numbers), _TOGETHER):
            yield b"".join(_block(file, number) for number in numbers[start : start + _TOGETHER])


def _block(file: BinaryIO, number: int) -> bytes:
    file.seek(number * BLOCK_BYTES)
    return file.read(BLOCK_BYTES)


def _write(path: Path, data: bytes) -> None:
    with create_file(path) as file:
        file.write(data)
        finish(file, path)

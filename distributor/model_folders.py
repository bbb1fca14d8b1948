"""The host's store of models as immutable folders, each complete or absent.

::

    models/<model_sha256 hex>/task          serialized SignedTask
                              manifest      serialized SignedManifest
                              0000.f32 ..   the tables in the manifest's order
    models/.incoming-*, .removed-*          leftovers of a killed program: deleted on start

A folder gets its final name only when every byte of it is synced, and loses that name before its first file is
deleted, so that a kill at any moment leaves whole models and leftovers, nothing between.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from google.protobuf.message import DecodeError

from distributor.model_store import StoredModel
from odp._system.files.durability import Health, create_file, finish, sync_folder
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import state_errors
from odp.errors import ConfigurationError, DiskFull, StateError
from odp.protocol.wire.tables import BLOCK_BYTES
from odp.v1 import common_pb2

_NAME = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming-"
_REMOVED = ".removed-"
_TASK = "task"
_MANIFEST = "manifest"
_RESERVE_BYTES = 16 * 2**20
_TOGETHER = 2**20 // BLOCK_BYTES


class ModelFolders:
    """Implements ``distributor.model_store.ModelStore`` with folders under ``root``.

    ``free_bytes`` returns how much space a path's disk has left. ``health`` is that of the disk.
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
        with state_errors(self._root):
            names = sorted(path.name for path in self._root.iterdir() if _NAME.fullmatch(path.name))
        return tuple(bytes.fromhex(name) for name in names)

    def load(self, model: bytes) -> StoredModel:
        folder = self._folder(model)
        try:
            task = common_pb2.SignedTask.FromString((folder / _TASK).read_bytes())
            manifest = common_pb2.SignedManifest.FromString((folder / _MANIFEST).read_bytes())
            tables = tuple(sorted(path.name for path in folder.glob("*.f32")))
        except FileNotFoundError as error:
            raise ConfigurationError(f"model folder {folder} is incomplete") from error
        except DecodeError as error:
            raise ConfigurationError(f"model folder {folder} is corrupt") from error
        except OSError as error:
            raise StateError(f"model folder {folder}: {error.strerror or error}; check the disk") from error
        return StoredModel(model, task, manifest, tables)

    def receive(
        self, model: bytes, task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, total_bytes: int
    ) -> IncomingFolder:
        if (free := self._free_bytes(self._root)) < total_bytes + _RESERVE_BYTES:
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
        return IncomingFolder(folder, self._folder(model), self._health)

    def remove(self, model: bytes) -> None:
        doomed = self._root / f"{_REMOVED}{uuid.uuid4().hex}"
        with self._health, state_errors(self._root):
            try:
                self._folder(model).rename(doomed)
            except FileNotFoundError:
                return
            sync_folder(self._root)
            shutil.rmtree(doomed)

    def used(self, model: bytes) -> float:
        with state_errors(self._root):
            return (self._folder(model) / _TASK).stat().st_mtime

    def note_use(self, model: bytes, now: float) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._folder(model) / _TASK, (now, now))

    def contents(self, stored: StoredModel, size: int) -> Iterator[bytes]:
        with state_errors(self._root):
            for name in stored.tables:
                yield from _read((self._folder(stored.model_sha256) / name).open("rb"), size)

    def chunks(self, model: bytes, index: int, size: int, *, start: int = 0) -> Iterator[bytes]:
        file = self._open(model, index)
        file.seek(start)
        return _read(file, size)

    def blocks(self, model: bytes, index: int, numbers: Sequence[int]) -> Iterator[bytes]:
        return _read_blocks(self._open(model, index), numbers)

    def _open(self, model: bytes, index: int) -> BinaryIO:
        return _table_path(self._folder(model), index).open("rb")

    def _folder(self, model: bytes) -> Path:
        return self._root / model.hex()


class IncomingFolder:
    """Implements ``distributor.model_store.IncomingModel``."""

    def __init__(self, folder: Path, final: Path, health: Health) -> None:
        self._folder, self._health, self._final = folder, health, final
        self._tables = 0
        self._committed = False

    def write_table(self, pieces: Iterable[bytes | memoryview]) -> None:
        path = _table_path(self._folder, self._tables)
        with state_errors(self._folder.parent):
            file = create_file(path)
        with file:
            for piece in pieces:
                # Not around the loop: an error of the stream that yields the pieces is not one of the disk.
                with state_errors(self._folder.parent):
                    file.write(piece)
            with self._health, state_errors(self._folder.parent):
                finish(file, path)
        self._tables += 1

    def commit(self) -> None:
        with self._health, state_errors(self._folder.parent):
            sync_folder(self._folder)
            if not self._final.exists():
                self._folder.rename(self._final)
                self._committed = True
            # Also of a name that was there: an earlier process may have been killed before it was on the disk.
            sync_folder(self._final.parent)

    def __enter__(self) -> IncomingFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._committed:
            shutil.rmtree(self._folder, ignore_errors=True)


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

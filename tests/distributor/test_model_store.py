from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distributor.model_store import ModelStore
from odp.errors import ConfigurationError, DiskFailed, StateError


def store_model(store: ModelStore, model: Any) -> None:
    with store.receive(model.id, model.task, model.manifest, len(model.payload)) as incoming:
        for data in model.tables.values():
            incoming.write_table([data[:10], data[10:]])
        incoming.commit()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_committed_model_is_read_back_as_it_was_written(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    store_model(store, model)
    again = ModelStore(tmp_path)
    assert again.models() == (model.id,)
    stored = again.load(model.id)
    assert (stored.task, stored.manifest) == (model.task, model.manifest)
    assert b"".join(again.contents(stored, 100)) == model.payload
    first = next(iter(model.tables.values()))
    chunks = list(again.chunks(model.id, 0, 100))
    assert b"".join(chunks) == first
    assert {len(chunk) for chunk in chunks[:-1]} <= {100}


def test_a_model_that_is_not_committed_leaves_nothing(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    with store.receive(model.id, model.task, model.manifest, 1) as incoming:
        incoming.write_table([b"1234"])
    assert names(tmp_path) == []


def test_an_error_of_the_stream_passes_through_and_leaves_nothing(tmp_path: Path, developer: Any) -> None:
    model = developer.model()

    def broken() -> Any:
        yield b"1234"
        raise ConnectionResetError("cut")

    with (
        pytest.raises(ConnectionResetError),
        ModelStore(tmp_path).receive(model.id, model.task, model.manifest, 1) as incoming,
    ):
        incoming.write_table(broken())
    assert names(tmp_path) == []


def test_the_same_model_committed_twice_stays_as_it_was(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    store_model(store, model)
    store_model(store, model)
    assert names(tmp_path) == [model.id.hex()]


_KILLED = """
import os, signal, sys
from pathlib import Path

from distributor import model_store
from odp.v1 import common_pb2

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

moment, root, model = sys.argv[1], Path(sys.argv[2]), bytes.fromhex(sys.argv[3])
store = model_store.ModelStore(root)
if moment == "before removal ends":
    model_store.shutil.rmtree = die
    store.remove(model)
task, manifest = common_pb2.SignedTask(definition=b"task"), common_pb2.SignedManifest(manifest=b"manifest")
with store.receive(model, task, manifest, 4) as incoming:
    incoming.write_table([b"1234"])
    if moment == "before rename":
        Path.rename = die
    incoming.commit()
    die()
"""


def killed(moment: str, root: Path, model: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, moment, str(root), model.hex()], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.processes
def test_a_kill_between_writing_and_rename_leaves_nothing(tmp_path: Path) -> None:
    killed("before rename", tmp_path, b"\1" * 32)
    assert len(names(tmp_path)) == 1
    assert ModelStore(tmp_path).models() == ()
    assert names(tmp_path) == []


@pytest.mark.processes
def test_a_kill_after_the_rename_leaves_the_whole_model(tmp_path: Path) -> None:
    killed("after rename", tmp_path, b"\1" * 32)
    store = ModelStore(tmp_path)
    assert store.models() == (b"\1" * 32,)
    assert list(store.contents(store.load(b"\1" * 32), 3)) == [b"123", b"4"]


@pytest.mark.processes
def test_a_kill_within_a_removal_leaves_no_half_model(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store_model(ModelStore(tmp_path), model)
    killed("before removal ends", tmp_path, model.id)
    assert ModelStore(tmp_path).models() == ()
    assert names(tmp_path) == []


def test_a_removed_model_is_read_to_its_end_by_those_who_opened_it(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    store_model(store, model)
    chunks = store.chunks(model.id, 0, 50)
    start = next(chunks)
    store.remove(model.id)
    store.remove(model.id)
    assert start + b"".join(chunks) == next(iter(model.tables.values()))
    assert names(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        store.chunks(model.id, 0, 50)


def test_a_disk_without_room_refuses_before_a_byte_is_written(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path, free_bytes=lambda _: 16 * 2**20 + 999)
    with pytest.raises(StateError, match="disk full"):
        store.receive(model.id, model.task, model.manifest, 1000)
    assert names(tmp_path) == []


@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_after_a_sync_that_failed_nothing_is_left_or_taken_until_the_next_start(
    write: int, tmp_path: Path, developer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    done = 0

    def full(descriptor: int) -> None:
        nonlocal done
        done += 1
        if done == write:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFailed, match="No space left on device"):
        store_model(store, model)
    assert done == write
    assert names(tmp_path) == []
    monkeypatch.undo()
    for refused in (lambda: store_model(store, model), lambda: store.remove(model.id)):
        with pytest.raises(DiskFailed, match="No space left on device"):
            refused()
    again = ModelStore(tmp_path)
    store_model(again, model)
    assert again.models() == (model.id,)


@pytest.mark.parametrize("lost", ["task", "manifest"])
def test_a_folder_that_lacks_a_file_is_called_incomplete(lost: str, tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelStore(tmp_path)
    store_model(store, model)
    (tmp_path / model.id.hex() / lost).unlink()
    with pytest.raises(ConfigurationError, match="incomplete"):
        store.load(model.id)


def test_files_that_are_no_models_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("a" * 63)).mkdir()
    assert ModelStore(tmp_path).models() == ()
    assert names(tmp_path) == ["a" * 63, "notes.txt"]

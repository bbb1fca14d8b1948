"""What ``distributor.model_store.ModelStore`` promises, of every implementation, and what the folders of one hold.

A model is whole or absent, whoever dies between any two steps, and is read to its end by those who opened it.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.buckets import bucket
from conformance.dying import deaths
from conformance.models import FILE_STORES, MODEL_STORES

from distributor.model_folders import ModelFolders
from distributor.model_store import ModelStore
from odp.errors import ConfigurationError, DiskFailed, DiskFull, StateError
from odp.protocol.wire.tables import BLOCK_BYTES
from odp.v1 import common_pb2


def store_model(store: ModelStore, model: Any) -> None:
    with store.receive(model.id, model.task, model.manifest, len(model.payload)) as incoming:
        for data in model.tables.values():
            incoming.write_table([data[:10], data[10:]])
        incoming.commit()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_committed_model_is_read_back_as_it_was_written(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelFolders(tmp_path)
    store_model(store, model)
    again = ModelFolders(tmp_path)
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
    store = ModelFolders(tmp_path)
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
        ModelFolders(tmp_path).receive(model.id, model.task, model.manifest, 1) as incoming,
    ):
        incoming.write_table(broken())
    assert names(tmp_path) == []


def test_the_same_model_committed_twice_stays_as_it_was(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelFolders(tmp_path)
    store_model(store, model)
    store_model(store, model)
    assert names(tmp_path) == [model.id.hex()]


_KILLED = """
import os, signal, sys
from pathlib import Path

from distributor import model_folders
from odp.v1 import common_pb2

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

moment, root, model = sys.argv[1], Path(sys.argv[2]), bytes.fromhex(sys.argv[3])
store = model_folders.ModelFolders(root)
if moment == "before removal ends":
    model_folders.shutil.rmtree = die
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
    done = subprocess.run([sys.executable, "-c", _KILLED, moment, str(root), model.hex()], check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.processes
def test_a_kill_between_writing_and_rename_leaves_nothing(tmp_path: Path) -> None:
    killed("before rename", tmp_path, b"\1" * 32)
    assert len(names(tmp_path)) == 1
    assert ModelFolders(tmp_path).models() == ()
    assert names(tmp_path) == []


@pytest.mark.processes
def test_a_kill_after_the_rename_leaves_the_whole_model(tmp_path: Path) -> None:
    killed("after rename", tmp_path, b"\1" * 32)
    store = ModelFolders(tmp_path)
    assert store.models() == (b"\1" * 32,)
    assert list(store.contents(store.load(b"\1" * 32), 3)) == [b"123", b"4"]


@pytest.mark.processes
def test_a_kill_within_a_removal_leaves_no_half_model(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store_model(ModelFolders(tmp_path), model)
    killed("before removal ends", tmp_path, model.id)
    assert ModelFolders(tmp_path).models() == ()
    assert names(tmp_path) == []


def test_a_removed_model_is_read_to_its_end_by_those_who_opened_it(tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelFolders(tmp_path)
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
    store = ModelFolders(tmp_path, free_bytes=lambda _: 16 * 2**20 + 999)
    with pytest.raises(StateError, match="disk full"):
        store.receive(model.id, model.task, model.manifest, 1000)
    assert names(tmp_path) == []


@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_after_a_sync_that_failed_nothing_is_left_or_taken_until_the_next_start(
    write: int, tmp_path: Path, developer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = developer.model()
    store = ModelFolders(tmp_path)
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
    again = ModelFolders(tmp_path)
    store_model(again, model)
    assert again.models() == (model.id,)


@pytest.mark.parametrize("lost", ["task", "manifest"])
def test_a_folder_that_lacks_a_file_is_called_incomplete(lost: str, tmp_path: Path, developer: Any) -> None:
    model = developer.model()
    store = ModelFolders(tmp_path)
    store_model(store, model)
    (tmp_path / model.id.hex() / lost).unlink()
    with pytest.raises(ConfigurationError, match="incomplete"):
        store.load(model.id)


def test_files_that_are_no_models_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("a" * 63)).mkdir()
    assert ModelFolders(tmp_path).models() == ()
    assert names(tmp_path) == ["a" * 63, "notes.txt"]


Open = Callable[[Path], ModelStore]
FIRST, SECOND = b"\1" * 32, b"\2" * 32
TABLES = [bytes(range(256)) * 1024, b"", b"dense"]


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with bucket() as found:
        yield found


@pytest.fixture(params=MODEL_STORES)
def opened(request: pytest.FixtureRequest) -> Open:
    if request.param not in FILE_STORES:
        request.getfixturevalue("place")
    return MODEL_STORES[request.param]


@pytest.fixture(params=FILE_STORES)
def file_opened(request: pytest.FixtureRequest) -> Open:
    return MODEL_STORES[request.param]


def publish(store: ModelStore, model: bytes, *, commit: bool = True) -> None:
    task, manifest = common_pb2.SignedTask(definition=b"t" + model), common_pb2.SignedManifest(manifest=b"m" + model)
    with store.receive(model, task, manifest, sum(map(len, TABLES))) as incoming:
        for table in TABLES:
            incoming.write_table([table[:1000], memoryview(table[1000:])])
        if commit:
            incoming.commit()


def content(store: ModelStore) -> dict[bytes, object]:
    """All that can be read of each model, but for when it was used."""
    found: dict[bytes, object] = {}
    for model in store.models():
        stored = store.load(model)
        tables = [b"".join(store.chunks(model, index, 4096)) for index in range(len(stored.tables))]
        assert b"".join(store.contents(stored, 1000)) == b"".join(tables)
        found[model] = (stored.model_sha256, stored.task, stored.manifest, tables)
    return found


def test_models_come_back_whole_by_ascending_id(opened: Open, tmp_path: Path) -> None:
    store = opened(tmp_path)
    for model in (SECOND, FIRST, SECOND):
        publish(store, model)
    for again in (store, opened(tmp_path)):
        assert again.models() == (FIRST, SECOND)
        assert content(again) == {
            model: (
                model,
                common_pb2.SignedTask(definition=b"t" + model),
                common_pb2.SignedManifest(manifest=b"m" + model),
                TABLES,
            )
            for model in (FIRST, SECOND)
        }


def test_a_table_is_read_from_any_byte_and_by_blocks(opened: Open, tmp_path: Path) -> None:
    store = opened(tmp_path)
    publish(store, FIRST)
    pieces = list(store.chunks(FIRST, 0, 1000, start=200_000))
    assert b"".join(pieces) == TABLES[0][200_000:]
    assert {len(piece) for piece in pieces[:-1]} == {1000}
    last = (len(TABLES[0]) - 1) // BLOCK_BYTES
    blocks = [TABLES[0][BLOCK_BYTES * number :][:BLOCK_BYTES] for number in (0, last)]
    assert b"".join(store.blocks(FIRST, 0, [0, last])) == b"".join(blocks)


def test_what_is_not_committed_never_was(opened: Open, tmp_path: Path) -> None:
    store = opened(tmp_path)
    publish(store, FIRST, commit=False)

    def broken() -> Iterator[bytes]:
        yield b"1234"
        raise ConnectionResetError("cut")

    with (
        pytest.raises(ConnectionResetError),
        store.receive(FIRST, common_pb2.SignedTask(), common_pb2.SignedManifest(), 8) as incoming,
    ):
        incoming.write_table(broken())
    assert store.models() == opened(tmp_path).models() == ()


def test_of_a_model_that_is_gone_nothing_is_read_but_by_those_who_opened_it(opened: Open, tmp_path: Path) -> None:
    store = opened(tmp_path)
    publish(store, FIRST)
    publish(store, SECOND)
    chunks, blocks = store.chunks(FIRST, 0, 1000), store.blocks(FIRST, 0, [1])
    store.remove(FIRST)
    store.remove(FIRST)
    assert b"".join(chunks) == TABLES[0]
    assert b"".join(blocks) == TABLES[0][BLOCK_BYTES:][:BLOCK_BYTES]
    assert store.models() == (SECOND,)
    for gone in (lambda: store.chunks(FIRST, 0, 1000), lambda: store.blocks(FIRST, 0, [0])):
        with pytest.raises(FileNotFoundError):
            gone()
    with pytest.raises(StateError):
        store.used(FIRST)
    with pytest.raises(ConfigurationError):
        store.load(FIRST)
    store.note_use(FIRST, 5.0)


def test_a_store_remembers_when_a_model_was_used_last(opened: Open, tmp_path: Path) -> None:
    store = opened(tmp_path)
    publish(store, FIRST)
    for at in (5.0, 1e9):
        store.note_use(FIRST, at)
        assert store.used(FIRST) == opened(tmp_path).used(FIRST) == at


def test_a_model_larger_than_the_disk_is_refused_before_its_first_table(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        opened(tmp_path).receive(FIRST, common_pb2.SignedTask(), common_pb2.SignedManifest(), 2**62)


#: The changes of a store that holds ``SECOND``.
CHANGES: dict[str, Callable[[ModelStore], None]] = {
    "a model": lambda store: publish(store, FIRST),
    "a model without a commit, and one": lambda store: (publish(store, SECOND, commit=False), publish(store, FIRST))[1],
    "a removal": lambda store: store.remove(SECOND),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_between_any_two_steps_leaves_all_of_a_change_or_nothing(
    name: str, file_opened: Open, tmp_path: Path
) -> None:
    store = file_opened(tmp_path / "origin")
    publish(store, SECOND)
    before = content(store)

    def place() -> Iterator[Path]:
        for number in itertools.count():
            yield Path(shutil.copytree(tmp_path / "origin", tmp_path / str(number)))

    def act(folder: Path, arm: Callable[[], None]) -> None:
        own = file_opened(folder)
        arm()
        CHANGES[name](own)

    left, repeated = [], []
    for folder, _ in deaths(act, place()):
        store = file_opened(folder)
        left.append(content(store))
        CHANGES[name](store)
        repeated.append(content(store))
    assert left[0] == before != left[-1]
    assert [number for number, found in enumerate(left) if found not in (before, left[-1])] == []
    assert [number for number, found in enumerate(repeated) if found != left[-1]] == []


def test_a_store_that_was_being_made_when_its_process_died_is_whole_at_the_next_start(
    file_opened: Open, tmp_path: Path
) -> None:
    def act(folder: Path, arm: Callable[[], None]) -> None:
        arm()
        publish(file_opened(folder / "models"), FIRST)

    for folder, lived in deaths(act, (tmp_path / str(number) for number in itertools.count())):
        store = file_opened(folder / "models")
        assert store.models() in ((), (FIRST,))
        assert store.models() == (FIRST,) or not lived
        publish(store, FIRST)
        assert store.models() == (FIRST,)

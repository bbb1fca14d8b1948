from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from device_runtime.store import database, migration
from device_runtime.store.keys import KEY_FILE, PLAIN_HEADER
from device_runtime.store.schema import _BASE, SCHEMA_VERSION
from device_runtime.store.store import Store, store_path
from odp._system.files import durability
from odp.errors import StateError

SECRET = b"a secret of thirty-two bytes ...."[:32]


def plain_store(folder: Path, *, version: int = 2) -> Path:
    """A store as version 2 left it, with a rating and a contribution that counts."""
    path = store_path(folder, 3)
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    for statement in _BASE:
        connection.execute(statement)
    connection.execute("INSERT INTO identity VALUES (1, ?, ?, ?, NULL)", (b"i" * 16, SECRET, b"s" * 8))
    connection.execute("INSERT INTO ratings VALUES (5, 4.5)")
    row = (b"t" * 32, 2, "SENT", None, b"c", b"m", None, None, b"r", 1.0, 1e-6, b"p", "x", 7.0, b"")
    connection.execute(f"INSERT INTO participations VALUES ({', '.join('?' * len(row))})", row)
    connection.execute(f"PRAGMA user_version={version}")
    connection.commit()
    connection.close()
    return path


def check(path: Path) -> None:
    with Store.open(path) as store:
        assert store.identity().secret == SECRET
        assert store.ratings().values.tolist() == [4.5]
        assert [(line.task_sha256, line.round) for line in store.ledger()] == [(b"t" * 32, 2)]
        assert store.first("PRAGMA user_version") == (SCHEMA_VERSION,)
        store.data("music").add_event("play", {}, time=1.0)


def test_a_store_of_the_version_before_is_encrypted_when_it_is_first_opened(tmp_path: Path) -> None:
    path = plain_store(tmp_path)
    assert SECRET in path.read_bytes()
    check(path)
    content = path.read_bytes()
    assert SECRET not in content
    assert not content.startswith(PLAIN_HEADER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {one.name for one in path.parent.iterdir()} == {path.name}


def test_what_the_file_held_in_the_clear_is_overwritten(tmp_path: Path) -> None:
    path = plain_store(tmp_path)
    with path.open("rb") as old:  # keeps the replaced file
        Store.open(path).close()
        old.seek(0)
        content = old.read()
    assert content
    assert set(content) == {0}


@pytest.mark.parametrize("version", [1, 9])
def test_a_plain_store_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path, version: int) -> None:
    path = plain_store(tmp_path, version=version)
    before = path.read_bytes()
    with pytest.raises(StateError, match=f"version {version}"):
        Store.open(path)
    assert path.read_bytes() == before
    assert {one.name for one in path.parent.iterdir()} == {path.name}


def test_a_plain_store_that_another_program_writes_to_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    path = plain_store(tmp_path)
    # Of the same library: two copies of SQLite in one process do not see each other's locks.
    other = database.connected(path, None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO ratings VALUES (6, 1.0)")
    with pytest.raises(StateError, match="locked"):
        Store.open(path)
    other.execute("COMMIT")
    other.close()
    with Store.open(path) as store:
        assert store.ratings().items.tolist() == [5, 6]


def _die_at(path: str, step: int) -> None:
    """Opens a plain store and is killed at the given one of the steps that change a file."""
    left = [step]

    def counted(original):  # type: ignore[no-untyped-def]
        def stepped(*given, **named):  # type: ignore[no-untyped-def]
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(*given, **named)

        return stepped

    for module, name in ((migration, "_complete"), (durability, "sync_folder"), (migration, "_overwrite")):
        setattr(module, name, counted(getattr(module, name)))
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Store.open(Path(path)).close()
    os._exit(0)


@pytest.mark.parametrize("step", range(5))
def test_a_kill_at_any_step_leaves_the_old_store_or_the_new_one(tmp_path: Path, step: int) -> None:
    path = plain_store(tmp_path)
    Store.open_or_create(store_path(tmp_path, 4)).close()  # the key is there
    assert (tmp_path / KEY_FILE).exists()
    process = multiprocessing.get_context("fork").Process(target=_die_at, args=(str(path), step))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if step < 4 else 0)
    check(path)
    assert {one.name for one in path.parent.iterdir()} == {path.name}

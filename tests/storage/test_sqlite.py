"""Databases: private files, durable commits, and one-line errors for what a disk can do to them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import sqlalchemy

from odp.errors import StateError
from odp.storage.sqlite import database_errors, open_database


def _scalar(engine: sqlalchemy.Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(sqlalchemy.text(statement)).scalar()


def _write(engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t (x INTEGER)"))
        connection.execute(sqlalchemy.text("INSERT INTO t VALUES (7)"))


def test_every_connection_has_the_same_settings(tmp_path: Path) -> None:
    engine = open_database(tmp_path / "x.db")
    assert _scalar(engine, "PRAGMA journal_mode") == "wal"
    assert _scalar(engine, "PRAGMA synchronous") == 2
    assert _scalar(engine, "PRAGMA foreign_keys") == 1
    engine.dispose()


def test_the_file_and_its_journal_are_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        engine = open_database(tmp_path / "x.db")
        _write(engine)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    engine.dispose()
    assert modes == {"x.db": 0o600, "x.db-wal": 0o600, "x.db-shm": 0o600}


@pytest.mark.parametrize("name", ["a b", "50%", "what?mode=ro", "a#b", "ε"])
def test_any_folder_name_works(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    path = tmp_path / name / "x.db"
    engine = open_database(path)
    _write(engine)
    engine.dispose()
    again = open_database(path)
    assert _scalar(again, "SELECT x FROM t") == 7
    again.dispose()
    assert path.stat().st_size > 0


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StateError, match=r"is damaged.*restore it from a backup") as caught:
        open_database(tmp_path / "x.db")
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="check the path"):
        open_database(tmp_path / "nothing" / "x.db")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = open_database(path)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t (x BLOB)"))
        connection.execute(sqlalchemy.text("PRAGMA max_page_count = 4"))
        with pytest.raises(StateError, match="disk full; free some space"), database_errors(path):
            connection.execute(sqlalchemy.text("INSERT INTO t VALUES (zeroblob(1000000))"))
    engine.dispose()


def test_an_error_of_the_program_itself_is_not_dressed_up(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = open_database(path)
    with pytest.raises(sqlalchemy.exc.OperationalError, match="no such table"), database_errors(path):
        _scalar(engine, "SELECT x FROM nowhere")
    engine.dispose()

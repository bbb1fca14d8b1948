"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp._system.files.durability import create_file, finish, put_in_place, replaced_file
from odp.errors import DiskFailed


def test_a_body_that_raises_leaves_the_old_bytes_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replaced_file(path) as file:
        file.write(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"half of what was to come"
        raise ConnectionResetError("cut")

    with pytest.raises(ConnectionResetError), replaced_file(path) as file:
        file.writelines(pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_program_left_under_the_same_temporary_name_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replaced_file(path) as file:
        (left,) = tmp_path.iterdir()
    left.write_bytes(b"longer than what comes now")
    with replaced_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_its_users_alone_and_never_one_that_exists(tmp_path: Path) -> None:
    with create_file(tmp_path / "file") as file:
        file.write(b"1")
        finish(file, tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for taken in ("file", "link"):
        with pytest.raises(FileExistsError):
            create_file(tmp_path / taken)


@pytest.mark.parametrize("number", [1, 2])
def test_a_sync_that_fails_ends_the_write(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sync is that of the file, and the second that of its folder."""
    path, done, fsync = tmp_path / "file", 0, os.fsync

    def failing(descriptor: int) -> None:
        nonlocal done
        done += 1
        if done == number:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(DiskFailed, match="Input/output error"), replaced_file(path) as file:
        file.write(b"new")
    assert path.exists() is (number == 2)


def test_a_name_is_given_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "finished").write_bytes(b"1")
    synced: list[os.stat_result] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
    put_in_place(tmp_path / "finished", tmp_path / "file")
    assert [found.st_ino for found in synced] == [tmp_path.stat().st_ino]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp._system.files import private_files
from odp._system.files.private_files import make_folders, make_private, open_private, private_folder, read_private
from odp._system.files.state_folder import StateFolder
from odp.errors import StateError


@pytest.fixture(autouse=True)
def no_mask() -> Iterator[None]:
    """Whatever a program does not ask for, it does not get."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_folder_that_is_made_is_its_users_alone(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b" / "c", marker="mine")
    make_folders(tmp_path / "a" / "b" / "d" / "e")
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c", "a/b/d", "a/b/d/e")] == [0o700] * 5


@pytest.mark.parametrize("loose", [0o755, 0o770, 0o777, 0o2775])
def test_a_folder_that_others_may_use_is_tightened_where_it_is_empty_or_ones_own(tmp_path: Path, loose: int) -> None:
    empty, own = tmp_path / "empty", tmp_path / "own"
    for folder in (empty, own):
        folder.mkdir()
        folder.chmod(loose)
    (own / "mine").touch()
    for folder in (empty, own):
        private_folder(folder, marker="mine")
        assert mode(folder) == 0o700


def test_a_folder_of_something_else_that_others_may_use_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letter.txt").touch()
    with pytest.raises(StateError, match=r"run `chmod 700 .*home` or give another"):
        private_folder(home, marker="mine")
    assert mode(home) == 0o755


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="is a link"):
        private_folder(tmp_path / "link", marker="mine")


def test_a_folder_and_a_file_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"limits")
    monkeypatch.setattr(private_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StateError, match="belongs to another user"):
        private_folder(tmp_path, marker="mine")
    with pytest.raises(StateError, match="belongs to another user"):
        read_private(tmp_path / "file")
    with pytest.raises(StateError, match="belongs to another user"):
        make_private(tmp_path / "file")


def test_a_file_is_made_for_its_user_alone_and_tightened_later(tmp_path: Path) -> None:
    for make in (make_private, lambda path: os.close(open_private(path, os.O_RDWR | os.O_CREAT))):
        path = tmp_path / "file"
        make(path)
        assert mode(path) == 0o600
        path.chmod(0o666)
        make(path)
        assert mode(path) == 0o600
        path.chmod(0o664)
        assert read_private(path) == b""
        assert mode(path) == 0o600
        path.unlink()


def test_a_link_a_pipe_and_a_folder_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"limits")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for attempt in (make_private, read_private, lambda path: open_private(path, os.O_RDWR | os.O_CREAT)):
        with pytest.raises(OSError, match="symbolic links"):
            attempt(tmp_path / "link")
        with pytest.raises(StateError, match="pipe is not a file"):
            attempt(tmp_path / "pipe")
        with pytest.raises((StateError, OSError)):
            attempt(tmp_path / "folder")


def test_a_state_folder_that_somebody_else_may_write_to_gives_nothing(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "state", "test") as state:
        state.write_atomically("limits", b"1")
    (tmp_path / "state").chmod(0o777)
    with StateFolder.open(tmp_path / "state", "test") as state:
        assert mode(state.root) == 0o700
        state.path("limits").unlink()
        state.path("limits").symlink_to(tmp_path / "theirs")
        (tmp_path / "theirs").write_bytes(b"1000000")
        with pytest.raises(StateError, match="symbolic links"):
            state.read("limits")

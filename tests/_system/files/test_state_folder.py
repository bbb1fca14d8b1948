"""State folders: one program at a time, of one kind, on a disk with room, and nothing lost at a kill."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from odp._system.files.state_folder import StateFolder, state_errors, write_atomically
from odp.errors import DiskFailed, StateError

_Usage = namedtuple("_Usage", "total used free")


def test_a_second_program_is_told_which_process_holds_the_folder(tmp_path: Path) -> None:
    with (
        StateFolder.open(tmp_path / "s", "server"),
        pytest.raises(StateError, match=f"in use by another program .process {os.getpid()}.*another --state"),
    ):
        StateFolder.open(tmp_path / "s", "server")


def test_a_closed_folder_can_be_opened_again_and_close_is_idempotent(tmp_path: Path) -> None:
    folder = StateFolder.open(tmp_path / "s", "server")
    folder.write_atomically("key", b"value")
    folder.close()
    folder.close()
    with StateFolder.open(tmp_path / "s", "server") as again:
        assert again.read("key") == b"value"


def test_a_folder_of_another_program_is_refused_and_left_free(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "s", "server").close()
    with pytest.raises(StateError, match="belongs to 'odp server 1', not to 'odp distributor 1'"):
        StateFolder.open(tmp_path / "s", "distributor")
    StateFolder.open(tmp_path / "s", "server").close()


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "s", "server").close()
    (tmp_path / "s" / "format").write_text("odp server 2\n")
    with pytest.raises(StateError, match="belongs to 'odp server 2'"):
        StateFolder.open(tmp_path / "s", "server")


def test_a_nearly_full_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(2**40, 2**40, 3 * 2**20))
    with pytest.raises(StateError, match=r"disk full \(3 MiB free, 16 MiB needed\)"):
        StateFolder.open(tmp_path / "s", "server")
    assert not (tmp_path / "s" / "format").exists()
    monkeypatch.undo()
    StateFolder.open(tmp_path / "s", "server").close()


def test_a_disk_that_fills_up_under_the_lock_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StateError, match="disk full; free some space"):
        StateFolder.open(tmp_path / "s", "server")


def test_a_path_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(StateError, match="check the path and its permissions"):
        StateFolder.open(tmp_path / "s", "server")


def test_folder_and_files_are_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with StateFolder.open(tmp_path / "s", "server") as folder:
            folder.write_atomically("key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()} == {0o600}


def test_kill_minus_nine_frees_the_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from odp._system.files.state_folder import StateFolder; "
            "folder = StateFolder.open(sys.argv[1], 'server'); print('held', flush=True); sys.stdin.read()",
            str(tmp_path / "s"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateError, match=f"process {holder.pid}"):
            StateFolder.open(tmp_path / "s", "server")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    StateFolder.open(tmp_path / "s", "server").close()


def test_what_a_killed_program_was_about_to_rename_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "s", "server") as folder:
        folder.write_atomically("developer.key", b"kept")
        folder.path(".developer.key.123-456.tmp").write_bytes(b"half a k")
    with StateFolder.open(tmp_path / "s", "server") as folder:
        assert not list(folder.root.glob(".*"))
        assert folder.read("developer.key") == b"kept"


@pytest.mark.parametrize(
    ("step", "kind", "told"),
    [("replace", StateError, "nothing was lost"), ("fsync", DiskFailed, "No space left on device.*this program ends")],
)
def test_a_write_that_fails_leaves_the_old_bytes_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, kind: type[StateError], told: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path if step == "replace" else os, step, full)
    with pytest.raises(kind, match=told), state_errors(tmp_path):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_write_one_file_leave_the_whole_bytes_of_one_of_them(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 100_000 for letter in range(8)]
    failures: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(5):
                write_atomically(tmp_path / "file", content)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (tmp_path / "file").read_bytes() in contents


def test_a_file_that_is_missing_reads_as_none_and_one_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "s", "server") as folder:
        assert folder.read("nothing") is None
        folder.path("folder").mkdir()
        with pytest.raises(StateError, match="is not a file; remove it"):
            folder.read("folder")

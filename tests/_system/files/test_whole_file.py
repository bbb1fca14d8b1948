"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp._system.files.durability import write_whole
from odp.errors import ConfigurationError


def test_a_file_keeps_its_bytes_until_new_ones_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file"
    write_whole(str(path), (b"ab", memoryview(b"c")))
    assert path.read_bytes() == b"abc"

    def pieces() -> Iterator[bytes]:
        yield b"half"
        assert path.read_bytes() == b"abc"
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigurationError, match=r"file: No space left on device; give another place"):
        write_whole(path, pieces())
    assert path.read_bytes() == b"abc"
    assert list(path.parent.iterdir()) == [path], "nothing of the trial is left"


def test_everyone_may_read_a_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "file", (b"abc",))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "."])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write to .*; give another place"):
        write_whole(tmp_path / name if name != "." else tmp_path, (b"abc",))
    assert list(tmp_path.iterdir()) == []

"""Key files: made once, kept, private, and never replaced by a new key when they are damaged."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from odp.crypto.note import Kind
from odp.errors import StateError
from odp.trust.log.key_file import endorser_key, note_key


def test_a_key_is_made_on_first_use_and_kept(tmp_path: Path) -> None:
    first = note_key(tmp_path / "deep" / "log.key", name="example.com/a")
    again = note_key(tmp_path / "deep" / "log.key", name="example.com/b")
    assert again.name == "example.com/a"
    assert again.public(Kind.NOTE) == first.public(Kind.NOTE)
    assert endorser_key(tmp_path / "e.key").public == endorser_key(tmp_path / "e.key").public
    for path in (tmp_path / "deep" / "log.key", tmp_path / "e.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 40, b"ab" * 31])
def test_a_damaged_key_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.key"
    path.write_bytes(content)
    for read in (lambda: note_key(path, name="example.com/a"), lambda: endorser_key(path)):
        with pytest.raises(StateError, match=r"some\.key is not a key"):
            read()
    assert path.read_bytes() == content

"""Lines of a file of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from odp.cli.outputs import lines_of


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("Al\u0085ien\nBra\u2028zil\n", ["Al\u0085ien", "Bra\u2028zil"]),
        ("\ufeffa\r\nb", ["a", "b"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("", []),
    ],
)
def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path, content: str, lines: list[str]) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(content.encode())
    assert lines_of(path) == lines

"""Status lines: bounded, printable, without paths, whatever an error says."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError, DiskFull, StateError
from odp.transport.statuses import LONGEST_LINE, public_line, status_of


@given(text=st.text(max_size=3 * LONGEST_LINE))
def test_whatever_an_error_says_its_line_is_short_and_printable(text: str) -> None:
    line = public_line(ConfigurationError(text))
    assert len(line) <= LONGEST_LINE
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cannot read /var/lib/odp/token: denied", "cannot read (path): denied"),
        ("it is in '/secrets', see there", "it is in '(path)', see there"),
        ("see https://example.com/docs/page for more", "see https://example.com/docs/page for more"),
        ("Expected a share of 1/2 and/or more", "Expected a share of 1/2 and/or more"),
        ("two\nlines\x1b[31m\u202e", "two lines?[31m?"),
    ],
)
def test_a_path_is_left_out_and_other_text_stays(text: str, line: str) -> None:
    assert public_line(ConfigurationError(text)) == line


@pytest.mark.parametrize("error", [StateError("/var/odp: broken"), DiskFull("/var/odp: full")])
def test_what_is_wrong_with_the_operators_files_is_not_told(error: StateError) -> None:
    _, line, _ = status_of(error)
    assert "/var" not in line
    assert "broken" not in line

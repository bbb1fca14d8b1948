from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odp._system.files.settings_file import load_settings
from odp.errors import ConfigurationError


def _number(values: dict[str, Any]) -> int:
    if set(values) != {"number"}:
        raise ConfigurationError("Expected number alone")
    return int(values["number"])


def test_a_file_becomes_what_its_values_make(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text("number = 3 # three\n")
    assert load_settings(path, _number, what="numbers") == 3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"number = ", "Expected numbers as TOML"),
        (b"other = 3", "Expected number alone"),
        (b"number = []", "Expected numbers as TOML"),
        (b"number = '\xff'", "Expected numbers as TOML"),
        (b"number = " + b"[" * 60_000, "Expected numbers as TOML"),
        (b"number = 3" + b" " * 2**16, "Expected at most 65536 bytes"),
    ],
    ids=["cut", "unknown name", "wrong type", "no text", "brackets of any depth", "too large"],
)
def test_what_is_wrong_in_a_file_is_one_line_that_names_it(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "one.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told) as caught:
        load_settings(path, _number, what="numbers")
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the numbers .*none\.toml: no such file"):
        load_settings(tmp_path / "none.toml", _number, what="numbers")

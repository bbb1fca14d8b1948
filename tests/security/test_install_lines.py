"""No text of this tree tells anybody to install ``odp`` from the index: that is a program of somebody else (R353)."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS = "|".join(_PROJECT["optional-dependencies"])
_NAME = r"(?<![\w./\\-])odp(?![\w./-])"
#: An installer's command with the name, the name with an extra of ours, and a line of requirements.
_FOREIGN = re.compile(
    rf"\b(?:pip[3x]?|uv|uvx|poetry|conda|mamba)\b[^\n]*?(?<!un)\b(?:install|add|run|download|wheel|inject)\b[^\n;|&#]*?{_NAME}"
    rf"|{_NAME}\\?\[(?:{_EXTRAS})\b"
    rf"|^[ \t]*[\"']?odp *(?:[<>=~!]=|>|<|@ )",
    re.MULTILINE,
)


def foreign_lines(text: str) -> list[str]:
    """The parts of a text that would install the foreign distribution."""
    return [found.group() for found in _FOREIGN.finditer(text)]


def test_r353_no_tracked_text_installs_the_foreign_distribution() -> None:
    assert _PROJECT["name"] == "odp-platform"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    wrong = {}
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        if not path.is_file() or path == Path(__file__):
            continue
        try:
            lines = foreign_lines(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:  # a picture or another binary file
            continue
        if lines:
            wrong[name] = lines
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install odp", "python -m pip install --upgrade odp", "pip install 'odp[data]'", "`pipx install odp`",
        "uv tool install odp", "uvx run odp", '    "python -m pip install \\"odp[keras]\\""', "needs ``odp[fast]``",
        "odp>=0.1", "  'odp == 3'", r"match=r'odp\[data\]'", "pip download numpy odp",
    ],
)  # fmt: skip
def test_a_planted_line_is_seen(line: str) -> None:
    assert foreign_lines(f"text before\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "pip install odp-platform", "pip install 'odp-platform[data]'", "pip uninstall odp", "odp.install()",
        "pip install .  # then odp", "pip install numpy; odp demo", "pip install -r odp/requirements.txt",
        "odp data check club.csv",
    ],
)  # fmt: skip
def test_other_lines_are_none(line: str) -> None:
    assert foreign_lines(f"text before\n{line}\n") == []

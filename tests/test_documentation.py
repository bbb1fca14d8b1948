"""The paths, links, names, commands and tests that the documentation mentions are those of this tree."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from odp.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
TEXTS = tuple(sorted({*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")}))
EXAMPLES = tuple(sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".toml")))
TESTS = {path.as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
FOLDERS = "benchmarks|device_runtime|distributor|docs|examples|odp|protos|server|tests|tools|trusted_aggregator"
WHOLE: Any = typer.main.get_command(app)
#: Domains of signatures and keys look like paths below the generated messages.
DOMAIN = "odp/v1/"


def _page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS, ids=_page)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    """``NAME`` stands for any name."""
    for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", page.read_text(encoding="utf-8")):
        assert path.startswith(DOMAIN) or any(ROOT.glob(path.replace("NAME", "*"))), path


@pytest.mark.parametrize("page", TEXTS, ids=_page)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", TEXTS, ids=_page)
def test_every_python_name_of_a_page_exists(page: Path) -> None:
    dotted = r"`((?:odp|device_runtime|distributor|server|trusted_aggregator)(?:\.(?!py\b|sqlite\b)[A-Za-z_]\w*)+)"
    for name in re.findall(dotted, _without_blocks(page)):
        assert _exists(name), name


def _exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", TEXTS, ids=_page)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for path, name in re.findall(r"`((?:\w+/)*test_\w+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
        found = [file for file in TESTS if file.endswith(f"/{path}")]
        assert len(found) == 1, path
        assert f"def {name}(" in TESTS[found[0]], f"{path}::{name}"


@pytest.mark.parametrize("page", [*TEXTS, *EXAMPLES], ids=_page)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    shown = re.findall(r"^ *(?:exec )?(?:(?:\.venv|new)/bin/)?odp (.*)$", text, re.MULTILINE)
    for line in [*shown, *re.findall(r"`odp ([^`]*)`", _without_blocks(page))]:
        for part in line.split("#")[0].split("&&"):
            words = shlex.split(part.strip().removeprefix("odp "))
            command = _command(words)
            options = {"--help"}.union(*((*parameter.opts, *parameter.secondary_opts) for parameter in command.params))
            assert {word.rstrip(",") for word in words if word.startswith("--")} <= options, part


def _command(words: list[str]) -> Any:
    """The command or the group that ``words`` name; takes their names off, and a group's options with their values."""
    found = WHOLE
    while words and hasattr(found, "commands"):
        if words[0].startswith("-"):
            group = next((parameter for parameter in found.params if words[0] in parameter.opts), None)
            if group is None or found is WHOLE:
                break
            del words[: 1 if group.is_flag else 2]
            continue
        name = words.pop(0)
        assert name in found.commands, f"odp {name}"
        found = found.commands[name]
    return found


def test_no_help_text_loses_its_brackets_to_markup() -> None:
    """The terminal takes ``[default: ..]`` for a style and drops it, unless a backslash stands before it."""
    for command in _commands(WHOLE):
        texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
        assert [text for text in texts if re.search(r"(?<!\\)\[", text)] == []


def _commands(group: Any) -> Iterator[Any]:
    yield group
    for command in getattr(group, "commands", {}).values():
        yield from _commands(command)

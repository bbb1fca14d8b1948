"""Every code block of the documentation runs, or says why nothing runs it; ``code_blocks.py`` lists the comments."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from documentation.code_blocks import (
    LANGUAGES,
    PAGES,
    ROOT,
    TEXTS,
    Block,
    blocks_of,
    check_printed,
    is_tutorial,
    page_name,
)

import odp
from odp.cli.main import app

WHOLE: Any = typer.main.get_command(app)
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
NOTES = r"not run: |run by |part of |first:\n|file: |printed$|fails$|runs until stopped$|stopped$"
#: Tutorials have tests of their own: test_tutorials.py.
PYTHON_PAGES = [
    page
    for page in PAGES
    if not is_tutorial(page) and any(block.language == "python" and block.runs_here for block in blocks_of(page))
]
#: What a shell line may begin with, besides names of this tree.
TOOLS = (
    "bash", "cat", "cd", "cp", "curl", "diff", "env", "ls", "mkdir", "mv", "openssl", "pip", "pipx", "python",
    "python3", "rm", "sed", ".",
)  # fmt: skip


def _of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and block.runs_here]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_has_a_language_and_every_comment_above_one_is_known(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.place}: ```{block.language}"
        assert not block.note or re.match(NOTES, block.note) or block.language in TEXTS, f"{block.place}: {block.note}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_fence_is_left_open(page: Path) -> None:
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page))


def test_a_block_that_nothing_runs_says_why() -> None:
    for block in BLOCKS:
        if block.note.startswith("not run: "):
            assert len(block.note.removeprefix("not run: ").split()) >= 4, block.place


def test_a_test_that_is_said_to_run_a_block_reads_its_page() -> None:
    for block in BLOCKS:
        if block.note.startswith("run by "):
            path, _, name = block.note.removeprefix("run by ").partition("::")
            assert (ROOT / path).is_file(), f"{block.place}: {path}"
            source = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {name}(" in source, f"{block.place}: {name}"
            assert block.page.name in source, f"{block.place}: {path} does not name the page"


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_name)
@pytest.mark.slow
def test_the_python_of_a_page_runs_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    run_python(blocks_of(page), {"__name__": "__page__"})


def run_python(blocks: list[Block], names: dict[str, Any]) -> None:
    """Executes the Python of ``blocks`` in ``names``, and compares what it prints with the page."""
    printed = ""
    for block in blocks:
        if block.language == "python" and block.runs_here:
            out = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
            exec(block.first, names)
            with contextlib.redirect_stdout(out):
                exec(code, names)
            printed = out.getvalue()
        elif block.note == "printed":
            check_printed(block, printed)


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.parametrize("block", _of("toml"), ids=lambda block: block.place)
def test_a_task_file_loads(block: Block, tmp_path: Path) -> None:
    """A part of a task file replaces tables of the file that its comment names."""
    file = tmp_path / "task.toml"
    text = block.text
    if block.note.startswith("part of "):
        part = tomllib.loads(text)
        whole = tomllib.loads((ROOT / block.note.removeprefix("part of ")).read_text(encoding="utf-8"))
        text = _as_toml({**whole, **part})
    file.write_text(text, encoding="utf-8")
    assert odp.load_task(file)


def _as_toml(tables: dict[str, Any]) -> str:
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def test_json_is_json() -> None:
    for block in _of("json"):
        json.loads(block.text)


@pytest.mark.parametrize(
    "block", [block for block in _of("bash") if block.note != "file: certificates.sh"], ids=lambda block: block.place
)
def test_the_commands_of_a_block_exist(block: Block) -> None:
    """Each is a command of ODP with options that it has, a target of the Makefile, or a tool on a file of this tree."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in shlex.join(shlex.split(line, comments=True)).replace("'&&'", "&&").split("&&"):
            words = shlex.split(part)
            if words:
                _check(words, block.place)


def _check(words: list[str], place: str) -> None:
    tool, *rest = words[1:] if words[0] == "exec" else words
    tool = tool.rsplit("/", 1)[-1]
    if tool == "odp":
        _check_odp(rest, place)
    elif tool == "make":
        targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets), place
    else:
        assert tool in TOOLS, f"{place}: {tool}"
        if tool in ("python", "cat") and rest[0].startswith(("examples/", "docs/", "tools/")):
            assert (ROOT / rest[0]).is_file(), f"{place}: {rest[0]}"
        for word in rest:
            if wanted := re.fullmatch(r"odp-platform\[([\w,-]+)\]", word):
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(wanted[1].split(",")) <= set(extras), place


def _check_odp(words: list[str], place: str) -> None:
    command = WHOLE
    rest = list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"{place}: odp {name}"
        command = command.commands[name]
    options = {"--help"}.union(*((*parameter.opts, *parameter.secondary_opts) for parameter in command.params))
    assert {word.partition("=")[0] for word in rest if re.match(r"--\w", word)} <= options, f"{place}: {words}"


def test_the_checks_see_a_stale_command_and_stale_python(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nodp simulat x\n```\n```python\nprint(1)\n```\n<!-- printed -->\n```text\n2\n```\n")
    command, code, said = (
        Block(ROOT / "docs" / "page.md", block.line, block.language, block.text, block.note)
        for block in blocks_of(page)
    )
    with pytest.raises(AssertionError, match="odp simulat"):
        test_the_commands_of_a_block_exist(command)
    with pytest.raises(AssertionError, match="this was printed"):
        run_python([code, said], {})

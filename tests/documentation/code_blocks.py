"""The fenced code blocks of README.md and docs/, and what a comment just above a block says of it.

- ``<!-- not run: reason -->``: nothing runs it, and why not;
- ``<!-- run by tests/FILE.py::NAME -->``: a test of its own runs it, with what the page leaves out;
- ``<!-- part of examples/FILE.toml -->``: a piece of a task file, which replaces the tables of that file;
- ``<!-- printed -->``: what the Python or the commands above print; ``...`` stands for anything;
- ``<!-- first:`` and lines of Python: what the page does not show, and its next block needs;
- ``<!-- file: NAME -->``: what the reader of a tutorial writes into that file;
- ``<!-- fails -->``: commands that end with an error, as the page says;
- ``<!-- runs until stopped -->``: commands that serve until a block that says ``stopped``, or until the page ends;
- ``<!-- stopped -->``: commands that run once whatever serves was stopped with Ctrl-C.

Python runs in order, page by page, in one namespace and an empty folder. So do the commands of a tutorial and of an
operator's page (``test_operators_pages.py``); elsewhere their names, options, targets and files are checked.
"""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]))
#: Prose and formulas; no test could run them.
TEXTS = ("text", "mermaid")
LANGUAGES = ("python", "bash", "toml", "json", *TEXTS)
_NOTE = r"(?:^ *<!-- (?P<note>[^>]*?)\s?-->\n)?"
_FENCED = r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$"
_BLOCK = re.compile(_NOTE + _FENCED, re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is that of its first line of code, ``note`` the comment above it or empty."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def place(self) -> str:
        return f"{page_name(self.page)}:{self.line}"

    @property
    def first(self) -> str:
        """Python that runs before the block, which readers of the page do not see."""
        return self.note.removeprefix("first:\n") if self.note.startswith("first:") else ""

    @property
    def runs_here(self) -> bool:
        """Whether the tests of this folder run it: neither a test of its own nor nobody."""
        return not self.note.startswith(("not run: ", "run by "))


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, from its top."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("text")) + 1
        blocks.append(Block(page, line, match["language"], code, match["note"] or ""))
    return blocks


def is_tutorial(page: Path) -> bool:
    return page.parent == ROOT / "docs" / "tutorials"


def check_printed(block: Block, printed: str) -> None:
    """Fails unless ``printed`` is the text of ``block``; space may differ."""
    same = doctest.OutputChecker().check_output(block.text, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, f"{block.place} says\n{block.text}\nbut this was printed:\n{printed}"

"""Writes examples/notebooks/ from docs/tutorials/; ``--check`` fails instead where a notebook is not fresh.

A notebook has the text and the code of its tutorial: Python as cells, commands as ``%%bash``, files as
``%%writefile``. It runs offline, from an empty folder. The tutorial of running services has no notebook: it needs two
terminals.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
TARGET = ROOT / "examples" / "notebooks"
NAMES = ("first-model", "your-own-data", "device-in-your-app", "federated-keras")
_NOTE = r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?"
_BLOCK = re.compile(_NOTE + r"^```(?P<language>\w+)\n(?P<text>.*?)^```\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


def notebook(name: str) -> str:
    """The notebook of a tutorial, as the text of its file."""
    page = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = []
    at = 0
    for block in _BLOCK.finditer(page):
        _add_text(cells, page[at : block.start()])
        at = block.end()
        note, text = block["note"] or "", block["text"]
        if note == "printed":
            continue  # the cell prints it
        if note.startswith("file: "):
            cells.append(_code(f"%%writefile {note.removeprefix('file: ')}\n{text}"))
        elif block["language"] == "bash":
            cells.append(_code(f"%%bash\n{text}"))
        else:
            cells.append(_code(text))
    _add_text(cells, page[at:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _add_text(cells: list[dict[str, Any]], text: str) -> None:
    """Links lead from the folder of the notebooks."""
    if text.strip():
        moved = _LINK.sub(lambda link: f"]({posixpath.normpath(f'../../docs/tutorials/{link[1]}')})", text.strip())
        cells.append({"cell_type": "markdown", "metadata": {}, "source": moved.splitlines(keepends=True)})


def _code(text: str) -> dict[str, Any]:
    lines = text.rstrip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


def main(check: bool) -> None:
    """Writes or checks all notebooks."""
    stale = []
    for name in NAMES:
        file = TARGET / f"{name}.ipynb"
        made = notebook(name)
        if check:
            if not file.is_file() or file.read_text(encoding="utf-8") != made:
                stale.append(file.name)
        else:
            TARGET.mkdir(exist_ok=True)
            file.write_text(made, encoding="utf-8")
    if stale:
        sys.exit(f"Run python tools/notebooks.py: {', '.join(stale)} are not what docs/tutorials/ says")


if __name__ == "__main__":
    main("--check" in sys.argv)

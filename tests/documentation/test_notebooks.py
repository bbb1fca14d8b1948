"""The notebooks have the code of the tutorials, which test_tutorials.py runs."""

from __future__ import annotations

import json
import runpy

import pytest
from documentation.code_blocks import ROOT, blocks_of

TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))


@pytest.mark.parametrize("name", TOOL["NAMES"])
def test_a_notebook_is_fresh(name: str) -> None:
    file = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    assert file.read_text(encoding="utf-8") == TOOL["notebook"](name), "run python tools/notebooks.py"


@pytest.mark.parametrize("name", TOOL["NAMES"])
def test_a_notebook_has_every_block_of_its_tutorial(name: str) -> None:
    cells = json.loads(TOOL["notebook"](name))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = [block for block in blocks_of(ROOT / "docs" / "tutorials" / f"{name}.md") if block.note != "printed"]
    assert len(code) == len(blocks)
    for cell, block in zip(code, blocks, strict=True):
        assert cell.endswith(block.text.rstrip("\n"))


def test_links_of_a_notebook_lead_to_files() -> None:
    folder = ROOT / "examples" / "notebooks"
    for name in TOOL["NAMES"]:
        for cell in json.loads(TOOL["notebook"](name))["cells"]:
            if cell["cell_type"] == "markdown":
                for link in TOOL["_LINK"].findall("".join(cell["source"])):
                    assert (folder / link.partition("#")[0]).exists(), link

"""Sequence diagrams of the pages become pictures that lose no word."""

from __future__ import annotations

import re
import runpy
from xml.etree import ElementTree

import pytest
from documentation.code_blocks import PAGES, ROOT, Block, blocks_of

svg = runpy.run_path(str(ROOT / "tools" / "sequence_diagrams.py"))["svg"]
DIAGRAMS = [block for page in PAGES for block in blocks_of(page) if block.language == "mermaid"]


def test_there_are_diagrams() -> None:
    assert DIAGRAMS


@pytest.mark.parametrize("block", DIAGRAMS, ids=lambda block: block.place)
def test_every_word_of_a_diagram_is_in_its_picture(block: Block) -> None:
    shown = " ".join(ElementTree.fromstring(svg(block.text, "a title")).itertext())
    for text in re.findall(r"(?:: | as )(.+)$", block.text, re.MULTILINE):
        assert set(text.split()) <= set(re.split(r"\s|(?<=-)", shown)) | set(shown.split()), text


def test_a_line_that_would_be_lost_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'loop every day'"):
        svg("sequenceDiagram\n participant A as B\n loop every day\n", "")

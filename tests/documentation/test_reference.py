"""The reference covers the public API: each name of ``odp`` and its public modules once, explained, with an example."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from documentation.code_blocks import ROOT, blocks_of, page_name

import odp
from odp import data, errors, items, living, mechanisms

MODULES = (data, errors, items, living, mechanisms)
#: ``OdpError`` is at the top, too.
PUBLIC = {*odp.__all__, *(f"{m.__name__.removeprefix('odp.')}.{name}" for m in MODULES for name in m.__all__)}
PUBLIC -= {"errors.OdpError"}
REFERENCE = tuple(sorted((ROOT / "docs" / "reference").glob("*.md")))
ENTRY = re.compile(r"^::: odp\.((?:(?:data|errors|items|living|mechanisms)\.)?\w+)$", re.MULTILINE)


def test_every_public_name_has_one_entry() -> None:
    entries = [name for page in REFERENCE for name in ENTRY.findall(page.read_text(encoding="utf-8"))]
    assert sorted(entries) == sorted(PUBLIC)


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_every_public_name_says_what_it_is(path: str) -> None:
    module, _, name = f"odp.{path}".rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    own = thing.__doc__
    assert own
    assert not own.startswith(f"{name}("), "a dataclass without a docstring gets its signature"
    assert len(inspect.cleandoc(own).split()) >= 4


@pytest.mark.parametrize("page", REFERENCE, ids=page_name)
def test_every_entry_is_followed_by_an_example_that_uses_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = {text.count("\n", 0, match.start()) + 1: match[1] for match in ENTRY.finditer(text)}
    python = [block for block in blocks_of(page) if block.language == "python"]
    ends = [*lines, text.count("\n") + 1]
    for (start, name), end in zip(lines.items(), ends[1:], strict=True):
        below = [block for block in python if start < block.line < end]
        assert below, f"{page_name(page)}: no example below odp.{name}"

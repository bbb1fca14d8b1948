"""Each page of decisions has the parts that its readers look for, and they find it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs/decisions/README.md"
PAGES = sorted(set(INDEX.parent.glob("*.md")) - {INDEX})
PARTS = ["Context", "Decision", "What else was tried or weighed", "What would change our mind"]


def test_every_page_of_the_documentation_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(listed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_is_one_short_page_with_its_parts_and_stands_in_the_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    assert len(text.splitlines()) <= 40
    title = re.findall(r"^# (.*)$", text, re.MULTILINE)[0]
    assert f"[{title}]({page.name})" in INDEX.read_text(encoding="utf-8")

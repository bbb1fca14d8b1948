"""Checks that no page of a built site loads anything from another host, or skips a level of headings.

``python tools/check_site.py site``
"""

from __future__ import annotations

import itertools
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("img", "srcset"), ("iframe", "src"), ("source", "src")}

_HEADING = re.compile(r"<h([1-6])[ >]")
_SHEET_LOADS = re.compile(r"""url\(["']?((?:https?:)?//[^)"']*)""")


class _Loads(HTMLParser):
    """Collects the addresses of other hosts that a browser fetches by itself; links to follow are none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "link" and ("rel", "canonical") in attrs:
            return
        if "mermaid" in (dict(attrs).get("class") or "").split():
            self.addresses.append("the drawings of mermaid, by the theme's script")
        self.addresses += [
            value for name, value in attrs if (tag, name) in _LOADS and value and re.match(r"(https?:)?//", value)
        ]


def foreign_loads(site: Path) -> list[str]:
    """``page: address`` for each thing that a page or a style sheet below ``site`` loads from another host."""
    loads = []
    for page in sorted(site.rglob("*.html")):
        parser = _Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        loads += [f"{page.relative_to(site)}: {address}" for address in parser.addresses]
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        loads += [f"{sheet.relative_to(site)}: {each}" for each in _SHEET_LOADS.findall(text)]
    return loads


def skipped_levels(site: Path) -> list[str]:
    """``page: h1 to h3`` for each heading below ``site`` that screen readers announce without the level above it."""
    skips = []
    for page in sorted(site.rglob("*.html")):
        levels = [int(level) for level in _HEADING.findall(page.read_text(encoding="utf-8"))]
        skips += [
            f"{page.relative_to(site)}: h{level} to h{following}"
            for level, following in itertools.pairwise(levels)
            if following > level + 1
        ]
    return skips


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not any(folder.glob("*.html")):
        sys.exit(f"Expected a built site in {folder} (got no page)")
    if loads := foreign_loads(folder):
        sys.exit("The site loads from other hosts:\n" + "\n".join(loads))
    if skips := skipped_levels(folder):
        sys.exit("Headings skip a level; add the heading between them:\n" + "\n".join(skips))

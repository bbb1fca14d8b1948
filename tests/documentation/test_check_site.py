"""The check of the built site sees what a browser would load from another host, and headings that skip a level."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

_CHECKS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "check_site.py"))
foreign_loads, skipped_levels = _CHECKS["foreign_loads"], _CHECKS["skipped_levels"]


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://unpkg.com/mermaid"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img alt="x" src="http://example.org/x.png">',
        '<pre class="mermaid"><code>graph</code></pre>',
    ],
)
def test_a_script_a_font_and_a_picture_of_another_host_are_named(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<html>{page}</html>", encoding="utf-8")
    (told,) = foreign_loads(tmp_path)
    assert told.startswith("page.html: ")


def test_a_font_of_a_style_sheet_is_named(tmp_path: Path) -> None:
    (tmp_path / "site.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') }", encoding="utf-8")
    assert foreign_loads(tmp_path) == ["site.css: https://fonts.example/a.woff2"]


def test_links_to_follow_and_own_files_are_fine(tmp_path: Path) -> None:
    text = '<a href="https://example.org">x</a><script src="assets/a.js"></script><img src="a.png" alt="a">'
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    assert foreign_loads(tmp_path) == []


def test_a_heading_that_skips_a_level_is_named(tmp_path: Path) -> None:
    (tmp_path / "skips.html").write_text('<h1>a</h1><h3 id="b">b</h3><h1>c</h1>', encoding="utf-8")
    (tmp_path / "fine.html").write_text("<h1>a</h1><h2>b</h2><h3>c</h3><h2>d</h2>", encoding="utf-8")
    assert skipped_levels(tmp_path) == ["skips.html: h1 to h3"]

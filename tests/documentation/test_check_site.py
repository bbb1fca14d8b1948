"""The check of the built site sees what a browser would load from another host."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

foreign_loads = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "check_site.py"))["foreign_loads"]


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

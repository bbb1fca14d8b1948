"""Draws the sequence diagrams of the documentation: the theme's own renderer would load from another host.

The part of Mermaid's language that our pages use: ``participant X as Name``, ``X->>Y: text``, ``X-->>Y: text`` and
``Note over X: text``. Any other line is refused, so that no diagram loses a part.
"""

from __future__ import annotations

import html
import re
import textwrap

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+): (.+)")
_LEFT, _BETWEEN, _TOP, _LINE, _CHARACTER = 90, 170, 56, 16, 6.4


def svg(source: str, title: str) -> str:
    """The picture of a ``sequenceDiagram``, as one SVG element in the colours of the text around it.

    Raises ValueError for a line that this renderer does not know.
    """
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    if not lines or lines[0] != "sequenceDiagram":
        raise ValueError(f"Expected a sequenceDiagram (got {lines[:1]})")
    columns: dict[str, int] = {}
    heads, parts, y = [], [], _TOP + 18
    for line in lines[1:]:
        if found := _PARTICIPANT.fullmatch(line):
            columns[found[1]] = _LEFT + len(columns) * _BETWEEN
            heads.append(_head(columns[found[1]], found[2]))
        elif found := _MESSAGE.fullmatch(line):
            drawn, height = _message(columns[found[1]], columns[found[3]], found[4], y, dashed=found[2] == "--")
            parts.append(drawn)
            y += height
        elif found := _NOTE.fullmatch(line):
            drawn, height = _note(columns[found[1]], found[2], y)
            parts.append(drawn)
            y += height
        else:
            raise ValueError(f"Expected a participant, a message or a note (got {line!r})")
    width = 2 * _LEFT + (len(columns) - 1) * _BETWEEN
    lives = [f'<line x1="{x}" y1="{_TOP - 10}" x2="{x}" y2="{y}" class="life"/>' for x in columns.values()]
    body = "".join([*lives, *heads, *parts])
    return (
        f'<svg class="sequence" viewBox="0 0 {width} {y + 8}" role="img" aria-label="{html.escape(title)}" '
        f'style="min-width:{width}px" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _head(x: int, name: str) -> str:
    rows = textwrap.wrap(name, 20, break_long_words=False)
    return f'<rect x="{x - 80}" y="4" width="160" height="42" rx="6" class="head"/>' + _text(
        x, 29 - (len(rows) - 1) * _LINE // 2, rows, "name"
    )


def _message(start: int, end: int, text: str, y: int, *, dashed: bool) -> tuple[str, int]:
    """The arrow and its text above it, and the height that both take."""
    rows = textwrap.wrap(text, max(int(abs(end - start) / _CHARACTER) - 2, 20), break_long_words=False)
    middle, bottom = (start + end) // 2, y + len(rows) * _LINE
    tip = 7 if end < start else -7
    style = ' stroke-dasharray="5 4"' if dashed else ""
    arrow = (
        f'<line x1="{start}" y1="{bottom}" x2="{end}" y2="{bottom}" class="arrow"{style}/>'
        f'<path d="M{end} {bottom} l{tip} -4 v8 z" class="tip"/>'
    )
    return _text(middle, y + 8, rows, "said") + arrow, len(rows) * _LINE + 14


def _note(x: int, text: str, y: int) -> tuple[str, int]:
    rows = textwrap.wrap(text, 24, break_long_words=False)
    height = len(rows) * _LINE + 10
    box = f'<rect x="{x - 84}" y="{y}" width="168" height="{height}" rx="4" class="note"/>'
    return box + _text(x, y + 17, rows, "said"), height + 10


def _text(x: int, y: int, rows: list[str], kind: str) -> str:
    spans = "".join(f'<tspan x="{x}" y="{y + i * _LINE}">{html.escape(row)}</tspan>' for i, row in enumerate(rows))
    return f'<text text-anchor="middle" class="{kind}">{spans}</text>'

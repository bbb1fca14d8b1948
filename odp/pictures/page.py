"""Parts of a page that stands alone: its rules, tables that fold, charts for phones and for larger screens."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from odp.pictures import charts, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--odp-paper);color:var(--odp-ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
main{max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1rem;font-weight:600;color:var(--odp-muted);margin:0 0 .75rem}
h2{font-size:1.2rem;margin:3rem 0 .25rem;line-height:1.3}
h3{font-size:1rem;margin:1.5rem 0 .25rem}
p{margin:.35rem 0 .75rem;max-width:46rem}
.verdict{font-size:clamp(1.3rem,2.6vw,1.9rem);line-height:1.3;font-weight:650;margin:0 0 .75rem;max-width:none;
 text-wrap:balance}
.judgement{font-size:1.1rem}
.note,.only{color:var(--odp-muted);font-size:.875rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:0 1.5rem;margin:1.75rem 0 0;
 border-top:1px solid var(--odp-grid)}
.facts div{padding:.6rem 0;border-bottom:1px solid var(--odp-grid)}
.facts dt{color:var(--odp-muted);font-size:.8rem}
.facts dd{margin:0;font-size:1.2rem;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.facts .ours dd{color:var(--odp-accent)}
figure{margin:1rem 0 .5rem}
.narrow{display:none}
@media (max-width:640px){.wide{display:none}.narrow{display:block}main{padding:1.25rem 1rem 3rem}}
.scroll{overflow-x:auto;margin:.5rem 0}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--odp-accent);outline-offset:2px}
table{border-collapse:collapse;font-size:.9rem}
caption{text-align:left;color:var(--odp-muted);font-size:.875rem;padding:.25rem 0}
th,td{padding:.3rem 1.25rem .3rem 0;border-bottom:1px solid var(--odp-grid);text-align:left;font-weight:400;
 vertical-align:top}
thead th{color:var(--odp-muted);font-size:.8rem;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.long{overflow-wrap:anywhere;min-width:9rem}
tr.ours>*{color:var(--odp-accent);font-weight:600}
details{border-top:1px solid var(--odp-grid);padding:.6rem 0}
details+details{margin-top:0}
.folds{margin-top:3rem;border-bottom:1px solid var(--odp-grid)}
summary{cursor:pointer;font-weight:600}
summary h2,summary h3{display:inline;font-size:1rem;margin:0}
@media print{.narrow{display:none}.wide{display:block}}
"""


def document(title: str, body: Sequence[str]) -> str:
    """A whole page that loads nothing, light or dark as the reader's system is."""
    head = (
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style.css()}{_RULES}</style></head>"
    )
    return f'<!doctype html>\n<html lang="en">{head}\n<body><main>\n' + "\n".join(body) + "\n</main></body></html>\n"


def chart(draw: Callable[[float], Figure], *, title: str, name: str, text: str = "") -> str:
    """A chart twice, of which a screen shows the one for its width.

    Args:
      draw: from a width in inches to the chart.
      title: what it shows.
      name: of this chart on its page: letters, digits, hyphens.
      text: its numbers, for screen readers.
    """
    shown = "".join(
        f'<div class="{kind}">{style.svg(draw(width), title=title, name=f"{name}-{kind}", text=text)}</div>'
        for kind, width in (("wide", charts.WIDE), ("narrow", charts.NARROW))
    )
    return f"<figure>{shown}</figure>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, ours: str = "") -> str:
    """A table in a box that scrolls by itself; columns without any value are left out, and a table without rows.

    ``ours`` is the first cell of the row that stands out.
    """
    if not rows:
        return ""
    filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
    numbers = {place for place in filled if all(_number(row[place]) for row in rows if row[place])}

    def kind(place: int, row: Sequence[str]) -> str:
        if place in numbers:
            return ' class="n"'
        return ' class="long"' if len(row[place]) > 30 else ""

    def cells(row: Sequence[str]) -> str:
        first, *rest = filled
        body = "".join(f"<td{kind(place, row)}>{html.escape(row[place])}</td>" for place in rest)
        return f'<th scope="row"{kind(first, row)}>{html.escape(row[first])}</th>{body}'

    top = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{html.escape(head[place]) or "value"}</th>'
        for place in filled
    )
    body = "\n".join(f"<tr{' class=ours' if ours and row[0] == ours else ''}>{cells(row)}</tr>" for row in rows)
    said = html.escape(caption)
    return (
        f'<div class="scroll" role="region" aria-label="{said}" tabindex="0"><table><caption>{said}</caption>'
        f"<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def number(value: float | None, form: str) -> str:
    """A number as ``format`` writes it; empty where it is unknown."""
    return "" if value is None else format(value, form)


def _number(text: str) -> bool:
    return text.lstrip("-−")[:1].isdigit()


def fold(title: str, *parts: str, level: int = 2) -> str:
    """Parts below a heading that opens them; nothing where all are empty."""
    inner = "\n".join(part for part in parts if part)
    return f"<details><summary><h{level}>{html.escape(title)}</h{level}></summary>\n{inner}</details>" if inner else ""


def facts(values: Sequence[tuple[str, str]], *, ours: str = "") -> str:
    """Names with large values, side by side, without empty ones; ``ours`` is the name of the one that stands out."""
    shown = "".join(
        f"<div{' class=ours' if name == ours else ''}><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in values
        if value
    )
    return f'<dl class="facts">{shown}</dl>'


def paragraph(text: str, kind: str = "") -> str:
    """Escaped text in a paragraph of a class; nothing where there is none."""
    # A budget and a share are one word each: a line must not break within them.
    said = html.escape(text).replace("ε = ", "ε&nbsp;=&nbsp;").replace(" %", "&nbsp;%")
    return f"<p{f' class={kind}' if kind else ''}>{said}</p>" if text else ""


def heading(text: str, level: int = 2) -> str:
    """An escaped heading."""
    return f"<h{level}>{html.escape(text)}</h{level}>"

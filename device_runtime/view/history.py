"""The chart of what was sent: ε after each contribution and the person's limit, as SVG in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 460.0, 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 2.0, 92.0, 22.0, 28.0


def history_chart(spent: Sequence[float | None], limit: float, *, first: str, last: str) -> str:
    """Steps of ``spent`` (ε after each contribution, in order of time; None where it is infinite).

    Args:
      spent: with an infinite value in it, or without any, nothing is drawn: no height would be true.
      limit: of ε, drawn where it is not far above.
      first, last: when the first and the last contribution were sent, as text without markup.
    """
    values = [value for value in spent if value is not None and math.isfinite(value)]
    if not values or len(values) < len(spent):
        return ""
    top = max(max(values), limit if 0 < limit <= 4 * max(values) else 0.0) * 1.08 or 1.0
    across = (_WIDTH - _LEFT - _RIGHT) / len(values)

    def up(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top, 1)

    path, here = [f"M{_LEFT} {up(0.0)}"], _LEFT
    for value in values:
        path.append(f"V{up(value)}")
        here = round(here + across, 1)
        path.append(f"H{here}")
    shown = f"ε after each of {len(values)} contributions rises to {values[-1]:.2f}; your limit is {limit:g}"
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{shown}">',
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(0.0)}" y2="{up(0.0)}"/>',
        f'<path class="area" d="{"".join(path)}V{up(0.0)}Z"/>',
        f'<path class="line" d="{"".join(path)}"/>',
        f'<text class="strong" x="{here + 6}" y="{up(values[-1]) + 4}">ε {values[-1]:.2f}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{first}</text>',
    ]
    if last != first:
        parts.append(f'<text class="end" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}">{last}</text>')
    if 0 < limit <= top:
        # Beside the newest value where the two would overlap.
        clash = abs(up(limit) - up(values[-1])) < 16
        place = (f'x="{_LEFT}"', -6) if clash else (f'x="{_WIDTH - _RIGHT + 6}"', 4)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(limit)}" y2="{up(limit)}"/>')
        parts.append(f'<text {place[0]} y="{up(limit) + place[1]}">your limit {limit:g}</text>')
    return "".join([*parts, "</svg>"])

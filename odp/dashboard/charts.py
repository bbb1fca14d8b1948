"""Charts of the page as SVG text: no library, no inline style (the page's policy allows none), one accent colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

_WIDTH, _HEIGHT = 360.0, 168.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 52.0, 12.0, 24.0
_MOST_POINTS = 240


def number(value: float) -> str:
    """A number for people: four digits at most, thousands apart."""
    if not math.isfinite(value):
        return "∞" if value == math.inf else "–"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def epsilon(value: float) -> str:
    """ε with two digits after the point, so that columns of it align."""
    return f"{value:,.2f}" if math.isfinite(value) else number(value)


def bar(parts: Sequence[tuple[float, str]], whole: float, *, said: str, mark: float | None = None) -> str:
    """A bar of ``parts`` (value, class), one after the other, on a track that stands for ``whole``.

    ``mark`` draws a thin line at a value. ``said`` is the bar in words.
    """
    whole = whole if whole > 0 and math.isfinite(whole) else 1.0
    svg, start = "", 0.0
    for value, kind in parts:
        if (length := min(max(value, 0.0) / whole, 1.0 - start)) > 0:
            svg += f'<rect class="{kind}" x="{1000 * start:.1f}" y="0" width="{1000 * length:.1f}" height="10"/>'
        start += length
    if mark is not None and 0 < mark < whole:
        svg += f'<rect class="mark" x="{1000 * mark / whole - 2:.1f}" y="0" width="4" height="10"/>'
    return (
        f'<svg class="bar" role="img" aria-label="{escape(said)}" viewBox="0 0 1000 10" preserveAspectRatio="none">'
        f'<rect class="track" x="0" y="0" width="1000" height="10"/>{svg}</svg>'
    )


def columns(values: Sequence[float], *, planned: int, goal: float, last_open: bool, said: str) -> str:
    """A column per round, as high as its contributions; empty places for rounds to come; the open round is lighter."""
    shown = list(values)[-60:]
    places = max(len(shown), min(planned, 60), 8)
    highest = max([*shown, goal, 1.0])
    step = 1000 / places
    svg = ""
    for place in range(places):
        x, width = place * step + 0.12 * step, 0.76 * step
        if place >= len(shown):
            if place < planned:
                svg += f'<rect class="track" x="{x:.1f}" y="97" width="{width:.1f}" height="3"/>'
            continue
        height = max(100 * shown[place] / highest, 3.0)
        kind = "soft" if last_open and place == len(shown) - 1 else "accent"
        svg += f'<rect class="{kind}" x="{x:.1f}" y="{100 - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    return (
        f'<svg class="columns" role="img" aria-label="{escape(said)}" viewBox="0 0 1000 100" '
        f'preserveAspectRatio="none">{svg}</svg>'
    )


def curve(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    title: str,
    level: tuple[str, float] | None = None,
    zero: bool = False,
) -> str:
    """Lines over rounds with the last value of each beside its end; the first one has the accent colour.

    Args:
      series: names, and points (round from 1 on, value).
      title: what the vertical axis measures.
      zero: whether the vertical axis begins at 0 in any case.
      level: name and value of a dashed line, such as a budget.
    """
    drawable = [(name, _thinned([point for point in points if math.isfinite(point[1])])) for name, points in series]
    drawable = [(name, points) for name, points in drawable if points]
    if not drawable:
        return ""
    values = [value for _, points in drawable for _, value in points]
    if level is not None and math.isfinite(level[1]):
        values.append(level[1])
    ticks = _ticks(min(0.0, *values) if zero or min(values) < 0.4 * max(values) else min(values), max(values))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)
    first = min(points[0][0] for _, points in drawable)
    last = max(points[-1][0] for _, points in drawable)

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((place - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / ((high - low) or 1.0)

    svg = ""
    for tick in ticks:
        svg += (
            f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT:.0f}"/>'
            f'<text class="tick end" x="{_LEFT - 7:.0f}" y="{y(tick) + 4:.1f}">{number(tick)}</text>'
        )
    for place in sorted({first, last}):
        svg += f'<text class="tick middle" x="{x(place):.1f}" y="{_HEIGHT - 6:.0f}">{number(place)}</text>'
    if level is not None and math.isfinite(level[1]):
        svg += f'<path class="limit" d="M{_LEFT} {y(level[1]):.1f}H{_WIDTH - _RIGHT:.0f}"/>'
    heights = _apart([y(points[-1][1]) for _, points in drawable], 14.0)
    for order, ((name, points), height) in reversed(list(enumerate(zip(drawable, heights, strict=True)))):
        kind = f"s{min(order, 3)}"
        path = "L".join(f"{x(place):.1f} {y(value):.1f}" for place, value in points)
        end, value = points[-1]
        if end < last:
            svg += f'<path class="grid" d="M{x(end):.1f} {y(value):.1f}L{x(last) + 4:.1f} {height:.1f}"/>'
        svg += (
            f'<path class="line {kind}" d="M{path}"/>'
            f'<circle class="dot {kind}" cx="{x(end):.1f}" cy="{y(value):.1f}" r="3">'
            f"<title>{escape(name)}</title></circle>"
            f'<text class="value {kind}" x="{x(last) + 8:.1f}" y="{height + 4:.1f}">{number(value)}</text>'
        )
    said = f"{title}: " + "; ".join(
        f"{name}, {number(points[-1][1])} at round {points[-1][0]:g}" for name, points in drawable
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><svg role="img" aria-label="{escape(said)}" '
        f'viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}">{svg}</svg></figure>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``_MOST_POINTS`` of them, the last among them."""
    step = max(1, math.ceil(len(points) / _MOST_POINTS))
    return list(points[::-1][::step][::-1])


def _ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers from ``low`` to ``high``."""
    if high <= low:
        low, high = (low - 1.0, low + 1.0) if low else (0.0, 1.0)
    rough = (high - low) / 3
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough), 10 * unit)
    start = math.floor(low / step)
    return [round(step * place, 12) for place in range(start, math.ceil(high / step - 1e-9) + 1)]


def _apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights at least ``gap`` apart that keep their order, as near to ``wanted`` as one pass brings them."""
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    heights = list(wanted)
    for before, place in pairwise(order):
        heights[place] = max(heights[place], heights[before] + gap)
    over = max([0.0, *(height - (_HEIGHT - _BOTTOM) for height in heights)])
    return [height - over for height in heights]

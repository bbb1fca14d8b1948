"""What an ε means for a person, in words, numbers and a chart that promise no more than the definition does.

Differential privacy bounds odds: whoever finds it as likely as not that a person's data were used, and then sees all
that was released, believes it with probability at most ``e^ε / (1 + e^ε)``, but for a chance of about δ. (Dwork and
Roth, "The Algorithmic Foundations of Differential Privacy", 2014, section 2.3; data are all of a person's, or none.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

#: Values of ε to compare with, and what to think of them.
EXAMPLES = ((1.0, "a strong promise"), (4.0, "a weak promise"), (8.0, "by itself, very little is promised"))
_CERTAIN = 5e-5
_WIDTH, _HEIGHT = 460.0, 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 2.0, 92.0, 22.0, 28.0


def sureness(epsilon: float | None) -> float:
    """The largest probability of the belief above, from .5 to 1; None is an infinite ε."""
    if epsilon is None or math.isinf(epsilon):
        return 1.0
    return 1.0 / (1.0 + math.exp(-epsilon))


def percent(probability: float) -> str:
    """Such as "74 %" or "99.97 %": a bound, so rounded up; with enough digits never to look like certainty."""
    left = 1.0 - probability
    if left < _CERTAIN:
        return "practically certain" if left > 0.0 else "certain"
    digits = max(round(-math.log10(left)) - 1, 0)
    # The small part is what a float of the exact share may be off by.
    return f"{math.ceil(100.0 * probability * 10**digits - 1e-9) / 10**digits:.{digits}f} %"


def verdict(epsilon: float | None, delta: float, left: Mapping[str, int]) -> str:
    """What left the device, and what that lets others believe at most.

    Args:
      epsilon, delta: of everything together; None is an infinite ε.
      left: how many of each kind left, such as {"contribution": 5}, also those that were refused.
    """
    kinds = [f"{count:,} {name}{'s' * (count > 1)}" for name, count in left.items() if count]
    if not kinds and epsilon == 0.0:
        return "Nothing made with your data has left this device."
    said = f"Made with your data, this has left the device: {' and '.join(kinds)}. " if kinds else ""
    if epsilon is None:
        return f"{said}There is no bound on what others can learn from it."
    sure = percent(sureness(epsilon))
    bound = f"at most {sure} sure" if sure.endswith("%") else f"{sure} in the worst case"
    chance = f", but for a chance of about 1 in {1 / delta:,.0f}" if delta else ""
    return (
        f"{said}Somebody who knows everything about everybody else, and thinks it as likely as not that your data were "
        f"used, can be {bound} after seeing all that was released{chance}."
    )


def explained() -> list[tuple[str, str, str]]:
    """Rows of (ε, how sure at most, what to think of it)."""
    return [(f"{epsilon:g}", percent(sureness(epsilon)), words) for epsilon, words in EXAMPLES]


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

"""How long to wait before the next attempt, after failures in a row."""

from __future__ import annotations

#: 2^64 times any pause is longer than every longest one; without a bound, a float overflows after some days.
_MOST_DOUBLINGS = 64


def pause_after(failures: int, *, first: float, longest: float) -> float:
    """Seconds to wait after ``failures`` in a row: ``first``, doubled by each failure but one, up to ``longest``."""
    return min(first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest)

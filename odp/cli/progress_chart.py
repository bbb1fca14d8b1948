"""A chart for the terminal: the test error after each round, beside the ε that was spent for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_LABEL, _VALUE = 10, 8
_NARROWEST, _WIDEST = 8, 44
#: How much of the width is for errors; the rest is for ε.
_SHARE_OF_ERRORS = 0.62


@dataclass(frozen=True, kw_only=True)
class ProgressChart:
    """A rich renderable, as wide as the terminal allows; an error is a point, since its axis does not begin at zero.

    Attributes:
      errors: before the first round, and after each; NaN is unknown and has no point.
      epsilon: spent, as long as ``errors``; bars that begin at zero.
      budget: the ε at the end of a bar; infinite where nothing is private, and then there are no bars.
      references: errors of other methods, by name: a line through the points, and one row each.
    """

    errors: Sequence[float]
    epsilon: Sequence[float]
    budget: float
    references: Mapping[str, float] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints: one line per round, one per reference."""
        yield from self._lines(options.max_width, plain=options.ascii_only)

    def _lines(self, width: int, *, plain: bool) -> Iterator[Text]:
        point, mark, line, full, empty = ("o", "+", "|", "#", ".") if plain else ("●", "◇", "│", "█", "░")
        epsilon_name = "epsilon" if plain else "ε"
        free = width - _LABEL - 2 * _VALUE - 4
        left = min(max(round(free * _SHARE_OF_ERRORS), _NARROWEST), _WIDEST)
        right = min(max(free - left, _NARROWEST), _WIDEST)
        finite = [value for value in (*self.errors, *self.references.values()) if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        span = (high - low) or 1.0

        def column(value: float) -> int:
            return round((value - low) / span * (left - 1))

        private = math.isfinite(self.budget)
        head = Text(" " * _LABEL + f"{'test error, lower is better':<{left + _VALUE + 3}}", style="bold")
        yield head.append(f" {epsilon_name} spent of {self.budget:g}" if private else "", style="bold")
        lines = {column(value) for value in self.references.values() if math.isfinite(value)}
        for number, (error, spent) in enumerate(zip(self.errors, self.epsilon, strict=True)):
            row = Text(f"{'before' if number == 0 else f'round {number}':<{_LABEL}}")
            at = column(error) if math.isfinite(error) else -1
            for place in range(left):
                if place == at:
                    row.append(point, style="bold cyan")
                else:
                    row.append(line if place in lines else " ", style="dim")
            row.append(f"{f'{error:.4f}' if math.isfinite(error) else '-':>{_VALUE}}    ")
            if private:
                filled = min(round(spent / self.budget * right), right)
                row.append(full * filled, style="cyan").append(empty * (right - filled), style="dim")
                row.append(f"{spent:{_VALUE}.4f}")
            yield row
        for name, value in sorted(self.references.items(), key=lambda entry: -entry[1]):
            if not math.isfinite(value):
                continue
            at = column(value)
            row = Text(" " * _LABEL)
            for place in range(left):
                row.append(mark if place == at else line if place in lines else " ", style="" if place == at else "dim")
            yield row.append(f"{value:{_VALUE}.4f}    {name}")

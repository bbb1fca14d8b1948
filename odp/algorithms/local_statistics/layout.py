"""The cells of a report: which number stands for which answer to which query.

=====================  =========  =====================  ==========================================================
query                  slots      choices of a slot      the true answer of a user
=====================  =========  =====================  ==========================================================
histogram of shares    1          bins + 1               a bin, drawn by the user's shares; the last one: no data
histogram of users     bins       2                      whether the user has a record in the slot's bin
histogram of records   bins       levels + 1             the user's count there, in steps of clip / levels, rounded
mean                   1          levels + 2             the user's mean in steps of the range; the last one: no data
=====================  =========  =====================  ==========================================================

Every answer goes through k-ary randomised response. A user of a mean whose weight is w of ``max_records`` answers "no
data" with probability 1 - w / max_records, so that one choice carries both the weighted mean and the weight.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from odp.algorithms.statistics.parts import HistogramPart, MeanPart
from odp.models.events_query import EventsTerms
from odp.numerics.arrays import Float64Array
from odp.privacy.mechanisms.randomized_response import RandomizedResponse

#: Finer grids serve nothing at an epsilon that randomised response takes.
MOST_LEVELS = 256
SHARES = "shares"
_VALUES = 33


@dataclass(frozen=True)
class ReportPart:
    """One query: the cells ``offset .. offset + cells - 1``.

    Attributes:
      name, table, column, events: as of ``odp.algorithms.statistics.parts.Part``.
      kind: what a user adds, and its bounds.
      share: probability that a report answers this query.
      levels: steps of the grid of values; 0 for a histogram of shares.
      offset: its first cell.
      epsilon: asked for of one answer.
    """

    name: str
    table: str
    column: str
    kind: HistogramPart | MeanPart
    share: float
    levels: int
    offset: int
    epsilon: float
    events: EventsTerms | None = None

    @property
    def item_labels(self) -> tuple[str, ...]:
        """As of ``odp.algorithms.statistics.parts.Part``."""
        return self.kind.item_labels(self.events) if isinstance(self.kind, HistogramPart) else ()

    @property
    def chooses_bins(self) -> bool:
        """Whether the answer is a bin; else it is a level of one bin, or of the mean."""
        return isinstance(self.kind, HistogramPart) and self.kind.counting == SHARES

    @property
    def slots(self) -> int:
        """Questions of which a report answers one."""
        return self.kind.bins if isinstance(self.kind, HistogramPart) and not self.chooses_bins else 1

    @property
    def choices(self) -> int:
        """Answers to one of them."""
        return choices_of(self.kind, self.levels)

    @functools.cached_property
    def response(self) -> RandomizedResponse:
        """What every answer goes through."""
        return RandomizedResponse(choices=self.choices, asked=self.epsilon)

    @property
    def cells(self) -> int:
        """Numbers that a report of this query can be."""
        return self.slots * self.choices

    @property
    def bound(self) -> float:
        """The most that a user adds to one bin of a histogram, or to the weight of a mean."""
        if isinstance(self.kind, MeanPart):
            return float(self.kind.max_records)
        return min(1.0, self.kind.clip) if self.kind.counting == "users" else self.kind.clip


def choices_of(kind: HistogramPart | MeanPart, levels: int) -> int:
    """Answers to one question of a query."""
    if isinstance(kind, MeanPart):
        return levels + 2
    return kind.bins + 1 if kind.counting == SHARES else levels + 1


def best_levels(kind: HistogramPart | MeanPart, epsilon: float) -> int:
    """Steps of the grid with the least worst variance of a decoded value; 0 for a query without levels.

    Fine grids round little, but have more choices to hide among. The optimum is near exp(epsilon / 3) steps.
    """
    if isinstance(kind, HistogramPart) and kind.counting != "records":
        return 0 if kind.counting == SHARES else 1
    extra = 2 if isinstance(kind, MeanPart) else 1
    candidates = range(1, min(MOST_LEVELS, math.ceil(math.exp(epsilon / 3.0)) + 2) + 1)
    return min(candidates, key=lambda levels: _worst_variance(levels, extra, epsilon))


def _worst_variance(levels: int, extra: int, epsilon: float) -> float:
    """Of a number in [0, 1] on the grid, or in [-1, 1] with a choice for no data, which is 0 (``extra`` choices)."""
    grid = np.arange(levels + 1) / levels
    values = grid if extra == 1 else np.append(2.0 * grid - 1.0, 0.0)
    truth = np.linspace(0.0, 1.0, _VALUES) * levels
    lower = np.minimum(np.floor(truth), levels - 1).astype(np.int64)
    chance: Float64Array = np.zeros((_VALUES, len(values)))
    chance[np.arange(_VALUES), lower] = 1.0 - (truth - lower)
    chance[np.arange(_VALUES), lower + 1] = truth - lower
    odds = math.exp(epsilon)
    total = odds + len(values) - 1.0
    answered = (chance * (odds - 1.0) + 1.0) / total
    spread = answered @ values**2 - (answered @ values) ** 2
    return float(spread.max()) * (total / (odds - 1.0)) ** 2

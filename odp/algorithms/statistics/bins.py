"""Which rows of a data set the bins of histograms hold: a bin by item is what the data set calls the item."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from odp.algorithms.dense.population import items_of, require_values
from odp.algorithms.seam import EVENTS
from odp.algorithms.statistics.parts import HistogramPart, MeanPart, bins_of
from odp.errors import DataError
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Int64Array

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_SHOWN = 5


class Asked(Protocol):
    """A query of statistics, whatever its trust."""

    @property
    def name(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def kind(self) -> HistogramPart | MeanPart: ...
    @property
    def item_labels(self) -> tuple[str, ...]: ...


def rows_left_out(parts: Iterable[Asked], users: Ratings) -> dict[str, LeftOut]:
    """By the name of a query, the rows that it is not about.

    Raises:
      DataError: a histogram by item has no bin for an id, or a question is about values and rows have none.
    """
    left_out = {}
    for part in parts:
        happened = users.values > 0 if part.table == EVENTS else np.ones(users.n_ratings, dtype=np.bool_)
        outside = 0
        if isinstance(part.kind, MeanPart) or part.kind.edges is not None:
            require_values(users, f"the question {part.name!r}")
        if isinstance(part.kind, HistogramPart):
            items = items_of(users, part.item_labels)
            if part.kind.edges is None:
                _require_bins(part, part.kind.bins, items, users)
            numbers = items[users.items]
            outside = int((happened & ~bins_of(part.kind, numbers, users.values.astype(np.float64))[1]).sum())
        about = LeftOut(users.n_ratings).without(int((~happened).sum()), "whose value is 0 or less: nothing happened")
        left_out[part.name] = about.without(outside, "beyond its bins")
    return left_out


def _require_bins(part: Asked, bins: int, items: Int64Array, users: Ratings) -> None:
    if users.item_ids is None:
        return
    outside = np.flatnonzero((items < 0) | (items >= bins))
    if len(outside):
        shown = ", ".join(repr(str(key)) for key in users.item_ids[outside[:_SHOWN]].tolist())
        labels = part.item_labels
        have = f"bins 0 to {bins - 1}"
        mend = "write the ids as whole numbers of that range, or ask for more bins, or name the ids with labels=.."
        if labels:
            have = f"bins {', '.join(map(repr, labels[:_SHOWN]))}{', ..' if bins > _SHOWN else ''}"
            mend = "name these ids in labels=.., too, or leave their rows out of the table"
        raise DataError(
            f"the histogram {part.name!r} counts items by their ids, and has {have}: {len(outside):,} of "
            f"{users.n_items:,} items of data set {users.name!r} have no bin: {shown}"
            f"{', ..' if len(outside) > _SHOWN else ''}; {mend}"
        )

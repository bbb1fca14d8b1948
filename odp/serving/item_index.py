"""The items of a released model as a device serves them: one row of int8, a bias and a trust each.

For m items of rank r the numbers take m (r + 6) bytes: 38 MB for a million items of rank 32. Keys come on top, and are
read only of the items that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.models.item_table import IndexColumns
from odp.numerics.arrays import Float32Array, Int64Array
from odp.serving.item_keys import ItemKeys
from odp.serving.quantised import (
    LARGEST,
    LARGEST_SCALE,
    STEPS,
    Int8Array,
    UInt16Array,
    UInt32Array,
    bias_values,
    decoded,
    joined,
    quantised,
    trust_values,
)

MOST_ITEMS = 2**24
MOST_RANK = 256

_BLOCK = 2**15  # items that are checked at a time


@dataclass(frozen=True, eq=False, repr=False)
class ItemIndex:
    """Quantised items, and what a device needs to score them. ``odp.serving.open_index`` reads one from a file.

    Attributes:
      steps: int8 [m, r].
      scales: uint16 [m]; see ``odp.serving.quantised``.
      biases: uint32 [m], a bias and a trust each (``odp.serving.quantised.joined``): what an item's score begins with,
        and how much its row counts where the person's own is solved.
      keys: of the items.
      task: the signed task of the model, serialized; without a signature for a simulation.
      tables: the dense tables of the model, float32 [n, width], by name.
      facts: name -> text, as ``odp.items.export_items`` has them.
      version: of the model.
      sha256: of the index's file, in hexadecimal digits.
    """

    steps: Int8Array = field(repr=False)
    scales: UInt16Array
    biases: UInt32Array
    keys: ItemKeys
    task: bytes
    tables: Mapping[str, Float32Array]
    facts: Mapping[str, str]
    version: int
    sha256: str

    def __len__(self) -> int:
        return len(self.scales)

    def __repr__(self) -> str:
        return f"ItemIndex({len(self)} items, {self.rank} factors, {self.sha256[:12]})"

    @property
    def rank(self) -> int:
        """Factors per item."""
        return int(self.steps.shape[1])

    def columns(self, items: Int64Array) -> IndexColumns:
        """The numbers of some items, decoded."""
        return IndexColumns(
            factors=decoded(self.steps[items], self.scales[items]),
            biases=bias_values(self.biases[items]),
            trust=trust_values(self.biases[items]),
        )

    def check(self) -> None:
        """Raises DataError for a number that no index has. ``ItemKeys.check`` looks at the keys."""
        for start in range(0, len(self), _BLOCK):
            block = slice(start, start + _BLOCK)
            if self.steps[block].size and int(self.steps[block].min()) < -STEPS:
                raise DataError("a step of a row is -128, which no index has")
            if int(self.scales[block].max()) > LARGEST_SCALE:
                raise DataError("a scale of a row is not finite or beyond 2^40")
            # Also false for a bias that is not a number.
            if not (np.abs(bias_values(self.biases[block])) <= LARGEST).all():
                raise DataError("a bias is not finite or beyond 2^40")
        for name, rows in self.tables.items():
            if not np.isfinite(rows).all():
                raise DataError(f"table {name!r} has a number that is not finite")


def packed(columns: IndexColumns) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an index, by attribute.

    Raises:
      DataError: a number is not finite, or further than 2^40 from 0.
    """
    steps, scales = quantised(columns.factors)
    return {"steps": steps, "scales": scales, "biases": joined(columns.biases, columns.trust)}

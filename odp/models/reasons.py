"""Why an item: what each of the person's own items adds to its prediction."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from odp.numerics.arrays import Float64Array, Int64Array


@dataclass(frozen=True)
class Reasons:
    """Predictions as sums over the person's own items.

    A prediction is what the model expects of anybody, and what each own item adds: its value, as far as that differs
    from what is expected, or that the person has it. Source: Hu, Koren, Volinsky 2008, *Collaborative Filtering for
    Implicit Feedback Datasets*, section 5.

    Attributes:
      items: those own items that the model knows, int64 [k].
      added: float64 [n, k], in the unit of predictions.
    """

    items: Int64Array = field(repr=False)
    added: Float64Array = field(repr=False)

    def most(self, count: int) -> list[list[tuple[int, float]]]:
        """For each prediction the own items that move it most, up or down: (item, what it adds)."""
        order = np.argsort(-np.abs(self.added), axis=1, kind="stable")[:, :count]
        moved = np.take_along_axis(self.added, order, axis=1)
        return [
            [(item, value) for item, value in zip(items, values, strict=True) if value]
            for items, values in zip(self.items[order].tolist(), moved.tolist(), strict=True)
        ]

"""The items of a trained model as a table for other tools.

A model scores item ``i`` for a user with the vector ``row`` [r], and, where ``user_bias`` is true, a bias of its own:

    score = offset + user bias + biases[i] + factors[i] . row

Of a model of implicit feedback, row is the sum of shares[j] * factors[j] over the items j that the user has shown,
divided by the length (root of the sum of squares) of these shares; the order of items is the same without.

Of a model of ratings, devices solve for (bias, row) and add a smooth part to what they predict, which a table does not
have (docs/dpam.md, "Taste that is not linear"): without it, with ``DPAM(kernel_variance=0)``, a table gives their very
predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from odp.errors import DataError
from odp.models.warm_start import checked_keys
from odp.numerics.arrays import Float32Array


class ItemColumns(NamedTuple):
    """What the rows of a model's items hold.

    Attributes:
      factors: float32 [m, r]; r may be 0.
      biases: float32 [m]; 0 where the model has none.
      popularity: about how many users each item has, float32 [m]; None where the model does not say.
      offset: what is added to every score.
      user_bias: whether users have a bias beside their vector.
      shares: how much of an item's factors goes into the row of a user who has shown it, float32 [m], before the
        division by their length (see the module); None where devices solve for the row.
    """

    factors: Float32Array
    biases: Float32Array
    popularity: Float32Array | None
    offset: float
    user_bias: bool
    shares: Float32Array | None = None


class IndexColumns(NamedTuple):
    """Numbers of items that a device ranks by: ``odp.serving`` keeps them quantised.

    Attributes:
      factors: float32 [m, r]; r may be 0.
      biases: float32 [m]; 0 where the model has none.
      trust: float32 [m], from 0 to 1: how much an item's row counts where a person's own row is solved.
    """

    factors: Float32Array
    biases: Float32Array
    trust: Float32Array


@dataclass(frozen=True, repr=False)
class ItemTable:
    """Items of a model, by key, and ``facts`` about where they are from and what is private about them.

    Attributes:
      keys: of the items [m], distinct and not empty.
      columns: the numbers, m rows each.
      facts: name -> text; see ``odp.items.export_items``.

    Raises:
      ConfigurationError: a key is empty or stands twice.
      DataError: columns have other sizes than keys, or a number is not finite.
    """

    keys: Sequence[str]
    columns: ItemColumns = field(repr=False)
    facts: Mapping[str, str]

    def __post_init__(self) -> None:
        """Checks."""
        object.__setattr__(self, "keys", checked_keys(self.keys, name="item_keys"))
        for name in ("factors", "biases", "popularity", "shares"):
            column = getattr(self.columns, name)
            if column is None:
                continue
            if column.ndim != (2 if name == "factors" else 1) or len(column) != len(self.keys):
                raise DataError(
                    f"Expected {name} of {len(self.keys)} items, one row per key of item_keys "
                    f"(got {list(column.shape)})"
                )
            if not np.isfinite(column).all():
                raise DataError(f"Expected {name} of the model's items to be finite numbers: train it again")

    def __repr__(self) -> str:
        """Sizes only."""
        return f"ItemTable({len(self.keys)} items, {self.columns.factors.shape[1]} factors)"

    @property
    def weights(self) -> Float32Array:
        """Float32 [w, m]: ``users @ weights + offsets`` are scores. Users [n, w]: (bias, vector), or the vector alone.

        w is r + 1 with ``user_bias``, else r.
        """
        ours = self.columns
        ones = np.ones((int(ours.user_bias), len(self.keys)), dtype=np.float32)
        return np.concatenate((ones, ours.factors.T.astype(np.float32)))

    @property
    def offsets(self) -> Float32Array:
        """Float32 [m]: what an item's score is without a user."""
        return (self.columns.biases.astype(np.float64) + self.columns.offset).astype(np.float32)

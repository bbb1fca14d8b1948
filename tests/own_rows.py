"""A device's own rows, as the client of a factorization gets them."""

from __future__ import annotations

import numpy as np

from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.seam import LocalData, LocalRows


def own_rows(items: np.ndarray, values: np.ndarray) -> LocalData:
    return {ROWS: LocalRows(items, values)}

"""Totals of the releases of a run: post-processing, so they cost no privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.algorithms.declared import NoisySum
from odp.algorithms.seam import NoisyTensors


@dataclass(frozen=True)
class NoisyTotals:
    """Totals of one released tensor.

    Attributes:
      round, name: of the release.
      total: sum of the tensor's first column over all items, in data units (how much was counted or weighed).
      std: of the noise in that sum.
      mean_square_row: mean of the users' squared row norms, weighted as in the sums; near ``row_clip`` squared most
        rows were clipped. Only of Gram matrices; None elsewhere.
    """

    round: int
    name: str
    total: float
    std: float
    mean_square_row: float | None


def noisy_totals(tensors: NoisyTensors, releases: tuple[NoisySum, ...]) -> tuple[NoisyTotals, ...]:
    """Sums of a round's releases: post-processing, so they cost no privacy."""
    totals = []
    for release in releases:
        values = tensors.tensors[release.name].reshape(release.shape[0], -1)
        first = float(values[:, 0].sum())
        square = None
        if release.name == "gram":
            width = (math.isqrt(8 * values.shape[1] + 1) - 1) // 2
            rows, columns = np.triu_indices(width)
            diagonal = values[:, rows == columns].sum(axis=0)
            square = float(diagonal[1:].sum() / diagonal[0]) if diagonal[0] > 0 else None
        totals.append(
            NoisyTotals(
                round=tensors.round,
                name=release.name,
                total=first,
                std=float(release.column_std[0]) * math.sqrt(release.shape[0]),
                mean_square_row=square,
            )
        )
    return tuple(totals)

"""Totals of the releases of a run: post-processing, so they cost no privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.algorithms.seam import DeclaredRelease, NoisyTensors


@dataclass(frozen=True)
class NoisyTotals:
    """Totals of one released tensor.

    Attributes:
      round, name: of the release.
      total: sum of the tensor's first column over all items, in data units (how much was counted or weighed); of the
        Gramian of all users its trace.
      std: of the noise in that sum.
      mean_square_row: mean of the users' squared row norms, weighted as in the sums; near ``row_clip`` squared most
        rows were clipped. Only of Gram matrices with a constant, and of the Gramian of all users; None elsewhere.
    """

    round: int
    name: str
    total: float
    std: float
    mean_square_row: float | None


def noisy_totals(tensors: NoisyTensors, releases: tuple[DeclaredRelease, ...]) -> tuple[NoisyTotals, ...]:
    """Sums of a round's releases: post-processing, so they cost no privacy."""
    found = []
    without_constant = any(release.name == "gramian" for release in releases)
    for release in releases:
        if release.name == "gramian":
            found.append(_gramian_totals(tensors, release))
            continue
        values = tensors.tensors[release.name].reshape(release.shape[0], -1)
        first = float(values[:, 0].sum())
        square = None
        if release.name == "gram" and not without_constant:
            width = (math.isqrt(8 * values.shape[1] + 1) - 1) // 2
            rows, columns = np.triu_indices(width)
            diagonal = values[:, rows == columns].sum(axis=0)
            square = float(diagonal[1:].sum() / diagonal[0]) if diagonal[0] > 0 else None
        found.append(
            NoisyTotals(
                round=tensors.round,
                name=release.name,
                total=first,
                std=float(release.column_std[0]) * math.sqrt(release.shape[0]),
                mean_square_row=square,
            )
        )
    return tuple(found)


def _gramian_totals(tensors: NoisyTensors, release: DeclaredRelease) -> NoisyTotals:
    packed = tensors.tensors[release.name].ravel()
    rows, columns = np.triu_indices((math.isqrt(8 * len(packed) + 1) - 1) // 2)
    diagonal = rows == columns
    trace = float(packed[diagonal].sum())
    return NoisyTotals(
        round=tensors.round,
        name=release.name,
        total=trace,
        std=math.sqrt(float((release.column_std[diagonal] ** 2).sum())),
        mean_square_row=trace / max(tensors.contributions, 1),
    )

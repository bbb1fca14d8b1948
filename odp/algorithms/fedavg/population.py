"""``FedAvgClient`` for many users at once: the sums of their payloads, without the payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import quantise_rows
from odp.algorithms.fedavg.terms import PARAMETERS, RELEASE, Terms
from odp.errors import DataError
from odp.models.glm.examples import UsersExamples
from odp.models.glm.population import differences
from odp.numerics.arrays import Int64Array
from odp.wire.model import ModelVersion

_NUMBERS = 2**17  # of a block of differences: it stays in the processor's cache


class FedAvgPopulation:
    """``odp.algorithms.seam.Population`` of one task, of ``UsersExamples`` with all tensors side by side.

    Memory beside the examples is bounded by a block of users, never by the population.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def contribute(
        self,
        broadcast: ModelVersion,
        users: UsersExamples,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The sum of every user's payload, int64 [size].

        Raises:
          DataError: there is not one seed per user, or examples have another number of features.
          ConfigurationError: the parameters are of another model.
        """
        terms = self._terms
        if len(seeds) != users.users:
            raise DataError(f"Expected one seed per user, {users.users} (got {len(seeds)})")
        grid, start = terms.grid(round), terms.parameters(broadcast.dense[PARAMETERS])
        usable = prepared(terms, users)
        total = np.zeros(grid.size)
        block = max(1, _NUMBERS // grid.size)
        moved = np.empty((block, grid.size), dtype=np.float32)
        for first in range(0, users.users, block):
            chosen = slice(first, min(first + block, users.users))
            found = moved[: chosen.stop - first]
            own = seeds[chosen]
            differences(terms.model, start, usable, terms.local, seeds=own, round=round, users=chosen, out=found)
            found /= np.float32(terms.clip)
            # Exact: whole numbers, whose sums stay below 2^53.
            total += quantise_rows(grid, found, round=round, seeds=own).sum(axis=0)
            if progress is not None:
                progress(chosen.stop)
        return {RELEASE: total.astype(np.int64)}


def prepared(terms: Terms, users: UsersExamples) -> UsersExamples:
    """The examples as the model reads them: numbers clamped and scaled, examples that a device leaves out left out.

    Raises:
      DataError: examples have another number of features.
    """
    if users.features.shape[1] != terms.examples.width:
        raise DataError(
            f"Expected examples of {terms.examples.width} numbers, as the task declares (got {users.features.shape[1]})"
        )
    features, scale = terms.examples.clamped(users.features, scale=users.scale)
    targets = terms.examples.labels(users.targets, classes=terms.model.classes_range is not None)
    keep = terms.model.usable(features, targets)[users.rows]
    kept = np.concatenate(([0], np.cumsum(keep)))
    return UsersExamples(features, targets, users.rows[keep], kept[users.offsets], scale)

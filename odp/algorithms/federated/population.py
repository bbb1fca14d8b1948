"""``FederatedClient`` for many users at once: the sums of their payloads, without the payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.federated.adding import add_contributions
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, RELEASE, Terms
from odp.datasets.examples import UsersExamples
from odp.numerics.arrays import Float32Array, Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.litert.trainer import Engine

_NUMBERS = 2**18  # of a block of differences: it stays in the processor's cache


class FederatedPopulation:
    """``odp.algorithms.seam.ProgramPopulation`` of one task, of ``UsersExamples`` with all tensors side by side.

    Memory beside the examples is bounded by a block of users, never by the population.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._table: UsableTable | None = None

    def run_by(self, engine: Engine) -> FederatedPopulation:
        """This population, whose model has its program trained by ``engine``."""
        terms = self._terms
        return self._with(dataclasses.replace(terms, model=terms.model.trained_by(engine)))

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
        require_seeds(seeds, users=users.n_users)
        upload, start = terms.upload(round), terms.parameters(broadcast.dense[PARAMETERS])
        usable = self._prepared(users)
        total = np.zeros(upload.size)
        block = max(1, _NUMBERS // upload.size)
        moved = np.empty((block, terms.model.size), dtype=np.float32)
        clip = terms.clip_of(broadcast.dense)
        for first in range(0, users.n_users, block):
            chosen = slice(first, min(first + block, users.n_users))
            updates = moved[: chosen.stop - first]
            block_seeds = seeds[chosen]
            terms.model.differences(
                start, usable, terms.local, seeds=block_seeds, round=round, users=chosen, out=updates
            )  # fmt: skip
            updates = self._sent(updates, seeds=block_seeds, round=round)
            trained = np.diff(usable.offsets[chosen.start : chosen.stop + 1]) > 0
            add_contributions(terms, upload, updates, clip=clip, trained=trained, seeds=block_seeds, total=total)
            if progress is not None:
                progress(chosen.stop)
        return {RELEASE: total.astype(np.int64)}

    def _with(self, terms: Terms) -> FederatedPopulation:
        """This population with other terms."""
        return FederatedPopulation(terms)

    def _sent(self, moved: Float32Array, *, seeds: npt.NDArray[np.uint64], round: int) -> Float32Array:
        """What these users send of their differences, float32 [users, size], before it is clipped and rounded."""
        return moved

    def _prepared(self, users: UsersExamples) -> UsersExamples:
        if self._table is None or not self._table.is_of(users):
            self._table = UsableTable.of(self._terms.model, self._terms.examples, users)
        return self._table.usable(users, most_rows=self._terms.local.most_rows)

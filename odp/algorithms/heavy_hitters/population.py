"""``WordsClient`` for many users at once: the sums of their payloads, without the payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from odp.algorithms.heavy_hitters.terms import PREFIXES, RELEASE, Terms, chosen
from odp.datasets.texts import UsersTexts
from odp.numerics.arrays import Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion


class WordsPopulation:
    """``odp.algorithms.seam.Population`` of one task."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def contribute(
        self,
        broadcast: ModelVersion,
        users: UsersTexts,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The sum of every user's payload, int64 [size]. Raises DataError where there is not one seed per user."""
        terms = self._terms
        terms.check_round(round)
        require_seeds(seeds, users=users.n_users)
        numbers, usable = terms.words.numbers(users.texts)
        chosen_rows = chosen(users.users(), usable, seeds)
        cells = terms.cells(numbers[chosen_rows[chosen_rows >= 0]], broadcast.dense[PREFIXES], round=round)
        total = np.bincount(cells[cells >= 0], minlength=terms.grid.size).astype(np.int64)
        if progress is not None:
            progress(users.n_users)
        # The whole clip is a whole number of steps: nothing is rounded.
        return {RELEASE: total * terms.grid.units}

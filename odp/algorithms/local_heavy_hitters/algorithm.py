"""Searches for words by sketches as the platform sees them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.capabilities import Answers
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.heavy_hitters.terms import ROWS, TEXT, chosen, word_seconds
from odp.algorithms.local_heavy_hitters.terms import Terms
from odp.algorithms.local_reports import LocalReports
from odp.algorithms.local_seam import RELEASE, HashedWords, Words
from odp.algorithms.seam import LocalData, LocalTable, most_rows
from odp.models.computing_cost import ComputingCost
from odp.numerics.arrays import Int64Array, require_seeds
from odp.privacy.events import Event
from odp.privacy.local_events import LocalReport

if TYPE_CHECKING:
    from odp.datasets.texts import UsersTexts


class TaskAlgorithm(LocalReports):
    """``odp.algorithms.local_reports.LocalReports`` of tasks that ask for words."""

    simulates = "texts"

    def terms(self) -> Terms:
        """The definition, read and checked."""
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        words = self.terms().words
        return (LocalTable(ROWS, words.table, frozenset(), words.events, most_rows(words.events), text=True),)

    @property
    def computing_cost(self) -> ComputingCost:
        return reading_cost(self.local_data, row_seconds=word_seconds(self.terms().words))

    @property
    def cells(self) -> int:
        return self.terms().cells

    @property
    def charge(self) -> float:
        return self.terms().response.epsilon

    @property
    def most_updates(self) -> int:
        return self.definition.local_heavy_hitters.most_reports or super().most_updates

    def cell_of(self, data: LocalData, words: Words) -> int:
        texts = data[ROWS].features.get(TEXT, np.zeros(0, dtype=np.str_))
        return int(self.terms().reports(np.zeros(len(texts), dtype=np.int64), texts, words, users=1)[0])

    def answers_of_counts(self, counts: Int64Array) -> Answers:
        from odp.algorithms.heavy_hitters.results import WordResults
        from odp.algorithms.local_heavy_hitters.decoding import decode

        terms = self.terms()
        decoded = decode(terms, counts)
        names = [terms.words.text(word) for word in decoded.words.tolist()]
        return WordResults(
            counts=dict(zip(names, decoded.counts.tolist(), strict=True)),
            std=dict(zip(names, decoded.stds.tolist(), strict=True)),
            contributions=int(counts.sum()),
            epsilon=terms.response.epsilon,
            delta=0.0,
        )

    def exact(self, users: UsersTexts) -> Answers:
        from odp.algorithms.heavy_hitters.results import WordResults

        terms = self.terms()
        numbers, usable = terms.words.numbers(users.texts)
        chosen_rows = chosen(users.users(), usable, users.user_keys.astype(np.uint64))
        words, counts = np.unique(numbers[chosen_rows[chosen_rows >= 0]], axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[: terms.prefixes]
        word_counts = {terms.words.text(words[place].tolist()): float(counts[place]) for place in order.tolist()}
        return WordResults(counts=word_counts, std=0.0, contributions=users.n_users, epsilon=math.inf, delta=0.0)

    def simulated(self, users: UsersTexts, *, seeds: npt.NDArray[np.uint64]) -> tuple[Answers, tuple[Event, ...]]:
        require_seeds(seeds, users=users.n_users)
        terms = self.terms()
        cells = terms.reports(users.users(), users.texts, HashedWords(seeds), users=users.n_users)
        counts = np.bincount(cells, minlength=terms.cells)
        return self.answers_of_counts(counts), (LocalReport(RELEASE, terms.response.epsilon),)

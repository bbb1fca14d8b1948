"""What a developer writes to find the most frequent words of a population, without a list of words.

Example::

    import odp

    task = odp.HeavyHitters(
        name="new-words",
        events=odp.Events(service="keyboard", type="typed", item="word"),
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-7),
        cohort=odp.Cohort(minimum=10_000, goal=100_000),
    )
    odp.simulate(task, odp.synthetic_words(n_users=100_000)).results.top(10)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp import _validate
from odp.algorithms.heavy_hitters.words import LONGEST, check_alphabet
from odp.errors import ConfigurationError
from odp.models.events import Events
from odp.task import Question
from odp.v1 import common_pb2, heavy_hitters_pb2

if TYPE_CHECKING:
    from odp.algorithms.dense.grid import Grid

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.-_'"
# Contributions that a round takes, over its goal: those that arrive before it closes are not refused.
_ROOM = 2


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Question):
    """The most frequent words of the devices' events, each device with one word of its own.

    Round 0 counts the first characters of all words, each later round one more character of the prefixes whose noisy
    counts were above the threshold. The budget covers all rounds.

    Attributes:
      name, privacy, cohort, population: as of ``odp.Statistics``.
      events: The events that words are read from: one item column, whose texts are taken in lower case.
      alphabet: The characters of words, in lower case. A text with another one is no word.
      length: Characters of the longest word, 2 to 32; a longer text is no word. Each takes a round, and a share of the
        budget.
      prefixes: Prefixes that are followed up at most; every contribution has 4 (characters + 1) bytes for each.
      most_words: Words that are kept, those of the largest counts.
      threshold: A prefix is followed up, and a word kept, where its noisy count is at least this number of standard
        deviations of the noise. At 4, a round adds 0.00003 of its cells by chance.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    events: Events
    alphabet: str = LETTERS
    length: int = 12
    prefixes: int = 200
    most_words: int = 1000
    threshold: float = 4.0

    def __post_init__(self) -> None:
        if not isinstance(self.events, Events):
            raise ConfigurationError(f"Expected events to be odp.Events, got a {type(self.events).__name__}")
        if self.events.aggregate not in (None, "each"):
            raise ConfigurationError(f"Expected no aggregate={self.events.aggregate!r}: every event has its text")
        if not isinstance(self.alphabet, str):
            raise ConfigurationError(f"Expected alphabet to be text, got a {type(self.alphabet).__name__}")
        check_alphabet(self.alphabet)
        _validate.integer(low=2, high=LONGEST, length=self.length)
        _validate.integer(low=1, high=2**14, prefixes=self.prefixes, most_words=self.most_words)
        _validate.within(low=0.0, high=100.0, threshold=self.threshold)
        super().__post_init__()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        definition = self.unresolved()
        base, first = len(self.alphabet) + 1, 1
        while first < self.length and base ** (first + 1) <= base * self.prefixes:
            first += 1
        words = heavy_hitters_pb2.WordTerms(
            table=self.events.table,
            events=self.events.to_proto(aggregate="each"),
            alphabet=self.alphabet,
            length=self.length,
        )
        definition.heavy_hitters.CopyFrom(
            heavy_hitters_pb2.HeavyHitters(
                words=words,
                first=first,
                prefixes=self.prefixes,
                most_words=self.most_words,
                threshold=self.threshold,
                dense=self._grid(definition.cohort, base, first).to_proto(),
            )
        )
        return definition

    def _grid(self, cohort: common_pb2.CohortTerms, base: int, first: int) -> Grid:
        """The grid whose noise makes all rounds together keep the budget."""
        from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Grid
        from odp.algorithms.heavy_hitters.terms import rounds_of, size_of
        from odp.privacy.accounting import mu_for

        rounds = rounds_of(length=self.length, first=first)
        size = size_of(base=base, first=first, prefixes=self.prefixes)
        mu = mu_for(epsilon=self.privacy.epsilon, delta=self.privacy.delta, coordinates=rounds * size)
        maximum = min(_ROOM * cohort.goal, MAX_CONTRIBUTIONS)
        return Grid.chosen(size=size, clip=1.0, noise_std=math.sqrt(rounds) / mu, maximum=maximum)

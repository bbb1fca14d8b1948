"""What a developer writes to find the most frequent words of a population, without a list of words.

Example::

    import odp

    task = odp.HeavyHitters(
        name="new-words",
        events=odp.Events(service="keyboard", type="typed", item="word"),
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-7),
        cohort=odp.Cohort(minimum=10_000, goal=100_000),
    )
    odp.simulate(task, odp.data.synthetic_words(n_users=100_000)).results.top(10)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.choices import Question
from odp.algorithms.heavy_hitters.terms import LONGEST, check_alphabet, rounds_of, size_of
from odp.algorithms.registry import part_of
from odp.errors import ConfigurationError
from odp.models.events import Events
from odp.protocol.aggregation import DEFAULT
from odp.v1 import common_pb2, heavy_hitters_pb2

if TYPE_CHECKING:
    from odp.algorithms.dense.grid import Grid

AGGREGATOR, LOCAL = "aggregator", "local"
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
        deviations of the noise. With "local" trust, prefixes are followed up without it. Default: 4, at which a round
        adds 0.00003 of its cells by chance; 5 with "local" trust, which compares many more prefixes.
      trust: "aggregator": by rounds over prefixes, whose sums the attested enclave adds noise to. "local": by one
        report per device, hashed and randomised on the device, so that no party is trusted and no enclave takes part;
        it is private by itself, delta is unused, and only words of many more users are found.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    section: ClassVar[str] = "heavy_hitters"

    events: Events
    alphabet: str = LETTERS
    length: int = 12
    prefixes: int = 200
    most_words: int = 1000
    threshold: float | None = None
    trust: str = AGGREGATOR

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
        _validate.within(low=0.0, high=100.0, threshold=self._threshold)
        _validate.one_of((AGGREGATOR, LOCAL), trust=self.trust)
        if self.trust == LOCAL and self.cohort.aggregation != DEFAULT:
            raise ConfigurationError(
                f"Expected aggregation={self.cohort.aggregation!r} to be {DEFAULT!r} with trust={self.trust!r}: "
                "what devices send is no vector that masks could hide"
            )
        super().__post_init__()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        definition = self.unresolved()
        if self.trust == LOCAL:
            # The algorithm of this trust imports what is here, so the table finds it.
            part_of("local_heavy_hitters", "config").write(
                definition, self._words(), prefixes=self.prefixes, threshold=self._threshold
            )
            return definition
        base, first = len(self.alphabet) + 1, 1
        while first < self.length and base ** (first + 1) <= base * self.prefixes:
            first += 1
        definition.heavy_hitters.CopyFrom(
            heavy_hitters_pb2.HeavyHitters(
                words=self._words(),
                first=first,
                prefixes=self.prefixes,
                most_words=self.most_words,
                threshold=self._threshold,
                dense=self._grid(definition.cohort, base, first).to_proto(),
            )
        )
        return definition

    @property
    def _threshold(self) -> float:
        usual = 5.0 if self.trust == LOCAL else 4.0
        return usual if self.threshold is None else self.threshold

    def _words(self) -> heavy_hitters_pb2.WordTerms:
        return heavy_hitters_pb2.WordTerms(
            table=self.events.table,
            events=self.events.to_proto(aggregate="each"),
            alphabet=self.alphabet,
            length=self.length,
        )

    def _grid(self, cohort: common_pb2.CohortTerms, base: int, first: int) -> Grid:
        """The grid whose noise makes all rounds together keep the budget."""
        from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Grid
        from odp.privacy.accounting import mu_for

        rounds = rounds_of(length=self.length, first=first)
        size = size_of(base=base, first=first, prefixes=self.prefixes)
        mu = mu_for(epsilon=self.privacy.epsilon, delta=self.privacy.delta, coordinates=rounds * size)
        maximum = min(_ROOM * cohort.goal, MAX_CONTRIBUTIONS)
        return Grid.chosen(size=size, clip=1.0, noise_std=math.sqrt(rounds) / mu, maximum=maximum)

"""Searches for frequent words as the platform sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from google.protobuf.message import Message

from odp.algorithms.capabilities import Answers, Diagnosed
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.heavy_hitters.terms import (
    CHARACTER_SECONDS,
    COUNTS,
    PREFIXES,
    RELEASE,
    ROWS,
    WORDS,
    Terms,
    word_seconds,
)
from odp.algorithms.seam import (
    Client,
    LocalTable,
    ModelTable,
    NoisyTensors,
    Population,
    Query,
    Server,
    most_rows,
)
from odp.errors import ConfigurationError
from odp.models.computing_cost import SEALED_SECONDS, SORTED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.datasets.texts import UsersTexts


class TaskAlgorithm(Diagnosed):
    """``odp.algorithms.capabilities.Diagnosed`` of tasks that search for words by rounds over prefixes.

    ==============  ============  =========================================  ===========  =============
    release         shape         sum over users of                          sensitivity  noise std
    ==============  ============  =========================================  ===========  =============
    ``prefixes``    [size]        1 at the cell of the user's word, or zeros  1            noise_std
    ==============  ============  =========================================  ===========  =============

    Every round is charged. What a later round counts follows from the releases before it, and from nothing else.
    """

    dense = True

    def terms(self) -> Terms:
        """The definition, read and checked."""
        return Terms.of(self.definition)

    @property
    def resolved(self) -> Message:
        return cast("Message", self.definition.heavy_hitters.dense)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        words = self.terms().words
        return (LocalTable(ROWS, words.table, frozenset(), words.events, most_rows(words.events), text=True),)

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        width = terms.words.length
        return (
            ModelTable(PREFIXES, terms.prefixes, width, False),
            ModelTable(WORDS, terms.most_words, width, False),
            ModelTable(COUNTS, terms.most_words, 1, False),
        )

    @property
    def computing_cost(self) -> ComputingCost:
        terms = self.terms()
        prefixes = terms.prefixes * (SORTED_SECONDS + CHARACTER_SECONDS * terms.words.length)
        return reading_cost(self.local_data, row_seconds=word_seconds(terms.words)).plus(
            Product(prefixes + SEALED_SECONDS * terms.grid.size), memory=(Product(VECTOR_BYTES * terms.grid.size),)
        )

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.heavy_hitters.server import WordsServer

        if item_features is not None:
            raise ConfigurationError("Expected no item_features: a search for words does not use them")
        return WordsServer(self.terms())

    def client(self) -> Client:
        from odp.algorithms.heavy_hitters.client import WordsClient

        return WordsClient(self.terms())

    def query(self, round: int) -> Query:
        from odp.algorithms.dense.query import DenseQuery

        terms = self.terms()
        terms.check_round(round)
        return DenseQuery(RELEASE, terms.grid)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(0).releases] * self.terms().rounds

    def population(self) -> Population[UsersTexts]:
        from odp.algorithms.heavy_hitters.population import WordsPopulation

        return WordsPopulation(self.terms())

    @property
    def figure_names(self) -> tuple[str, ...]:
        return ()

    def figures(self, broadcast: ModelVersion, released: NoisyTensors, *, noisy: bool) -> dict[str, float]:
        return {}

    def diagnosed(self, releases: Sequence[NoisyTensors], *, epsilon: float) -> Answers:
        """The words after these rounds."""
        from odp.algorithms.heavy_hitters.results import WordResults
        from odp.algorithms.heavy_hitters.server import WordsServer

        if not releases:
            raise ConfigurationError(f"task {self.definition.name!r} has released nothing yet; wait for a round")
        terms = self.terms()
        server = WordsServer(terms)
        state = server.start()
        for release in releases:
            state = server.step(state, release)
        words = {terms.words.text(characters): count for characters, count in server.read_state(state).words}
        return WordResults(
            counts=words,
            std=terms.grid.noise_std,
            contributions=releases[-1].contributions,
            epsilon=epsilon,
            delta=self.definition.privacy.delta,
        )

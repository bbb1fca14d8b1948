"""Questions that one sum of vectors answers: everything but the vector and what its numbers mean."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, cast

from google.protobuf.message import Message

from odp.algorithms.capabilities import Inquiry
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.dense.records import GridTerms, VectorTerms, check_round
from odp.algorithms.seam import Client, ModelTable, Population, Query, Server
from odp.errors import ConfigurationError
from odp.models.computing_cost import SEALED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.algorithms.declared import DeclaredRelease
    from odp.datasets.ratings import Ratings


# Counting one record, which may be a number of the vector, and rounding it.
_COUNTED_SECONDS = 6e-7


class DenseInquiry(Inquiry):
    """One joint release of one dense vector; its guarantee is that of ``odp.algorithms.dense.query``.

    =============  =======  =====================================  ===========  =============
    release        shape    sum over users of                      sensitivity  noise std
    =============  =======  =====================================  ===========  =============
    ``release``    [size]   the user's vector                      clip         noise_std
    =============  =======  =====================================  ===========  =============

    A dishonest device can put its whole bound into any number: it spoils accuracy, never privacy.
    """

    #: Name of the release.
    release: ClassVar[str]

    @abc.abstractmethod
    def terms(self) -> GridTerms:
        """The definition, read and checked."""

    @property
    def resolved(self) -> Message:
        return cast("Message", getattr(super().resolved, "dense"))  # noqa: B009  # every such message has this field

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        """The released numbers, which the server publishes."""
        return (ModelTable(self.release, self.terms().grid.size, 1, False),)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.dense.server import VectorServer

        if item_features is not None:
            raise ConfigurationError("Expected no item_features: a question does not use them")
        return VectorServer(self.release, self.terms().grid.size)

    def query(self, round: int) -> Query:
        from odp.algorithms.dense.query import DenseQuery

        terms = self.terms()
        check_round(round)
        return DenseQuery(self.release, terms.grid)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(0).releases]


class VectorInquiry(DenseInquiry):
    """A question about rows of local tables, for which devices need no model."""

    @abc.abstractmethod
    def terms(self) -> VectorTerms:
        """The definition, read and checked."""

    @property
    def computing_cost(self) -> ComputingCost:
        numbers = self.terms().grid.size
        return reading_cost(self.local_data, row_seconds=_COUNTED_SECONDS).plus(
            Product(SEALED_SECONDS * numbers), memory=(Product(VECTOR_BYTES * numbers),)
        )

    def client(self) -> Client:
        from odp.algorithms.dense.client import VectorClient

        return VectorClient(self.terms())

    def population(self) -> Population[Ratings]:
        from odp.algorithms.dense.population import VectorPopulation

        return VectorPopulation(self.release, self.terms())

"""What some algorithms can do besides: answer a question, score items for a person, or diagnose their training."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from odp.algorithms.seam import Algorithm, Client, LocalData, NoisyTensors, Population, Server
from odp.models.intervals import Intervals
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion, Slices

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from odp.algorithms.estimates import Estimate
    from odp.datasets.ratings import Ratings
    from odp.models.item_files import IndexColumns, ItemColumns
    from odp.models.left_out import LeftOut
    from odp.models.rated_items import RatedItems
    from odp.models.reasons import Reasons
    from odp.models.warm_start import WarmStart
    from odp.privacy.events import Event
    from odp.v1 import common_pb2


@runtime_checkable
class RecommenderClient(Client, Protocol):
    """A client that can predict."""

    def items(self, data: LocalData) -> Int64Array:
        """The items that the person has, int64: they are not recommended again."""

    def predict(self, slices: Slices, data: LocalData, items: Int64Array) -> Float64Array:
        """Predicted values float64 [n] for ``items`` (each among ``slices.keys``), personalised on all of ``data``.

        They rank items, and are measured by evaluations; what people see of them is ``on_scale``.
        """

    def on_scale(self, values: Float64Array) -> Float64Array:
        """Predictions as people see them: values within the declared range, or scores as they are."""

    def reasons(self, slices: Slices, data: LocalData, items: Int64Array) -> Reasons:
        """What each of the person's own items adds to the predictions of ``items``. Raises as ``predict``."""


@runtime_checkable
class IntervalClient(RecommenderClient, Protocol):
    """A client that says how far its predictions may be off."""

    def intervals(self, slices: Slices, data: LocalData, items: Int64Array, *, level: float) -> Intervals:
        """``predict`` with ranges that cover the values at ``level``, from .5 to .99."""


@runtime_checkable
class PriorClient(RecommenderClient, Protocol):
    """A client whose predictions may begin at what people say of themselves: see ``odp.models.side_prior``."""

    def beginning(self, mean: Float64Array) -> RecommenderClient:
        """A client that begins at a bias and a row, float64 [1 + rank]; what it contributes does not change."""


class RecommenderServer(Server, Protocol):
    """A server whose model knows how often items are used."""

    def counts(self, state: bytes) -> Float64Array:
        """Popularity of the items, float64 [m] at least 0, estimated from the noisy counts; 1 before them."""


class RecommenderPopulation(Population["Ratings"], Protocol):
    """A population whose users can predict."""

    def predict(self, broadcast: ModelVersion, history: Ratings, targets: Ratings) -> Float64Array:
        """Predictions float64 [targets.n_ratings] for every entry of ``targets``, personalised on ``history``."""


class Answers(Protocol):
    """What a question released, in its own units, with intervals for the noise."""

    @property
    def contributions(self) -> int:
        """Devices that took part."""

    @property
    def epsilon(self) -> float:
        """What it cost each of them at ``delta``; infinite without noise."""

    @property
    def delta(self) -> float:
        """As in the budget."""

    def to_json(self, confidence: float = ...) -> dict[str, object]:
        """Plain values."""

    def lines(self, confidence: float, exact: Self | None = None) -> Iterator[object]:
        """What a terminal shows (text and tables of rich), beside ``exact`` of a simulation."""

    def draw(self, path: str | Path, *, exact: Self | None = None, confidence: float = ...) -> None:
        """Saves a picture. Raises DataError where it cannot."""


class Inquiry(Algorithm):
    """The capability of algorithms that answer a question in one round of dense contributions, and train no model."""

    dense = True
    reads_model = False

    def left_out(self, users: Any) -> Mapping[str, LeftOut]:
        """By the name of an answer, what a simulation leaves out of the users' own data, and why.

        Empty where all is used. Other answers have a field ``left_out``, which takes it.

        Raises:
          DataError: nothing of it can be used.
        """
        return {}

    @abc.abstractmethod
    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        """The answers in the released values, by release name; without noise, intervals have no width.

        Raises:
          ConfigurationError: ``released`` are not what the task releases.
        """


class UsableAnswers(Answers, Protocol):
    """How many devices have rows that a training can use."""

    @property
    def usable(self) -> Estimate:
        """The share of devices with a usable row."""

    def summary(self, confidence: float = ...) -> str:
        """One line, to stand beside the figures of the training."""


class CountsUsable(Inquiry):
    """The capability of the question that counts usable rows before a training spends ε."""

    @abc.abstractmethod
    def counts_for(self, training: common_pb2.TaskDefinition) -> bool:
        """Whether it counts the very rows that a training would read.

        Raises:
          ConfigurationError: the task reads no rows.
        """

    @abc.abstractmethod
    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> UsableAnswers:
        """As ``Inquiry.answers``."""


class RandomizedInquiry(Inquiry):
    """The capability of questions whose devices send one report each that is private by itself.

    The randomness of the answers is in the reports: no party adds noise, and there is no release without it.
    """

    dense = False
    #: The users that a simulation takes: "ratings" or "texts". Enclaves do not load data sets.
    simulates: ClassVar[str]

    @property
    @abc.abstractmethod
    def fewest_users(self) -> int:
        """The fewest users of which there are answers."""

    @property
    @abc.abstractmethod
    def most_users(self) -> int:
        """The most users that may report."""

    @abc.abstractmethod
    def exact(self, users: Any, /) -> Answers:
        """The answers of the users' own data, which no party sees: for simulations of ``simulates``."""

    @abc.abstractmethod
    def simulated(self, users: Any, /, *, seeds: npt.NDArray[np.uint64]) -> tuple[Answers, tuple[Event, ...]]:
        """(the answers in the users' reports, what these cost).

        Raises:
          DataError: there is not one seed per user.
        """


class Diagnosed(Algorithm):
    """The capability of algorithms whose releases tell more than the model: figures of each round."""

    @property
    @abc.abstractmethod
    def figure_names(self) -> tuple[str, ...]:
        """The names of a round's figures; none where the task releases none."""

    @abc.abstractmethod
    def figures(self, broadcast: ModelVersion, released: NoisyTensors, *, noisy: bool) -> dict[str, float]:
        """The figures of a round that had ``broadcast`` as its model, by name."""

    @abc.abstractmethod
    def diagnosed(self, releases: Sequence[NoisyTensors], *, epsilon: float) -> Answers:
        """The figures of all rounds so far, from round 0 on.

        Raises:
          ConfigurationError: the task releases none, or a round's release is missing.
        """


class Recommender(Algorithm):
    """The capability of algorithms whose model scores items for a person, and whose keyed table has a row per item."""

    @abc.abstractmethod
    def server(self, *, item_features: Float32Array | None = None) -> RecommenderServer:
        """As ``Algorithm.server``."""

    @abc.abstractmethod
    def client(self) -> RecommenderClient:
        """As ``Algorithm.client``."""

    @abc.abstractmethod
    def population(self) -> RecommenderPopulation:
        """As ``Algorithm.population``."""

    @abc.abstractmethod
    def item_columns(self, model: ModelVersion) -> ItemColumns:
        """What the rows of a model's items hold, for other tools."""


@runtime_checkable
class TestedItems(Protocol):
    """An algorithm whose trained items devices can test on their own ratings."""

    @property
    def rated_items(self) -> RatedItems:
        """The model of an evaluation of them."""


@runtime_checkable
class Starting(Protocol):
    """An algorithm whose trained items can begin other models."""

    def warm_start(self, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
        """The items of ``model``, as ``odp.items.warm_start``."""


@runtime_checkable
class ServedClient(RecommenderClient, Protocol):
    """A client whose predictions are close to a linear function of item rows, so that a scan finds the best items."""

    def linear(self, slices: Slices, data: LocalData) -> Float64Array:
        """The person's row float64 [rank]: predictions rank items about as their bias plus factors times it do."""


@runtime_checkable
class Served(Protocol):
    """An algorithm whose items can be kept quantised on devices (``odp.serving``)."""

    @property
    def index_rank(self) -> int:
        """Factors of an item of an index."""

    def index_columns(self, model: ModelVersion) -> IndexColumns:
        """The numbers of a model's items that a prediction reads."""

    def index_rows(self, columns: IndexColumns) -> Float32Array:
        """Rows of the model's keyed table float32 [n, width] with these numbers; what no prediction reads is 0."""

"""The algorithm seam: an algorithm is four computations, one per party.

=================  ======================================================  =====================
module             computation                                             runs at
=================  ======================================================  =====================
``server.py``      initial state; state -> broadcast; (state, release)     server (untrusted)
                   -> next state
``client.py``      (slices, local data, local parameters) ->               one device
                   (payload, new local parameters)
``query.py``       the declared DP query of a round: what is checked,      aggregator's enclave
                   summed, noised and charged
``population.py``  ``client.py`` vectorised over many users                simulator
=================  ======================================================  =====================

The networked platform and the simulator run the same four; with equal inputs and no noise they agree to 1e-6.
Everything that a query declares follows from the task definition alone: an enclave trusts nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.models.events_query import EventsTerms
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.encoding import Encoding
from odp.protocol.wire.model import ModelVersion, Slices
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.algorithms.declared import DeclaredRelease
    from odp.models.computing_cost import ComputingCost
    from odp.models.features import Feature
    from odp.models.litert.trainer import Engine, ProgramTrainer
    from odp.privacy.local_charge import LocalCharge
    from odp.privacy.matrix.encoding import Encoder
    from odp.privacy.matrix.sensitivity import Participation


@dataclass(frozen=True)
class LocalRows:
    """Rows of one local table as typed columns: ``items`` int64 [k], ``values`` float64 [k], both of any size.

    Rows of examples have the label as their value, and ``features``: further columns [k, ..] of numbers, by name.
    A task's client leaves out what it cannot use, and refuses nothing (``within``); ``unread`` were left out before.
    """

    items: Int64Array = field(repr=False)
    values: Float64Array = field(repr=False)
    features: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    unread: int = 0

    def within(self, *, items: int, values: tuple[float, float] | None = None) -> LocalRows:
        """Rows whose items are from 0 to ``items`` - 1.

        With a range of ``values``, those that are not finite are left out, and others are clamped to it.
        """
        valid = (self.items >= 0) & (self.items < items)
        if values is None:
            return self.where(valid)
        rows = self.where(valid & np.isfinite(self.values))
        return LocalRows(rows.items, np.clip(rows.values, *values), rows.features)

    def where(self, which: npt.NDArray[np.bool_]) -> LocalRows:
        """The rows where ``which`` (bool [k]) is true."""
        features = {name: column[which] for name, column in self.features.items()}
        return LocalRows(self.items[which], self.values[which], features)

    def last(self, most: int) -> LocalRows:
        """The last ``most`` rows, or all."""
        part = slice(max(0, len(self.values) - most), None)
        return LocalRows(self.items[part], self.values[part], {name: at[part] for name, at in self.features.items()})


#: Rows of the table of ratings that a device reads for a task: all but a few people of the public data sets have less.
MOST_RATINGS = 2**13


def most_rows(events: EventsTerms | None, *, items: int = MOST_RATINGS) -> int:
    """Stored rows of a table of events, or of the table of ratings of these ``items``, that a device reads at most."""
    return min(items, MOST_RATINGS) if events is None else events.most_events


#: The table of ratings, read as things that happened: rows with a value above 0.
EVENTS = "events"

#: One device's own data: the rows of each table that its algorithm declared, by ``LocalTable.name``.
LocalData = Mapping[str, LocalRows]


@dataclass(frozen=True)
class LocalTable:
    """A table of the device's store that an algorithm reads, and how it reads it.

    Attributes:
      name: under which the rows reach the client.
      table: of the store, as the definition names it: a readable one, or ``events.SERVICE`` with ``events``.
      readable_tables: what the algorithm can read beside those of events.
      events: how rows are made of a service's events; None for another table.
      most_rows: a device reads at most this number of stored rows: the newest, or of ratings those of lowest item.
      features: of labelled examples, what each feature is; none for rows of (item, value).
      label: of labelled examples, the column that is a row's value; "" for rows of (item, value).
      classes: of a label, the names of its classes: a row's value is the number of its class, or not a number.
      text: whether rows are the texts of the events' one column: each has the feature "text", item 0 and value 1.
      by_id: whether items of the table of ratings are the whole numbers that are their ids, and not rows of a model.
      labels: the ids of the only items that count, an item being its place among them; none where ids are numbers.
    """

    name: str
    table: str
    readable_tables: frozenset[str]
    events: EventsTerms | None
    most_rows: int
    features: Mapping[str, Feature] = field(default_factory=dict)
    label: str = ""
    classes: Sequence[str] = ()
    text: bool = False
    by_id: bool = False
    labels: tuple[str, ...] = ()

    @property
    def of_ratings(self) -> bool:
        """Whether rows are the person's own ratings, and no events and no labelled examples."""
        return self.events is None and not self.label


class ModelTable(NamedTuple):
    """A declared table of the model: float numbers [rows, width]; keyed ones are asked for by row."""

    name: str
    rows: int
    width: int
    keyed: bool


class Sum(Protocol):
    """A running exact sum: independent of the order of contributions and of the BLAS in use."""

    count: int

    def add(self, payloads: Sequence[bytes]) -> None:
        """Adds payloads that ``Query.check`` accepted."""

    def totals(self) -> dict[str, Int64Array]:
        """The sums so far, by release name, in units of the release's ``step``; shapes as declared."""


class Query(Protocol):
    """The declared query of one round, enforced inside the enclave.

    The enclave takes at most ``maximum`` contributions, whose sums stay within their integers.
    """

    payload_bytes: int
    maximum: int

    @property
    def releases(self) -> tuple[DeclaredRelease, ...]:
        """What a round releases, in order."""

    def check(self, payload: bytes) -> None:
        """Raises ContributionRefused (MALFORMED, OUT_OF_BOUNDS) unless the payload keeps the declared sensitivity."""

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of many at once, which may cost far less than one by one; None for what ``check`` accepts."""

    def new_sum(self, *, oblivious: bool = False) -> Sum:
        """An empty sum; ``oblivious``: its memory accesses depend on the number of contributions alone."""


@runtime_checkable
class SampledQuery(Query, Protocol):
    """A query whose rounds may be sampled in secret: ``empty_payload`` adds zero to every sum, and is as long as any.

    It is what a device without data sends, and it stands for a contribution that was not drawn.
    """

    @property
    def empty_payload(self) -> bytes:
        """It is long where contributions are: made when it is read, and not for every round of a task."""


@runtime_checkable
class StreamQuery(Query, Protocol):
    """A query of one place of a stream: the enclave releases the encoded sum, made of this round's and of earlier ones.

    ``Sum.totals`` is then in steps of the contributions' grid, and the release in steps of the encoded one.
    """

    #: How often, and how far apart, one user takes part: what the charge assumes, and the enclave enforces.
    allowed: Participation

    def encoder(self, *, wrapped: bool = False, state: bytes | None = None) -> Encoder:
        """A new encoder, or the one that wrote ``state``.

        ``wrapped``: sums and releases are known modulo 2^32 alone, since masks hide the contributions.

        Raises:
          ConfigurationError: with ``wrapped``, encoded sums and their noise do not surely fit 32 bits, or encoding is
            not exact.
          StateError: the state is of another stream, or was cut.
        """


def refusals_one_by_one(check: Callable[[bytes], None], payloads: Sequence[bytes]) -> list[Refusal | None]:
    """``Query.refusals`` where checking many at once would not be cheaper."""
    answers: list[Refusal | None] = []
    for payload in payloads:
        try:
            check(payload)
            answers.append(None)
        except ContributionRefused as refused:
            answers.append(refused.refusal)
    return answers


@dataclass(frozen=True)
class NoisyTensors:
    """What a server receives of a round: float64 arrays (integer * step) by release name, and how many contributed."""

    round: int
    tensors: Mapping[str, Float64Array]
    contributions: int


class Server(Protocol):
    """The server's half. State is bytes, so that the host can store it and a restart continues from it."""

    rounds: int

    def start(self) -> bytes:
        """The state before round 0: a function of the task definition alone."""

    def broadcast(self, state: bytes) -> ModelVersion:
        """What devices need for the next round, or after the last one for inference."""

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The next state; post-processing of the release, so it costs no privacy."""


class Client(Protocol):
    """The device's half. ``seed`` is the device's own random 64-bit number: it decides which of its items take part.

    Whether a device contributes must not depend on its data. So whatever the rows in ``slices`` hold (they are an
    untrusted server's, and which of them a device has follows from its data), ``contribute`` computes with them; what
    it raises all the same, the device answers by ``empty``. ``check_model`` refuses what is the same for all devices.
    """

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Returns if the model's dense tables can be trained on, whatever a device holds. Raises ConfigurationError.

        A client that uses no numbers beside its rows accepts all.
        """
        return

    def empty(self, round: int) -> bytes:
        """The payload of a device without data: of the declared length, accepted, and zero in every sum.

        Of a task with a ``local_charge``, a report like any other, whose expectation is zero.
        """

    def keys(self, data: LocalData, *, round: int, seed: int) -> Int64Array:
        """The distinct rows that the device wants in ``round``: ascending, at most slices_per_device of them.

        None unless a client says otherwise. Not asked where the model has no keyed table.
        """
        return np.zeros(0, dtype=np.int64)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload of the declared length, new local parameters); the latter never leave the device."""


@runtime_checkable
class ProgramClient(Client, Protocol):
    """A client whose model may be a program of the developer, which a device's runtime runs."""

    def run_by(self, trainer: ProgramTrainer | None) -> Client:
        """The client whose program, if it has one, is run by ``trainer``.

        Raises:
          ConfigurationError: it has a program that cannot be run so, whatever the device holds.
        """


_Users = TypeVar("_Users", contravariant=True)


class Population(Protocol[_Users]):
    """``Client`` for many users at once, whose data are ratings or ``UsersExamples``.

    User ``i`` has the seed ``seeds[i]`` (uint64 [users]).
    """

    def contribute(
        self,
        broadcast: ModelVersion,
        users: _Users,
        /,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The same sums that the enclave would make of every user's payload, in grid units, by release name.

        ``progress`` is called now and then with the number of users that are done.
        """


@runtime_checkable
class ProgramPopulation(Population[_Users], Protocol[_Users]):
    """A population whose model may be a program of the developer, which an engine in this process trains."""

    def run_by(self, engine: Engine) -> Population[_Users]:
        """The population whose program, if it has one, is trained by ``engine``."""


class Algorithm(abc.ABC):
    """The algorithm of one task: what every party asks of it, instead of its kind.

    Each member imports the module of its own party alone, so that a device never loads the server's code. A member
    raises ConfigurationError for an invalid definition.
    """

    #: Whether a contribution is one vector on a grid, which masks can hide and to which devices can add noise.
    dense: ClassVar[bool] = False
    #: Whether rounds may differ in their cohorts (``CohortTerms.schedule``), which ``check`` then checks.
    schedules_cohorts: ClassVar[bool] = False
    #: Whether an aggregator releases anything; else devices report to the server alone.
    has_rounds: ClassVar[bool] = True
    #: Whether its rounds may be sampled in secret, where the query is a ``SampledQuery``.
    samples: ClassVar[bool] = True
    #: Whether devices need the model before they contribute.
    reads_model: ClassVar[bool] = True

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self.definition = definition

    @property
    @abc.abstractmethod
    def local_data(self) -> tuple[LocalTable, ...]:
        """What a device's contribution is made of."""

    def data_of(self, rows: LocalRows) -> LocalData:
        """The data of a device whose tables all hold ``rows``, as those of a data set's user do."""
        return dict.fromkeys((declared.name for declared in self.local_data), rows)

    @property
    @abc.abstractmethod
    def tables(self) -> tuple[ModelTable, ...]:
        """Every table of the model, in the order of the manifest. At most one is keyed."""

    @property
    def rows_per_request(self) -> int | None:
        """Rows of the keyed table that every device asks for in a round, whatever it holds; None without one."""
        return None

    def public_matrix_from(self, data: bytes) -> Float32Array | None:
        """The public matrix that the definition names by its hash, from its bytes; None where it names none.

        Raises:
          ConfigurationError: ``data`` is not that matrix.
        """
        from odp.models.public_matrix import public_matrix_from

        return public_matrix_from(self.definition, data)

    @property
    def local_charge(self) -> LocalCharge | None:
        """What a contribution costs its device that is private by itself; None where only releases are private."""
        return None

    @property
    def local_tables(self) -> frozenset[str]:
        """The tables of a device's store that its contribution is made of."""
        return frozenset(declared.table for declared in self.local_data)

    @property
    @abc.abstractmethod
    def computing_cost(self) -> ComputingCost:
        """What a device's contribution to any round takes at most, by the task's public caps."""

    @property
    def encoding(self) -> Encoding:
        """How the rows of the keyed table are written."""
        return "float32"

    @property
    def resolved(self) -> Message:
        """The numbers that the developer's choices became, as a message of the definition."""
        return cast("Message", getattr(self.definition, str(self.definition.WhichOneof("training"))))

    @abc.abstractmethod
    def terms(self) -> object:
        """The definition, read and checked. Raises ConfigurationError as ``check``."""

    def check(self) -> None:
        """Raises ConfigurationError naming the first number of the definition that is missing or out of range."""
        self.terms()

    def check_for_devices(self) -> None:
        """``check``, and the limits of tasks that are sent to devices."""
        self.check()

    @abc.abstractmethod
    def server(self, *, item_features: Float32Array | None = None) -> Server:
        """The server's half, with the public matrix that the definition names by its hash, if it names one."""

    @abc.abstractmethod
    def client(self) -> Client:
        """The device's half."""

    @abc.abstractmethod
    def query(self, round: int) -> Query:
        """The declared query of a round. Raises ConfigurationError where the task has no such round."""

    def planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        """The releases of every round, in order: what the ledger is charged if all rounds run."""
        try:
            return self._planned_releases()
        except OverflowError:
            raise ConfigurationError("Expected clips and bounds that make releases of finite numbers") from None

    @abc.abstractmethod
    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]: ...

    @abc.abstractmethod
    def population(self) -> Population[Any]:
        """The client for many users at once."""

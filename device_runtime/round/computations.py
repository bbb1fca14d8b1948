"""What one device computes of its rows, as a value that another process can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from device_runtime.round.examples import examples
from device_runtime.store.store import Store
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Client, LocalData, LocalRows, ProgramClient
from odp.errors import StateError
from odp.models.trained import has_program
from odp.numerics.arrays import Int64Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from device_runtime.isolated.training import IsolatedTrainer
    from odp.models.litert.trainer import ProgramTrainer

#: Of a device that asks for no rows.
NO_KEYS: Int64Array = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class OwnData:
    """A device's rows for one contribution, and the rows ``keys`` of the model that it needs for them."""

    rows: LocalData = field(repr=False)
    keys: Int64Array = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class RoundComputation:
    """A contribution to a round.

    ``client`` is the device's half of the task's algorithm, ``keyed`` whether it asks for rows of the model by key.
    ``now`` is in seconds since the epoch.
    """

    definition: common_pb2.TaskDefinition
    client: Client
    round: int
    seed: int
    now: float
    keyed: bool
    catalogue: Catalogue | None = None

    def read(self, store: Store) -> OwnData:
        """The rows that the task may read. May raise anything."""
        with np.errstate(all="ignore"):
            rows = examples(store, self.definition, now=self.now, catalogue=self.catalogue)
            keys = self.client.keys(rows, round=self.round, seed=self.seed) if self.keyed else NO_KEYS
        return OwnData(rows, keys)

    def compute(self, device_data: OwnData, slices: Slices | None) -> tuple[bytes, bytes | None]:
        """(payload or report, new local parameters). May raise anything."""
        if slices is None:
            raise ValueError("a contribution to a round needs its model")
        with np.errstate(all="ignore"):
            return self.client.contribute(slices, device_data.rows, round=self.round, seed=self.seed)


def read_or_nothing(computation: RoundComputation, store: Store) -> OwnData:
    """The rows, or none where the task cannot use them.

    Raises:
      StateError: the store cannot be read.
    """
    try:
        return computation.read(store)
    except StateError:
        raise
    except Exception:  # whatever it is, it follows from the data
        nothing = LocalRows(NO_KEYS, np.zeros(0, dtype=np.float64))
        return OwnData(algorithm_for(computation.definition).data_of(nothing), NO_KEYS)


@dataclass(frozen=True, kw_only=True)
class ReportComputation:
    """A report to a task of local trust, by a device that drew the row ``drawn_row``."""

    definition: common_pb2.TaskDefinition
    algorithm: LocalReporter
    drawn_row: bytes
    now: float
    source: RandomSource

    def read(self, store: Store) -> OwnData:
        """The rows that the task may read. May raise anything."""
        with np.errstate(all="ignore"):
            return OwnData(examples(store, self.definition, now=self.now), NO_KEYS)

    def compute(self, device_data: OwnData, slices: Slices | None) -> tuple[bytes, bytes | None]:
        """(payload or report, new local parameters). May raise anything."""
        with np.errstate(all="ignore"):
            return self.algorithm.report(self.drawn_row, device_data.rows, source=self.source), b""


#: One device's contribution, of its own rows and of nothing else that is private.
Computation: TypeAlias = RoundComputation | ReportComputation


@dataclass(frozen=True, kw_only=True)
class Described:
    """A computation for another process: without the objects that this one makes of the definition.

    Attributes:
      round: None for a report.
      drawn_row: of a report.
    """

    round: int | None
    seed: int = 0
    now: float
    keyed: bool = False
    drawn_row: bytes = b""


def described(computation: Computation) -> Described:
    """What another process is told of a computation, which knows its definition."""
    if isinstance(computation, ReportComputation):
        return Described(round=None, now=computation.now, drawn_row=computation.drawn_row)
    return Described(round=computation.round, seed=computation.seed, now=computation.now, keyed=computation.keyed)


class Prepared:
    """The task of a process that computes: what it makes of the definition before any data are there.

    Raises:
      ConfigurationError: the definition is not valid.
    """

    def __init__(self, definition: bytes, catalogue: Sequence[bytes]) -> None:
        self._definition = common_pb2.TaskDefinition.FromString(definition)
        self._algorithm = algorithm_for(self._definition)
        local = isinstance(self._algorithm, LocalReporter)
        self._client = None if local else self._algorithm.client()
        self._catalogue = Catalogue(tuple(catalogue)) if catalogue else None

    def trainer(self, seconds: float) -> IsolatedTrainer | None:
        """Makes processes for the developer's program, each for at most ``seconds``; None where the task has none."""
        if not has_program(self._definition):
            return None
        from device_runtime.isolated.training import IsolatedTrainer

        return IsolatedTrainer(seconds=seconds)

    def computation(self, described: Described, program: ProgramTrainer | None) -> Computation:
        """The computation of one contribution, whose program, if the task has one, runs in the process ``program``."""
        if self._client is None and isinstance(self._algorithm, LocalReporter):
            return ReportComputation(
                definition=self._definition, algorithm=self._algorithm, drawn_row=described.drawn_row,
                now=described.now,
                source=RandomSource(),
            )  # fmt: skip
        if self._client is None or described.round is None:
            raise ValueError("a round's contribution is of a task with rounds")
        client = self._client
        if program is not None and isinstance(client, ProgramClient):
            client = client.run_by(program)
        return RoundComputation(
            definition=self._definition, client=client, round=described.round, seed=described.seed,
            now=described.now, keyed=described.keyed, catalogue=self._catalogue,
        )  # fmt: skip

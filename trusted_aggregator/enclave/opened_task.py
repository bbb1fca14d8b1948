"""A task inside the enclave: its queries, its budget and its charges."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import planned_entries, release_bytes, sampling_of
from odp.algorithms.seam import Query, StreamQuery
from odp.errors import ConfigurationError
from odp.privacy import accounting
from odp.privacy.events import Sampling
from odp.privacy.ledger_entry import Budget
from odp.privacy.ledger_events import LedgerEvent
from odp.privacy.matrix.sensitivity import ParticipationRecord
from odp.refusing import refusing
from odp.signed.task import open_task, task_sha256
from odp.v1 import common_pb2
from trusted_aggregator.modes.table import round_class
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.limits import MOST_STREAM_USERS
from trusted_aggregator.state.sealed_state import TaskRecord


@dataclass(frozen=True)
class OpenedTask:
    """A task with checked signature and fields, and the values that follow from its definition alone."""

    signed: common_pb2.SignedTask
    sha256: bytes
    definition: common_pb2.TaskDefinition

    @classmethod
    def open(cls, signed: common_pb2.SignedTask) -> OpenedTask:
        """The task, with all that its rounds declare and charge: whatever is wrong with it is known now.

        Raises SignatureError, ConfigurationError, PrivacyError.
        """
        task = cls(signed, task_sha256(signed), open_task(signed))
        if not algorithm_for(task.definition).has_rounds:
            raise ConfigurationError(f"Expected a task with rounds: devices of {task.label} report to its server alone")
        with refusing("task"):
            _ = task._entries, task.largest
        return task

    @classmethod
    def restored(cls, record: TaskRecord) -> OpenedTask:
        """The task of an unsealed record: it was checked before it was sealed."""
        definition = common_pb2.TaskDefinition.FromString(record.signed.definition)
        task = cls(record.signed, task_sha256(record.signed), definition)
        # Most tasks are over, and what their records know of them is enough.
        task.__dict__.update(largest=record.largest, planned=record.planned)
        return task

    @functools.cached_property
    def queries(self) -> tuple[Query, ...]:
        """The queries of all planned rounds."""
        algorithm = algorithm_for(self.definition)
        queries = tuple(algorithm.query(number) for number in range(len(algorithm.planned_releases())))
        # What a stream asks of its rounds is the same in each, and takes the time of one release to find.
        for query in queries[:1] if isinstance(queries[0], StreamQuery) else queries:
            self.rounds.require(query)
        return queries

    @property
    def rounds(self) -> type[Round]:
        """The plans of all rounds."""
        return round_class(self.definition)

    @functools.cached_property
    def largest(self) -> int:
        """Size in bytes of its largest release, and so of the noise of one; with what its stream keeps."""
        return self.stream_bytes + max(release_bytes(query.releases) for query in self.queries)

    @functools.cached_property
    def planned(self) -> int:
        """The number of rounds of the finished task."""
        return len(self.queries)

    def sampling(self, round: int) -> Sampling | None:
        """The sampling of a round's contributions; None if all count."""
        return sampling_of(self.definition, round)

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self.sha256.hex()

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"task {self.definition.name!r}"

    @property
    def population(self) -> str:
        """The population whose budget it spends."""
        return self.definition.population

    @property
    def developer_key(self) -> bytes:
        """The key that signed it."""
        return self.definition.developer_key

    @property
    def budget(self) -> Budget:
        """The budget of its releases."""
        return Budget(self.definition.privacy.epsilon, self.definition.privacy.delta)

    @property
    def record(self) -> TaskRecord:
        """The record of the task that the host keeps."""
        return TaskRecord(self.signed, self.largest, self.planned)

    def charges(self, round: int) -> tuple[LedgerEvent, ...]:
        """What the ledger lists for each round."""
        return self._entries[round]

    @functools.cached_property
    def _entries(self) -> list[tuple[LedgerEvent, ...]]:
        return planned_entries(algorithm_for(self.definition))

    @functools.cached_property
    def stream_bytes(self) -> int:
        """Size in bytes of the past sums that its stream keeps; 0 where it is none."""
        first = self.queries[0]
        if not isinstance(first, StreamQuery):
            return 0
        return first.encoder(wrapped=self.rounds.wraps).state_bytes

    def most(self, population_delta: float, participation: ParticipationRecord | None = None) -> int:
        """The most contributions that could be charged: delta has to stay below one over the population.

        In a stream, all of them have room on its record of users, too.
        """
        most = accounting.most_users(max(self.budget.delta, population_delta))
        return most if participation is None else min(most, MOST_STREAM_USERS - len(participation))

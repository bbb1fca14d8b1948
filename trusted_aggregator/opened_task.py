"""A task inside the enclave: its queries, its budget and its charges."""

from __future__ import annotations

from dataclasses import dataclass

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import round_charges, sampling_of
from odp.algorithms.seam import Query
from odp.privacy import accounting
from odp.privacy.events import Event, Sampling
from odp.privacy.ledger import Budget
from odp.signed_task import open_task, task_sha256
from odp.v1 import common_pb2
from trusted_aggregator.masking import aggregated


@dataclass(frozen=True)
class OpenedTask:
    """A task whose signature and every field were checked, and what follows from its definition alone."""

    signed: common_pb2.SignedTask
    sha256: bytes
    definition: common_pb2.TaskDefinition
    queries: tuple[Query, ...]  # of each planned round
    sampling: Sampling | None

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self.sha256.hex()

    @property
    def budget(self) -> Budget:
        """What its releases may spend."""
        return Budget(self.definition.privacy.epsilon, self.definition.privacy.delta)

    @classmethod
    def open(cls, signed: common_pb2.SignedTask) -> OpenedTask:
        """Raises SignatureError, ConfigurationError."""
        definition = open_task(signed)
        algorithm, sha256 = algorithm_for(definition), task_sha256(signed)
        queries = tuple(
            aggregated(algorithm.query(number), definition, task_sha256=sha256, round=number)
            for number in range(len(algorithm.planned_releases()))
        )
        return cls(signed, sha256, definition, queries, sampling_of(definition))

    def charges(self, round: int) -> tuple[Event, ...]:
        """What a round costs."""
        return round_charges(self.queries[round], self.sampling)

    def most(self, population_delta: float) -> int:
        """Contributions beyond these could not be charged: a delta has to stay below one over the population."""
        return accounting.most_users(max(self.budget.delta, population_delta))

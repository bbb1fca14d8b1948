"""A server's assignment of local trust, checked once and then shared by all devices of the process.

The task carries its developer's signature, and is one of the device's own population. There is no model to check, and
no enclave: what a device sends is private by itself.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

from device_runtime.person.ledger import TaskTerms
from device_runtime.tasks.assignment import Work, require_own_tables
from device_runtime.tasks.charters import charter_of
from device_runtime.tasks.computing_terms import ComputingTerms
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.refusing import refusing
from odp.signed.charter import Charter
from odp.signed.task import open_task, task_sha256
from odp.transport.channel import parse_address
from odp.v1 import common_pb2, enrolment_pb2, log_pb2, server_pb2


@dataclass(frozen=True)
class LocalWork:
    """A task of local trust, and the server's proof from the log, which is not checked yet.

    ``round`` is the period for which ``token_key`` and ``issuer`` (host:port) are what the server says of its tokens.
    """

    definition: common_pb2.TaskDefinition
    signed_task: common_pb2.SignedTask
    terms: TaskTerms
    algorithm: LocalReporter
    charter: Charter
    log: log_pb2.LogProof | None
    round: int = 0
    token_key: enrolment_pb2.SignedTokenKey | None = None
    issuer: str = ""

    @functools.cached_property
    def computing(self) -> ComputingTerms:
        """How long a device's report takes, whatever it holds."""
        return ComputingTerms.of(self.definition)

    @property
    def task_sha256(self) -> bytes:
        """The task's id."""
        return self.terms.task_sha256

    @property
    def key(self) -> tuple[bytes, int]:
        """(task id, 0): all reports count as one round."""
        return self.task_sha256, 0

    @property
    def opening(self) -> tuple[bytes, int]:
        """The same: reports have no openings."""
        return self.key

    @property
    def is_last(self) -> bool:
        """Whether the task has no round after this one: it has none."""
        return True

    @property
    def most(self) -> int:
        """Reports of one device."""
        return len(self.terms.rounds)


#: What a device is asked to contribute to: a round, or a task of local trust.
Offered: TypeAlias = Work | LocalWork


@refusing("assignment of local trust")
def open_local_assignment(assignment: server_pb2.LocalAssignment, *, population: str) -> LocalWork:
    """Checks an assignment for devices of ``population``.

    Raises:
      SignatureError: the signature is not the developer's.
      ConfigurationError: a field is out of range, or the task has rounds.
      PrivacyError: the developer does not own the population, or no charter says so.
    """
    definition = open_task(assignment.task)
    algorithm = algorithm_for(definition)
    if not isinstance(algorithm, LocalReporter):
        raise ConfigurationError(f"the server gave task {definition.name!r}, which has rounds, as one of local trust")
    if definition.population != population:
        raise ConfigurationError(
            f"the server gave a task of population {definition.population!r} to devices of {population!r}"
        )
    require_own_tables(algorithm)
    if assignment.HasField("token_key"):
        parse_address(assignment.issuer_address)
    return LocalWork(
        definition=definition,
        signed_task=assignment.task,
        terms=TaskTerms.of(definition, task_sha256(assignment.task)),
        algorithm=algorithm,
        charter=charter_of(assignment.charter, definition),
        log=assignment.log if assignment.HasField("log") else None,
        round=assignment.period,
        token_key=assignment.token_key if assignment.HasField("token_key") else None,
        issuer=assignment.issuer_address,
    )

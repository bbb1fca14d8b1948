"""A server's assignment, checked once and then shared by all devices of the process.

An assignment comes from the untrusted server. Before a device acts on it: the task and the model manifest carry their
developer's signature, both belong together, the task is one of the device's own population, and the model has the
shape that the task's algorithm trains on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from device_runtime.modes import half_of
from device_runtime.person.ledger import TaskTerms
from device_runtime.tasks.charters import charter_of
from device_runtime.tasks.computing_terms import ComputingTerms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Algorithm, Client, ProgramClient, Query
from odp.crypto.leaves import MOST_LEAVES
from odp.crypto.refusals import MOST_VOIDED
from odp.crypto.segments import is_large
from odp.errors import ConfigurationError
from odp.models.litert.trainer import ProgramTrainer
from odp.models.trained import has_program
from odp.protocol.aggregation import mode_of
from odp.refusing import refusing
from odp.signed.charter import Charter
from odp.signed.task import model_sha256, open_manifest, open_task, task_sha256
from odp.transport.channel import parse_address
from odp.v1 import common_pb2, enrolment_pb2, log_pb2, server_pb2


@dataclass(frozen=True)
class Model:
    """One signed model version of one signed task, both checked.

    ``rounds`` is the number of rounds that the task has when it is finished, ``terms`` say what each of them costs,
    ``queries`` what the enclave checks in each, ``large`` whether contributions travel as a stream, ``host_bytes``
    how long the part of the aggregator's host is, 0 where the enclave gets contributions whole; ``signed_task`` and
    ``signed_manifest`` are what has to be in the transparency log.
    """

    definition: common_pb2.TaskDefinition
    task_sha256: bytes
    manifest: common_pb2.ModelManifest
    model_sha256: bytes
    client: Client
    rounds: int
    queries: tuple[Query, ...]
    large: tuple[bool, ...]
    host_bytes: tuple[int, ...]
    terms: TaskTerms
    signed_task: common_pb2.SignedTask
    signed_manifest: common_pb2.SignedManifest

    @property
    def keyed(self) -> bool:
        """Whether devices fetch rows of the model before they contribute."""
        return any(table.keyed for table in self.manifest.tables)

    @property
    def reads_model(self) -> bool:
        """Whether devices fetch any part of the model before they contribute."""
        return algorithm_for(self.definition).reads_model

    @property
    def runs_program(self) -> bool:
        """Whether devices run a program of the developer on their data."""
        return has_program(self.definition)

    @functools.cached_property
    def computing(self) -> ComputingTerms:
        """How long a device's contribution takes, whatever it holds."""
        return ComputingTerms.of(self.definition)

    @property
    def rows_per_request(self) -> int:
        """Rows per request of every device; 0 without a keyed table."""
        return algorithm_for(self.definition).rows_per_request or 0


@dataclass(frozen=True)
class Work:
    """An open round, the addresses of its services, and the server's proofs from the log (not checked yet).

    ``charter`` names the task's developer as an owner of the population; whether it is in force is not checked yet, nor
    whose signature ``round_key`` carries. ``token_key`` and ``issuer`` (host:port) are what the server says of the
    round's tokens, not checked yet either. ``leaves`` are where the server says that the aggregator's leaves are.
    """

    model: Model
    round: int
    distributor: str
    aggregator: str
    log: log_pb2.LogProof | None = None
    charter: Charter | None = None
    round_key: common_pb2.SignedRoundKey | None = None
    token_key: enrolment_pb2.SignedTokenKey | None = None
    issuer: str = ""
    leaves: tuple[str, ...] = ()

    @property
    def definition(self) -> common_pb2.TaskDefinition:
        """The task's, as its developer signed it."""
        return self.model.definition

    @property
    def terms(self) -> TaskTerms:
        """What the task costs."""
        return self.model.terms

    @property
    def computing(self) -> ComputingTerms:
        """How long a device's contribution takes, whatever it holds."""
        return self.model.computing

    @property
    def signed_task(self) -> common_pb2.SignedTask:
        """The task under its developer's signature."""
        return self.model.signed_task

    @property
    def hpke_key(self) -> bytes:
        """The key for contributions, if the aggregator's enclave signed ``round_key``; otherwise empty."""
        return b"" if self.round_key is None else self.round_key.hpke_key

    @property
    def large(self) -> bool:
        """Whether contributions travel as a stream."""
        return self.model.large[self.round]

    @property
    def host_bytes(self) -> int:
        """Length of the part for the aggregator's host; 0 if the enclave gets the whole contribution."""
        return self.model.host_bytes[self.round]

    @property
    def sessions(self) -> bool:
        """Whether devices take part together, in a session."""
        return mode_of(self.model.definition.cohort).in_session

    @property
    def task_sha256(self) -> bytes:
        """The task's id."""
        return self.model.task_sha256

    @property
    def is_last(self) -> bool:
        """Whether the task has no round after this one."""
        return self.round == self.model.rounds - 1

    @property
    def key(self) -> tuple[bytes, int]:
        """(task id, round): of its openings, at most one has a release."""
        return self.model.task_sha256, self.round

    @property
    def opening(self) -> tuple[bytes, int, bytes]:
        """(task id, round, key of the round): a device contributes at most once to each; in sessions, to a round."""
        return *self.key, b"" if self.sessions else self.hpke_key


@refusing("task with its model")
def open_model(task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest) -> Model:
    """Checks a task and one version of its model.

    Raises:
      SignatureError: a signature is not the developer's.
      ConfigurationError: a field is out of range, or the model is not of the form that the task trains on.
    """
    definition = open_task(task)
    opened = open_manifest(manifest, task=task, developer_key=definition.developer_key)
    algorithm = algorithm_for(definition)
    for keyed, what in ((True, "keyed table of the model"), (False, "dense tables")):
        expected = [table[:3] for table in algorithm.tables if table.keyed == keyed]
        shapes = [(table.name, table.rows, table.width) for table in opened.tables if table.keyed == keyed]
        if shapes != expected:
            raise ConfigurationError(f"Expected the {what} to be {_shapes(expected)}, got {_shapes(shapes)}")
    require_own_tables(algorithm)
    terms = TaskTerms.of(definition, task_sha256(task))
    queries = tuple(algorithm.query(number) for number in range(len(terms.rounds)))
    payloads = [query.payload_bytes for query in queries]
    return Model(
        definition=definition,
        task_sha256=terms.task_sha256,
        manifest=opened,
        model_sha256=model_sha256(manifest),
        client=algorithm.client(),
        rounds=len(terms.rounds),
        terms=terms,
        queries=queries,
        large=tuple(is_large(size) for size in payloads),
        host_bytes=tuple(map(half_of(definition.cohort).host_bytes, payloads)),
        signed_task=task,
        signed_manifest=manifest,
    )


def require_own_tables(algorithm: Algorithm) -> None:
    """Raises ConfigurationError where a task reads a table that devices do not have."""
    for declared in sorted(algorithm.local_data, key=lambda table: table.table):
        # Tables of events come with a query that says what they are made of; it was checked with the task.
        if declared.events is None and declared.table not in declared.readable_tables:
            raise ConfigurationError(
                f"Expected table={declared.table!r} to be "
                f"{' or '.join(map(repr, sorted(declared.readable_tables)))}, the devices'"
                " own"
            )


def _shapes(tables: Sequence[tuple[str, int, int]]) -> str:
    return ", ".join(f"{name!r} {rows} x {width}" for name, rows, width in tables) or "none"


@refusing("assignment")
def open_assignment(
    assignment: server_pb2.Assignment, *, population: str, trainer: ProgramTrainer | None = None
) -> Work:
    """Checks an assignment for devices of ``population``, whose developers' programs ``trainer`` runs.

    Raises:
      SignatureError: a signature is not the developer's.
      ConfigurationError: a field is out of range, its parts do not belong together, or it has a program that cannot be
        run here.
      PrivacyError: the developer does not own the population.
    """
    model = open_model(assignment.task, assignment.model)
    if isinstance(model.client, ProgramClient):
        model = dataclasses.replace(model, client=model.client.run_by(trainer))
    if model.definition.population != population:
        raise ConfigurationError(
            f"the server gave a task of population {model.definition.population!r} to devices of {population!r}"
        )
    if not 0 <= assignment.round < model.rounds:
        raise ConfigurationError(f"Expected round={assignment.round} to be from 0 to {model.rounds - 1}")
    if model.manifest.version != assignment.round:
        raise ConfigurationError(f"Expected model version={model.manifest.version} to be round={assignment.round}")
    parse_address(assignment.distributor_address)
    parse_address(assignment.aggregator_address)
    if len(assignment.leaf_addresses) > MOST_LEAVES:
        raise ConfigurationError(f"Expected at most {MOST_LEAVES} leaves (got {len(assignment.leaf_addresses)})")
    for address in assignment.leaf_addresses:
        parse_address(address)
    if assignment.HasField("token_key"):
        parse_address(assignment.issuer_address)
    if (voided := len(assignment.round_key.voided)) > MOST_VOIDED:
        raise ConfigurationError(f"Expected at most {MOST_VOIDED} void openings with the round's key (got {voided})")
    return Work(
        model,
        assignment.round,
        assignment.distributor_address,
        assignment.aggregator_address,
        assignment.log if assignment.HasField("log") else None,
        charter_of(assignment.charter, model.definition) if assignment.HasField("charter") else None,
        assignment.round_key if assignment.HasField("round_key") else None,
        assignment.token_key if assignment.HasField("token_key") else None,
        assignment.issuer_address,
        tuple(assignment.leaf_addresses),
    )

"""A developer's connection to their server: submit a task, watch it, fetch its model.

Example::

    connection = odp.connect()  # the services of `odp up` in this folder
    handle = connection.submit(task)
    for status in handle.watch():
        print(status.rounds[-1].round, status.rounds[-1].contributions)
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from odp._system.closing import Closing
from odp.algorithms.capabilities import Diagnosed
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for, counting_for
from odp.errors import ConfigurationError, ServiceError
from odp.protocol.catalogues.exchange import named_catalogue, publish
from odp.protocol.wire.model import ModelVersion
from odp.protocol.wire.tables import broadcast_from, entry_bytes
from odp.services.folder import NAME, ServicesFolder
from odp.services.released_answers import answers_of, release_of_question, releases_of
from odp.signed.ledger import LedgerPart, read_ledger
from odp.signed.tables.table import OpenedTable, Table, open_version
from odp.signed.task import model_sha256, open_manifest, open_task, task_sha256
from odp.tasks.states import FINAL, in_one_line
from odp.tasks.task import Task
from odp.transport import channel
from odp.transport.backpressure import Patience
from odp.transport.tls import read_ca
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_fresh
from odp.trust.log.sources import LogServer
from odp.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    common_pb2,
    distributor_pb2,
    distributor_pb2_grpc,
    local_pb2,
    local_pb2_grpc,
    population_pb2,
    server_pb2,
    server_pb2_grpc,
    table_pb2,
    table_pb2_grpc,
)

if TYPE_CHECKING:
    from odp.algorithms.capabilities import Answers, UsableAnswers
    from odp.protocol.catalogues.catalogue import Catalogue
    from odp.tasks.file import AnyTask

_Reply = TypeVar("_Reply")


def connect(
    address: str | None = None,
    *,
    state: str | Path | None = None,
    ca: str | Path | None = None,
    token: str | None = None,
) -> Connection:
    """A connection to a server. It is made by the first call.

    Args:
      address: ``host:port`` of the server; by default where the server of ``state`` last served.
      state: the state folder of `odp up` on this machine: gives address, CA and the operator's token. By default the
        folder that ODP_STATE names, else ``odp-state`` in the working folder or the nearest folder above it.
      ca: PEM file of the CA that the server's certificate descends from; overrides ``state``.
      token: the operator's token; overrides ``state``.

    Where ``state`` has reference values, the results of questions are checked against them.

    Raises ConfigurationError where address, CA or token are neither given nor found.
    """
    if address is not None:
        channel.parse_addresses(address)
    is_complete = address is not None and ca is not None and token is not None
    if state is None and not is_complete:
        folder = ServicesFolder.find()
    else:
        folder = ServicesFolder(Path(NAME if state is None else state))
    if ca is None:
        folder.require()
    if address is None:
        address = folder.server_address()
    pem = read_ca(folder.ca if ca is None else Path(ca))
    if token is None:
        path = folder.operator_token
        try:
            token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the operator's token {path}; start the server first, or give its folder or token"
            ) from error
    if not re.fullmatch(r"[!-~]+", token):
        raise ConfigurationError("the operator's token is empty or holds a character that no header can carry")
    pins = folder.reference_values
    return Connection(address=address, ca=pem, token=token, reference_values=pins if pins.is_file() else None)


@dataclass(frozen=True, repr=False)
class TaskHandle:
    """A submitted task: ``task_sha256`` is its id, ``name`` is for people."""

    connection: Connection
    task_sha256: bytes
    name: str = field(default="", compare=False)

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<task{named} {self.task_sha256.hex()[:12]} at {self.connection.address}>"

    def summary(self) -> str:
        """Where the task stands, in one line."""
        return in_one_line(self.status())

    def status(self) -> server_pb2.TaskStatus:
        """Where the task stands."""
        return self.connection.status(self.task_sha256)

    def watch(
        self, *, poll_seconds: float = 0.5, wait: Callable[[float], object] | None = None
    ) -> Iterator[server_pb2.TaskStatus]:
        """The status again and again, until the task is finished, cancelled or failed; that last one is given too."""
        pause = wait if wait is not None else threading.Event().wait
        while True:
            status = self.status()
            yield status
            if status.state in FINAL:
                return
            pause(poll_seconds)

    def model(self) -> ModelVersion:
        """The newest published model, fetched whole from the distributor and checked against its signed manifest."""
        return self.connection.model(self.status())

    def results(self, reference_values: ReferenceValues | None = None) -> Answers:
        """What a finished question, such as an ``odp.Statistics``, released, in its own units, with intervals.

        Of a training with ``diagnostics=True``, the update scale and the variance between users, of its rounds so far.

        As ``Connection.results``.
        """
        return self.connection.results(self.status(), reference_values)

    def usable(self, reference_values: ReferenceValues | None = None) -> UsableAnswers | None:
        """How many devices have rows that the task can use, as ``Connection.usable``."""
        return self.connection.usable(self.status(), reference_values)

    def cancel(self) -> None:
        """Ends the task: what was contributed to open rounds is erased, nothing more is released. Idempotent."""
        self.connection.cancel(self.task_sha256)

    def pause(self) -> None:
        """The task opens no further round until ``resume``; one that is open goes on to its release. Idempotent."""
        self.connection.pause(self.task_sha256)

    def resume(self) -> None:
        """Ends a pause. Idempotent."""
        self.connection.resume(self.task_sha256)


class Connection(Closing):
    """One developer's view of one server. Every call has a deadline and raises a one-line ServiceError."""

    def __init__(self, *, address: str, ca: bytes, token: str, reference_values: Path | None = None) -> None:
        self.address = address
        self._reference_values = reference_values
        self._ca = ca
        self._metadata = [("authorization", f"Bearer {token}")]
        self._channel = channel.connect(address, ca)
        self._stub = server_pb2_grpc.ServerServiceStub(self._channel)
        self._local = local_pb2_grpc.LocalServiceStub(self._channel)
        self._tables = table_pb2_grpc.TableServiceStub(self._channel)

    def __repr__(self) -> str:
        return f"<connection to {self.address}>"

    @property
    def reference_values(self) -> ReferenceValues | None:
        """Those of the state folder that ``connect`` was given; None without any."""
        return None if self._reference_values is None else ReferenceValues.load(self._reference_values)

    def _call(
        self, method: Callable[..., _Reply], request: object, what: str, *, timeout: float = channel.SHORT_DEADLINE
    ) -> _Reply:
        return channel.call(method, request, timeout=timeout, what=what, address=self.address, metadata=self._metadata)

    def submit(self, task: AnyTask) -> TaskHandle:
        """Submits a task; the same task again gives the same handle.

        Of a task with ``count_usable``, the count is submitted first. A program that dies between both submits the task
        again, and finds the same count.
        """
        definition = task.definition()
        question = task.usable_question() if isinstance(task, Task) else None
        if isinstance(task, Task) and task.count_usable is not None and question is not None:
            definition.count_first.task_sha256 = self.submit(question).task_sha256
            definition.count_first.least_share = task.count_usable.least
        matrix = task.public_matrix
        features = b"" if matrix is None else matrix.astype("<f4").tobytes()
        reply = self._call(
            self._stub.SubmitTask,
            _submission(definition, features),
            f"submit the task {task.name!r}",
            timeout=channel.LONG_DEADLINE if len(features) > channel.CHUNK_BYTES else channel.SHORT_DEADLINE,
        )
        return TaskHandle(self, reply.task_sha256, task.name)

    def tasks(self) -> list[server_pb2.TaskStatus]:
        """All tasks of the server, newest first."""
        return list(self._call(self._stub.ListTasks, server_pb2.ListTasksRequest(), "list the tasks").tasks)

    def status(self, task_sha256: bytes) -> server_pb2.TaskStatus:
        """Where one task stands."""
        request = server_pb2.GetTaskRequest(task_sha256=task_sha256)
        return self._call(self._stub.GetTask, request, "read the task's status").status

    def cancel(self, task_sha256: bytes) -> None:
        """Ends a task; its state is CANCELLING until everything of its open rounds is erased. Idempotent."""
        self._call(self._stub.CancelTask, server_pb2.CancelTaskRequest(task_sha256=task_sha256), "cancel the task")

    def pause(self, task_sha256: bytes) -> None:
        """A task opens no further round; one that is open goes on to its release. Idempotent."""
        self._call(self._stub.PauseTask, server_pb2.PauseTaskRequest(task_sha256=task_sha256), "pause the task")

    def resume(self, task_sha256: bytes) -> None:
        """Ends a pause. Idempotent."""
        self._call(self._stub.ResumeTask, server_pb2.ResumeTaskRequest(task_sha256=task_sha256), "resume the task")

    def population(self, name: str) -> server_pb2.GetPopulationResponse:
        """Whose a population is, and the key of this server."""
        return self._call(
            self._stub.GetPopulation,
            server_pb2.GetPopulationRequest(population=name),
            f"ask whose population {name!r} is",
            timeout=channel.LONG_DEADLINE,
        )

    def change_population(self, charter: population_pb2.SignedCharter) -> server_pb2.ChangePopulationResponse:
        """Has the server approve a charter (``odp.signed.charter``), and put it in force once it has all approvals."""
        return self._call(
            self._stub.ChangePopulation,
            server_pb2.ChangePopulationRequest(charter=charter),
            "change the population",
            timeout=channel.LONG_DEADLINE,
        )

    def model(self, status: server_pb2.TaskStatus) -> ModelVersion:
        """The newest model of a status, fetched whole and checked against its signed manifest."""
        if not status.model.manifest:
            raise ConfigurationError("the task has published no model yet; wait for its first round")
        definition = open_task(status.task)
        manifest = open_manifest(status.model, task=status.task, developer_key=definition.developer_key)
        model = model_sha256(status.model)
        address = status.distributor_address
        with channel.connect(address, self._ca) as opened:
            stub = distributor_pb2_grpc.DistributorServiceStub(opened)
            tables: dict[str, bytes] = {}
            for entry in manifest.tables:
                request = distributor_pb2.DownloadRequest(model_sha256=model, table=entry.name)
                what = f"download the table {entry.name!r}"
                stream = channel.call(stub.Download, request, timeout=channel.LONG_DEADLINE, what=what, address=address)
                replies = channel.read_stream(stream, what=what, address=address)
                tables[entry.name] = _joined(replies, entry)
        return broadcast_from(manifest, tables)

    def results(self, status: server_pb2.TaskStatus, reference_values: ReferenceValues | None = None) -> Answers:
        """The answers in a status, or the diagnostics of a training: releases that the attested aggregator signed.

        Of a task of local trust, what its reports say so far, by the server's word.

        ``reference_values`` default to those of the state folder that ``connect`` was given. Without any, the server's
        word is taken for the release.

        Raises:
          ConfigurationError: the task trains a model without diagnostics, or released nothing yet.
          AttestationError: the aggregator's evidence is not accepted.
          ServiceError: the aggregator does not answer, or the release is not of this task or not signed by it.
        """
        pins = self.reference_values if reference_values is None else reference_values
        algorithm, values_of = algorithm_for(open_task(status.task)), LogServer(self._channel, self.address).values
        if isinstance(algorithm, LocalReporter):
            return self._reports(task_sha256(status.task), algorithm)
        if isinstance(algorithm, Diagnosed):
            key = None if pins is None else self.attested_aggregator(status, pins).signing_key
            return algorithm.diagnosed(releases_of(status, algorithm, key, values_of), epsilon=status.epsilon_spent)
        signed = release_of_question(status)
        key = None if pins is None else self.attested_aggregator(status, pins).signing_key
        return answers_of(status, signed, key, values_of)

    def usable(
        self, status: server_pb2.TaskStatus, reference_values: ReferenceValues | None = None
    ) -> UsableAnswers | None:
        """How many devices have rows that a task can use, by its count (``odp.CountUsable``).

        None where the task has no count, or where the count is not released yet: then nobody knows.

        Raises:
          AttestationError, ServiceError: as ``results``.
        """
        definition = open_task(status.task)
        if not definition.HasField("count_first"):
            return None
        count = self.status(definition.count_first.task_sha256)
        if not (count.rounds and count.rounds[0].release.release):
            return None
        counting_for(open_task(count.task))
        return cast("UsableAnswers", self.results(count, reference_values))

    def _reports(self, task: bytes, algorithm: LocalReporter) -> Answers:
        """What the reports of a task of local trust say so far: the server's word, for there is no enclave."""
        reply = self._call(
            self._local.GetResults,
            local_pb2.GetResultsRequest(task_sha256=task),
            "read what the reports say",
            timeout=channel.LONG_DEADLINE,
        )
        if not reply.reports and not algorithm.row_bytes:
            raise ConfigurationError("no device has reported to the task yet; wait for the first ones")
        try:
            return algorithm.answers_of_summary(reply.summary, reports=reply.reports)
        except ConfigurationError as error:
            raise ServiceError(f"the server at {self.address} gave no summary of the task: {error}") from error

    def attested_aggregator(
        self,
        status: server_pb2.TaskStatus,
        reference_values: ReferenceValues,
        *,
        clock: Callable[[], float] = time.time,
    ) -> VerifiedEnclave:
        """The aggregator's enclave, from fresh evidence: its key signs releases and ledgers.

        Raises:
            AttestationError: the evidence is not accepted.
        """
        return verify_fresh(
            lambda nonce: self.evidence(status.aggregator_address, nonce),
            role="aggregator",
            reference_values=reference_values,
            clock=clock,
        )

    def publish_table(self, table: Table) -> OpenedTable:
        """Publishes a public table, or its next version; the same content again changes nothing.

        What is cut in the middle is finished by publishing again, and devices go on with the version before.

        Raises:
          ConfigurationError: the server answers with another table.
        """
        what = f"publish the table {table.name!r}"
        reply = Patience().call(
            lambda: channel.call(
                self._tables.PublishTable,
                _publish_parts(table),
                timeout=channel.LONG_DEADLINE,
                what=what,
                address=self.address,
                metadata=self._metadata,
            )
        )
        opened = open_version(reply.table.definition, reply.table.manifest, name=table.name)
        if hashlib.sha256(table.content).digest() != opened.entry.sha256:
            raise ConfigurationError(f"could not {what}: the server at {self.address} acknowledged another table")
        return opened

    def publish_catalogue(self, catalogue: Catalogue) -> None:
        """Publishes the versions that the server lacks. Raises ConfigurationError where it has others."""
        publish(catalogue, self._channel, address=self.address, metadata=self._metadata)

    def named_catalogue(self, definition: common_pb2.TaskDefinition) -> Catalogue | None:
        """The catalogue version that a task names, or None. Raises ServiceError where the server does not have it."""
        return named_catalogue(definition, self._channel, address=self.address)

    def table(self, name: str) -> OpenedTable:
        """The newest announced version of a public table, its signatures checked."""
        published = channel.call(
            self._tables.GetTable, table_pb2.GetTableRequest(name=name), timeout=channel.SHORT_DEADLINE,
            what=f"ask for the table {name!r}", address=self.address,
        ).table  # fmt: skip
        return open_version(published.definition, published.manifest, name=name)

    def ledger(self, status: server_pb2.TaskStatus) -> LedgerPart:
        """Everything that the task's population was ever charged, under the head that the enclave signed."""
        address, task = status.aggregator_address, task_sha256(status.task)
        with channel.connect(address, self._ca) as opened:
            stub = aggregator_pb2_grpc.AggregatorServiceStub(opened)
            return read_ledger(
                lambda first: channel.call(
                    stub.GetLedger,
                    aggregator_pb2.GetLedgerRequest(task_sha256=task, first=first),
                    timeout=channel.SHORT_DEADLINE,
                    what="read the privacy ledger",
                    address=address,
                )
            )

    def evidence(self, address: str, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Evidence of the enclave behind ``address`` over ``nonce``; check it with ``verify_evidence``."""
        with channel.connect(address, self._ca) as opened:
            return channel.call(
                attestation_pb2_grpc.AttestationServiceStub(opened).GetEvidence,
                attestation_pb2.GetEvidenceRequest(nonce=nonce),
                timeout=channel.SHORT_DEADLINE,
                what="get the enclave's evidence",
                address=address,
            )

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


def _submission(definition: common_pb2.TaskDefinition, features: bytes) -> Iterator[server_pb2.SubmitTaskRequest]:
    pieces = [features[start : start + channel.CHUNK_BYTES] for start in range(0, len(features), channel.CHUNK_BYTES)]
    yield server_pb2.SubmitTaskRequest(definition=definition)
    for piece in pieces:
        yield server_pb2.SubmitTaskRequest(item_features=piece)


def _publish_parts(table: Table) -> Iterator[table_pb2.PublishTableRequest]:
    yield table_pb2.PublishTableRequest(header=table.header())
    content = table.content
    for start in range(0, len(content), channel.CHUNK_BYTES):
        yield table_pb2.PublishTableRequest(chunk=content[start : start + channel.CHUNK_BYTES])


def _joined(replies: Iterator[distributor_pb2.DownloadResponse], entry: common_pb2.TableManifest) -> bytes:
    """The bytes of a table. Raises ServiceError as soon as there are more than its manifest says."""
    size, data = entry_bytes(entry), bytearray()
    for reply in replies:
        data += reply.chunk
        if len(data) > size:
            raise ServiceError(f"the distributor sent more than the {size} bytes of the table {entry.name!r}")
    return bytes(data)

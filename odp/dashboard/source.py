"""Where the page's content comes from: the RPCs of `odp task`, and the log's checkpoint. Each has its deadline.

What the page shows of a task: plain values, read once from what the server answers.

Everything here is public or was released: counts of uploads, charges, states. A release never changes, so each is read
once, however often the server is asked.
"""

from __future__ import annotations

import io
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, OdpError, ServiceError, TransparencyError
from odp.operations.doctor import scrape
from odp.services.connection import Connection
from odp.signed.task import open_task, task_sha256
from odp.tasks.file import AnyTask
from odp.tasks.states import FINAL, state_name
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.checkpoint import verify_checkpoint
from odp.trust.log.sources import AuditFailure, LogServer
from odp.v1 import common_pb2, server_pb2

_MOST_KEPT = 4096
_ROUND_STATES = {
    server_pb2.RoundStatus.STATE_OPEN: "open",
    server_pb2.RoundStatus.STATE_RELEASED: "released",
    server_pb2.RoundStatus.STATE_APPLIED: "applied",
}


@dataclass(frozen=True)
class ReleasedFacts:
    """A release: ε of the task so far, and one line for each charge."""

    epsilon: float
    charges: tuple[str, ...]
    numbers: int


@dataclass(frozen=True)
class RoundFacts:
    """A round. ``number`` counts from 0; times are seconds since the epoch, 0 where unknown."""

    number: int
    state: str
    contributions: int
    opened: float
    closed: float
    release: ReleasedFacts | None


@dataclass(frozen=True)
class TaskFacts:
    """A task. ``planned_rounds`` is 0 for a task of local trust, which has ``reports`` in place of rounds."""

    id: str
    definition: common_pb2.TaskDefinition
    state: str
    is_over: bool
    failure: str
    waits_for: str
    rounds: tuple[RoundFacts, ...]
    planned_rounds: int
    spent: float
    reports: int

    @property
    def name(self) -> str:
        """For people."""
        return self.definition.name

    @property
    def kind(self) -> str:
        """What the task does, as its definition names it."""
        return str(self.definition.WhichOneof("training") or "task").replace("_", " ")

    @property
    def budget(self) -> float:
        """ε of the task; infinite without noise."""
        return self.definition.privacy.epsilon

    @property
    def newest(self) -> RoundFacts | None:
        """The round that was opened last."""
        return self.rounds[-1] if self.rounds else None

    @property
    def open_round(self) -> RoundFacts | None:
        """The round that devices contribute to now."""
        newest = self.newest
        return newest if newest is not None and newest.state == "open" and not self.is_over else None

    @property
    def releases(self) -> int:
        """Number of rounds that were released."""
        return sum(entry.state != "open" for entry in self.rounds)


class Reader:
    """Turns statuses into facts, and remembers what cannot change."""

    def __init__(self) -> None:
        self._definitions: OrderedDict[bytes, common_pb2.TaskDefinition] = OrderedDict()
        self._releases: OrderedDict[tuple[bytes, int], ReleasedFacts] = OrderedDict()
        # Most tasks stand still between two readings: the same bytes are the same facts.
        self._last: dict[bytes, tuple[bytes, TaskFacts]] = {}

    def read_all(self, statuses: Iterable[server_pb2.TaskStatus]) -> tuple[TaskFacts, ...]:
        """The facts of all tasks. Raises OdpError as ``read``."""
        now: dict[bytes, tuple[bytes, TaskFacts]] = {}
        for status in statuses:
            sha256, data = task_sha256(status.task), status.SerializeToString()
            before = self._last.get(sha256)
            now[sha256] = before if before is not None and before[0] == data else (data, self.read(status))
        self._last = now
        return tuple(facts for _, facts in now.values())

    def read(self, status: server_pb2.TaskStatus) -> TaskFacts:
        """The facts of one status. Raises OdpError if its definition is malformed."""
        sha256 = task_sha256(status.task)
        if (definition := self._definitions.get(sha256)) is None:
            definition = open_task(status.task)
            _keep(self._definitions, sha256, definition)
        return TaskFacts(
            id=sha256.hex(),
            definition=definition,
            state=state_name(status),
            is_over=status.state in FINAL,
            failure=status.failure,
            waits_for=status.waits_for.reason,
            rounds=tuple(self._round(sha256, entry) for entry in status.rounds),
            planned_rounds=status.planned_rounds,
            spent=status.epsilon_spent,
            reports=status.reports,
        )

    def _round(self, task: bytes, status: server_pb2.RoundStatus) -> RoundFacts:
        key = task, status.round
        if (release := self._releases.get(key)) is None and status.release.release:
            release = _released(status.release.release)
            _keep(self._releases, key, release)
        return RoundFacts(
            status.round,
            _ROUND_STATES.get(status.state, "unknown"),
            status.contributions,
            status.opened,
            status.closed,
            release,
        )


def _keep(cache: OrderedDict[Any, Any], key: object, value: object) -> None:
    cache[key] = value
    while len(cache) > _MOST_KEPT:
        cache.popitem(last=False)


def _released(data: bytes) -> ReleasedFacts:
    try:
        release = common_pb2.Release.FromString(data)
    except DecodeError:
        return ReleasedFacts(math.nan, ("the server returns a release that cannot be read",), 0)
    return ReleasedFacts(
        release.epsilon_spent,
        tuple(map(_charge, release.charges)),
        sum(math.prod(tensor.shape) for tensor in release.tensors),
    )


def _charge(charge: common_pb2.Charge) -> str:
    if charge.HasField("shuffled"):
        return f"{charge.name}: shuffled reports, each ε {charge.shuffled.report_epsilon:.3g}"
    if charge.HasField("stream") and charge.stream.place:
        return f"{charge.name}: covered by the stream's charge"
    return f"{charge.name}: sensitivity {charge.sensitivity:.3g}, noise σ {charge.noise_std:.3g}"


def planned_epsilon(definition: common_pb2.TaskDefinition) -> float | None:
    """ε at the task's delta once all planned rounds are released; None where there is no plan of charges."""
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import planned_charges
    from odp.privacy.accounting import epsilon

    if definition.privacy.epsilon == math.inf:
        return None
    charges = [event for events in planned_charges(algorithm_for(definition)) for event in events]
    return epsilon(charges, delta=definition.privacy.delta) if charges else None


_MOST_REASONS, _LONGEST_REASON = 40, 60


@dataclass(frozen=True)
class LogFacts:
    """A checkpoint of the log. ``verified`` says whether the pinned keys signed it; ``time`` is None where unknown."""

    origin: str
    size: int
    root: str
    witnesses: tuple[str, ...]
    time: int | None
    trouble: str


@dataclass(frozen=True)
class AuditFacts:
    """A whole audit: ``fault`` names the first record that is wrong; empty where all are right."""

    fault: str
    size: int
    entries: tuple[tuple[str, int], ...]
    tasks: int


@dataclass(frozen=True)
class RefusalFacts:
    """Contributions that aggregators answered since they started; ``trouble`` says which of them could not be read."""

    accepted: int
    refused: tuple[tuple[str, int], ...]
    trouble: str = ""


class ServerSource:
    """The server of a connection, as the page sees it, and its log. Every method may raise OdpError.

    ``reference_values`` is a file; without it, there is no log to show. ``metrics`` are the
    endpoints of aggregators and leaves, host:port.
    """

    def __init__(
        self, connection: Connection, log: LogServer, reference_values: Path | None, metrics: Sequence[str] = ()
    ) -> None:
        self._metrics = tuple(metrics)
        self._connection = connection
        self._log = log
        self._pins = reference_values
        self._lock = threading.Lock()
        self._last: tuple[bytes, LogFacts] | None = None

    def tasks(self) -> list[server_pb2.TaskStatus]:
        """All tasks, newest first."""
        return self._connection.tasks()

    def log(self) -> LogFacts | None:
        """The newest checkpoint; None where no log is pinned.

        A log that shrinks, or changes what it had signed, is said so until the program ends.
        """
        if self._pins is None:
            return None
        note = self._log.note()
        with self._lock:
            before = self._last
            if before is not None and before[0] == note:
                return before[1]
            facts = self._verified(note)
            if before is not None and not facts.trouble:
                facts = _continued(before[1], facts)
            self._last = note, facts
            return facts

    def _verified(self, note: bytes) -> LogFacts:
        values = self._values()
        if values.log is None:
            return LogFacts("", 0, "", (), None, "the reference values pin no log")
        try:
            verified = verify_checkpoint(note, values.log)
        except TransparencyError as error:
            return LogFacts("", 0, "", (), None, str(error))
        tree = verified.checkpoint
        return LogFacts(tree.origin, tree.size, tree.root.hex(), verified.witnesses, verified.time, "")

    def refusals(self) -> RefusalFacts | None:
        """What aggregators refused, by reason; None where no aggregator's metrics are read."""
        if not self._metrics:
            return None
        accepted, refused, troubles = 0.0, Counter[str](), []
        for address in self._metrics:
            try:
                metrics = scrape(address)
            except ServiceError as error:
                troubles.append(str(error))
                continue
            accepted += metrics.value("odp_contributions_accepted_total") or 0.0
            for labels, count in metrics.samples.get("odp_contributions_refused_total", ()):
                refused[labels.get("reason", "")[:_LONGEST_REASON]] += int(count)
        by_reason = sorted(refused.items(), key=lambda entry: (-entry[1], entry[0]))
        return RefusalFacts(int(accepted), tuple(by_reason[:_MOST_REASONS]), "; ".join(troubles))

    def audit(self) -> AuditFacts:
        """Verifies the whole log again."""
        try:
            report = audit(self._log, self._values())
        except AuditFailure as error:
            return AuditFacts(str(error), 0, (), 0)
        size = report.checkpoint.checkpoint.size
        return AuditFacts("", size, tuple(report.counts.items()), len(report.tasks))

    def _values(self) -> ReferenceValues:
        if self._pins is None:
            raise ConfigurationError("Expected reference values: without them there is nothing to audit against")
        return ReferenceValues.load(self._pins)

    def results(self, task: bytes) -> tuple[str, dict[str, object]]:
        """What the task released: as a terminal shows it, and as plain values."""
        answers = self._connection.results(self._connection.status(task))
        return as_text(answers.lines(0.95)), answers.to_json()

    def submit(self, task: AnyTask) -> bytes:
        """Submits a task; its id."""
        return self._connection.submit(task).task_sha256

    def cancel(self, task: bytes) -> None:
        """Ends a task."""
        self._connection.cancel(task)

    def pause(self, task: bytes) -> None:
        """A task opens no further round until ``resume``."""
        self._connection.pause(task)

    def resume(self, task: bytes) -> None:
        """Ends a pause."""
        self._connection.resume(task)


def _continued(before: LogFacts, facts: LogFacts) -> LogFacts:
    if before.trouble and before.size:
        return before
    trouble = ""
    if facts.size < before.size:
        trouble = f"the log went back from {before.size} to {facts.size} entries"
    elif facts.size == before.size and facts.root != before.root:
        trouble = f"the log signed two trees of {facts.size} entries"
    if not trouble:
        return facts
    return LogFacts(facts.origin, facts.size, facts.root, facts.witnesses, facts.time, trouble)


def as_text(lines: object) -> str:
    """Lines and tables of a terminal as plain text, 100 columns wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
    for line in cast("Iterable[object]", lines):
        console.print(line, markup=False, highlight=False)
    return console.file.getvalue() if isinstance(console.file, io.StringIO) else ""


def one_line(error: OdpError) -> str:
    """An error for the page."""
    return " ".join(str(error).split())[:500]

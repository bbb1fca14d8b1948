"""Where the page's content comes from: the RPCs of `odp task`, and the log's checkpoint. Each has its deadline."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from odp.errors import ConfigurationError, OdpError, ServiceError, TransparencyError
from odp.operations.doctor import scrape
from odp.services.connection import Connection
from odp.tasks.file import AnyTask
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.checkpoint import verify_checkpoint
from odp.trust.log.sources import AuditFailure, LogServer
from odp.v1 import server_pb2

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


class Source(Protocol):
    """One server, as the page sees it. Every method may raise OdpError."""

    def tasks(self) -> list[server_pb2.TaskStatus]:
        """All tasks, newest first."""
        ...

    def log(self) -> LogFacts | None:
        """The newest checkpoint; None where no log is pinned."""
        ...

    def refusals(self) -> RefusalFacts | None:
        """What aggregators refused, by reason; None where no aggregator's metrics are read."""
        ...

    def audit(self) -> AuditFacts:
        """Verifies the whole log again."""
        ...

    def results(self, task: bytes) -> tuple[str, dict[str, object]]:
        """What the task released: as a terminal shows it, and as plain values."""
        ...

    def submit(self, task: AnyTask) -> bytes:
        """Submits a task; its id."""
        ...

    def cancel(self, task: bytes) -> None:
        """Ends a task."""
        ...

    def pause(self, task: bytes) -> None:
        """A task opens no further round until ``resume``."""
        ...

    def resume(self, task: bytes) -> None:
        """Ends a pause."""
        ...


class ServerSource:
    """The server of a connection, and its log. ``reference_values`` is a file; without it, there is no log to show.

    ``metrics`` are the endpoints of aggregators and leaves, host:port.
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
        """See ``Source``."""
        return self._connection.tasks()

    def log(self) -> LogFacts | None:
        """See ``Source``. A log that shrinks, or changes what it had signed, is said so until the program ends."""
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
        """See ``Source``."""
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
        """See ``Source``."""
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
        """See ``Source``."""
        answers = self._connection.results(self._connection.status(task))
        return as_text(answers.lines(0.95)), answers.to_json()

    def submit(self, task: AnyTask) -> bytes:
        """See ``Source``."""
        return self._connection.submit(task).task_sha256

    def cancel(self, task: bytes) -> None:
        """See ``Source``."""
        self._connection.cancel(task)

    def pause(self, task: bytes) -> None:
        """See ``Source``."""
        self._connection.pause(task)

    def resume(self, task: bytes) -> None:
        """See ``Source``."""
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
    from collections.abc import Iterable
    from typing import cast

    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
    for line in cast("Iterable[object]", lines):
        console.print(line, markup=False, highlight=False)
    return console.file.getvalue() if isinstance(console.file, io.StringIO) else ""


def one_line(error: OdpError) -> str:
    """An error for the page."""
    return " ".join(str(error).split())[:500]

"""Ten thousand rounds of one population: what stays, and what a start costs, as the rounds add up.

A round an hour makes that 14 months; the clock is an argument. The enclave's population, its counters, the host's
database, the server's keeper of the log and its files are the real ones. Contributions, sums and network are left out:
they do not depend on how many rounds there were before.

Each figure of growth is what the last rounds cost over what the first ones did, per round: 1 is linear, and whatever
holds the whole ledger again in each round would show a ratio near 10,000 over 1,000.
"""

from __future__ import annotations

import hashlib
import io
import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figure
from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.crypto.note import NoteKey
from odp.crypto.signing import SigningKey
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, entries_of
from odp.privacy.ledger_state import LedgerState
from odp.signed.ledger import LedgerPart
from odp.transport.logs import Log
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.log.endorsements import EndorsementFile
from odp.trust.log.log_files import LogFiles
from odp.v1 import attestation_pb2, common_pb2, hand_over_pb2
from server.transparency import LogKeeper
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.state.ledger_writes import restored_ledger
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import population_key
from trusted_aggregator.state.sealed_state import PopulationRecord, Sealer

NAME = "people"
HOUR = 3600.0
_ROUNDS = 10_000
_PER_TASK = 8
_RELEASE_BYTES = 512
_DEVICES = 1000
_PAGE = 2**20
_GROWTH = "<= 1.5"
#: Two of full participation, as a round of DPAM has; all rounds together are within the policy's default budget.
_EVENTS = tuple(GaussianRelease(name, 1.0, 300.0, 64) for name in ("gram", "targets"))
_BUDGET = Budget(8.0, 1e-6)


@dataclass(frozen=True)
class Reading:
    """What there is after ``rounds``.

    Attributes:
        rounds: charged, sealed and logged so far.
        log_bytes, stored_bytes, start_bytes: of the log, of the host's database, and of what a start reads of that.
        start_seconds: until the ledger is as it was.
        memory_bytes: the most that the process has held.
        seconds: of all rounds so far.
    """

    rounds: int
    log_bytes: int
    stored_bytes: int
    start_bytes: int
    start_seconds: float
    memory_bytes: int
    seconds: float


class Years:
    """A population, round after round, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.now = 1.0e9
        self._signing = SigningKey.generate()
        platform = EmulatedPlatform.open(folder / "platform")
        policy = EnclavePolicy(role="aggregator", minimum_cohort=2)
        guest = platform.launch(image_digest="sha384:" + "00" * 48, policy=policy.to_bytes(), name="aggregator")
        self._identity, _ = EnclaveIdentity.restore_or_create(guest=guest, sealed=None)
        self._evidence = self._identity.evidence(bytes(32))
        self.sealer = Sealer(self._identity.sealing_key)
        self.population = Population(self._identity, NAME)
        self._state = StateFolder.open(folder / "state", "aggregator")
        self._storage = SqliteStorage(self._state)
        self._log = LogFiles.open(folder / "log", NoteKey.generate("example.com/log"), now=self.now)
        self._keeper = LogKeeper(
            self._log,
            endorsements=EndorsementFile(),
            events=Log("server", stream=io.StringIO()),
            clock=lambda: self.now,
        )
        self.rounds = 0

    def close(self) -> None:
        """Frees the files."""
        self._log.close()
        self._storage.close()
        self._state.close()

    def run(self, rounds: int) -> None:
        """Charges, seals and logs that many more rounds, one an hour."""
        for _ in range(rounds):
            task = hashlib.sha256(b"%d" % (self.rounds // _PER_TASK)).digest()
            number, self.now = self.rounds % _PER_TASK, self.now + HOUR
            self.population.charge(
                task_id=task.hex(), round=number, events=_EVENTS, budget=_BUDGET, contributions=_DEVICES,
                set_sha256=os.urandom(32), noise_id=os.urandom(32),
            )  # fmt: skip
            self._settle()
            release = common_pb2.Release(task_sha256=task, round=number, model_sha256=os.urandom(_RELEASE_BYTES))
            data = release.SerializeToString()
            self.population.seal(task_id=task.hex(), round=number, release_sha256=hashlib.sha256(data).digest())
            self._settle()
            signed = common_pb2.SignedRelease(release=data, signature=self._signing.sign(domains.RELEASE, data))
            self._keeper.log_round(task, number, signed, population=NAME, aggregator=self)  # type: ignore[arg-type]
            self.rounds += 1

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """The part of ``server.clients.AggregatorClient`` that the keeper asks; the same each time: it takes long."""
        found = self._evidence
        return attestation_pb2.GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log)

    def hand_overs(self) -> list[hand_over_pb2.HandOver]:
        """None."""
        return []

    def ledger(self, task_sha256: bytes, first: int) -> LedgerPart:
        """As ``evidence``."""
        head = self.population.ledger.head
        lines = self._storage.ledger_lines(NAME, first, head.entries, most_bytes=_PAGE)
        return LedgerPart(first, lines, head.encode(), self._signing.sign(domains.LEDGER, head.encode()))

    def read(self, seconds: float) -> Reading:
        """Measures; the start is one of the population alone, from what the host has."""
        with sqlite3.connect(self._folder / "state" / "sealed.db") as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        began = time.perf_counter()
        records = self.stored()
        restored = self._restored(records)
        taken = time.perf_counter() - began
        if restored.head != self.population.ledger.head:
            raise AssertionError("a start leads to another ledger")
        return Reading(
            rounds=self.rounds,
            log_bytes=_size(self._folder / "log"),
            stored_bytes=_size(self._folder / "state"),
            start_bytes=sum(map(len, records.values())),
            start_seconds=taken,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            seconds=seconds,
        )

    def epsilons(self) -> tuple[float, float]:
        """Of the population, at its own delta: from the state after a start, and from the list of all entries."""
        ledger, delta = self._restored(self.stored()), self._identity.policy.population_delta
        lines, at = b"", 0
        while at < ledger.head.entries:
            lines += self._storage.ledger_lines(NAME, at, ledger.head.entries, most_bytes=_PAGE)
            at = lines.count(b"\n")
        whole = Ledger(NAME, tuple(entries_of(lines)))
        return ledger.epsilon_of_population(delta=delta), accounting.epsilon(whole.population_events, delta=delta)

    def stored(self) -> dict[str, bytes]:
        """The records that a start reads."""
        return self._storage.records()

    def _restored(self, records: dict[str, bytes]) -> LedgerState:
        data = self.sealer.open(population_key(NAME), records[population_key(NAME)])
        return PopulationRecord.decode(data, lambda head: restored_ledger(head, self.sealer, records)).ledger

    def _settle(self) -> None:
        self._storage.apply(self.population.writes(self.sealer))
        self.population.commit()


def play(folder: Path, marks: Sequence[int]) -> tuple[list[Reading], tuple[float, float]]:
    """Readings after each number of rounds, and the two epsilons at the end."""
    years, seconds, readings = Years(folder), 0.0, []
    try:
        for mark in marks:
            began = time.perf_counter()
            years.run(mark - years.rounds)
            seconds += time.perf_counter() - began
            readings.append(years.read(seconds))
        return readings, years.epsilons()
    finally:
        years.close()


def run(quick: bool) -> list[Figure]:
    """All rounds, quick or not, in memory where there is a file system: a disk adds the same to each round."""
    rounds = _ROUNDS
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        readings, (compact, whole) = play(Path(folder), [rounds // 10, rounds // 2, rounds])
    first, _, last = readings
    mebibyte = 2.0**20
    return [
        Figure("rounds", last.rounds, "rounds"),
        Figure("log", last.log_bytes / mebibyte, "MiB"),
        Figure("log per round, last half over first tenth", growth(readings, "log_bytes"), "x", _GROWTH),
        Figure("stored by the host", last.stored_bytes / mebibyte, "MiB"),
        Figure("stored per round, last half over first tenth", growth(readings, "stored_bytes"), "x", _GROWTH),
        Figure("read by a start", last.start_bytes / mebibyte, "MiB"),
        Figure("start", last.start_seconds, "s", "<= 2"),
        Figure("start after a tenth of the rounds", first.start_seconds, "s"),
        Figure("memory added since a tenth of the rounds", (last.memory_bytes - first.memory_bytes) / mebibyte, "MiB"),
        Figure("time per round, last half over first tenth", growth(readings, "seconds"), "x", "<= 3"),
        Figure("epsilon of the state over that of all entries", compact / whole, "x", "== 1"),
    ]


def growth(readings: Sequence[Reading], what: str) -> float:
    """What a round of the last half adds, over what a round of the first part did."""
    first, middle, last = ((reading.rounds, getattr(reading, what)) for reading in readings)
    late = (last[1] - middle[1]) / (last[0] - middle[0])
    return float(late / (first[1] / first[0]))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

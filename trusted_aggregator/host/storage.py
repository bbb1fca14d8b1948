"""The storage of the aggregator's host: accepted ciphertexts, and the records of the enclave.

``Storage`` says what every store guarantees. ``tests/trusted_aggregator/test_storage.py`` is its conformance suite, and
``sqlite_storage`` and ``postgresql_storage`` are the implementations.

Where a round is masked, a contribution's ciphertext ends with SHA-256 of its masked vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from trusted_aggregator.state.records import SealedRecord


class Contribution(NamedTuple):
    """An accepted ciphertext; ``masked`` is its masked vector, whose SHA-256 the ciphertext then ends with."""

    task_sha256: bytes
    round: int
    ciphertext: bytes
    masked: bytes | None = None


class Storage(Protocol):
    """A host's store. Thread-safe; ``add`` is meant for one thread that adds many contributions at once.

    What a method stores is on the disk before it returns, all of it or none, so what was acknowledged, and what is
    charged for, survives a power cut. Contributions that could not be stored are never acknowledged, and nothing more
    is accepted: the program stops, and the next start finds exactly what was acknowledged.

    Every method raises StateError where the store cannot be used, DiskFull and DiskFailed among them.
    """

    def close(self) -> None:
        """Closes the store. Idempotent; ``add`` and ``wait_for`` then raise StateError."""

    # Contributions

    def add(self, contributions: Sequence[Contribution]) -> None:
        """Stores accepted contributions, all or none.

        Raises:
            StateError: they could not be stored, or earlier ones could not: the program has to stop.
        """

    def wait_for(self, task_sha256: bytes, round: int, count: int, *, timeout: float) -> None:
        """Returns once ``count`` contributions of a round are stored. Raises StateError after ``timeout`` seconds."""

    def contributions(self, task_sha256: bytes, round: int) -> Iterator[bytes]:
        """The stored ciphertexts of a round, in the order of their addition.

        Empty, which no enclave accepts, where a ciphertext or its masked vector is gone or damaged.
        """

    def masked(self, task_sha256: bytes, round: int, digests: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """(SHA-256, masked vector) of those of ``digests`` that are stored and intact, a few in memory at a time."""

    def keep_only(self, rounds: Collection[tuple[bytes, int]]) -> None:
        """Erases contributions and parts of all other rounds, which a crash left behind."""

    def set_stored(self, task_sha256: bytes, round: int, count: int) -> None:
        """Sets, for ``wait_for``, how many stored contributions of a round the enclave took back at start."""

    def add_part(self, task_sha256: bytes, round: int, data: bytes) -> None:
        """Stores one more part of what the host itself holds of a round. ``erase`` and ``keep_only`` erase it too."""

    def parts(self, task_sha256: bytes, round: int) -> list[bytes]:
        """The parts of a round in the order of their addition; up to the first that is gone or damaged."""

    def erase(self, task_sha256: bytes, round: int) -> None:
        """Erases contributions and parts of a round; after ``finish_erasing`` no byte of them is left.

        PostgreSQL keeps some in its log, its backups and free space: sealed, to a key that the enclave has erased.
        """

    def finish_erasing(self) -> None:
        """Removes the traces of erased data. Idempotent.

        Raises StateError while another program reads the store: then they stay.
        """

    # Records of the enclave

    def apply(self, writes: Sequence[SealedRecord]) -> None:
        """Stores the enclave's writes in order, all or none; erased and replaced records leave no trace."""

    def records(self) -> dict[str, bytes]:
        """All records that an enclave needs to start; of ledgers, the state and the entries after it."""

    def ledger_lines(self, population: str, first: int, end: int, *, most_bytes: int) -> bytes:
        """Entries of a ledger from number ``first`` to before ``end``, in order; as many as fit, at least one."""

    def keys(self, *, after: str = "") -> list[str]:
        """The names of all records above ``after``, entries of ledgers included, ascending."""

    def record(self, key: str) -> bytes | None:
        """One record, or None."""

    def write_pieces(self, record: bytes, pieces: Iterable[bytes]) -> None:
        """Stores the sealed pieces of a record, all or none, before ``apply`` stores the record itself.

        They are erased with it, and those of a record that was never stored at the next start.
        """

    def pieces(self, record: bytes, *, first: int = 0) -> Iterator[bytes]:
        """The stored pieces of a record from ``first`` on, one in memory at a time; none where they are gone."""

    def holds(self, key: str) -> bool:
        """Whether a sealed record is stored; entries of ledgers are none."""

    # Charters, and work on tasks

    def keep_charter(self, population: str, sequence: int, signed: bytes) -> None:
        """Stores a SignedCharter that is in force, unless one with this sequence is stored.

        The enclave keeps the newest one alone.
        """

    def charters(self, population: str, first: int, most: int) -> list[bytes]:
        """At most ``most`` SignedCharters of a population from sequence ``first`` on, oldest first."""

    def note_work(self, task_sha256: bytes, at: float, *, unless_noted: bool = False) -> None:
        """Records the time of work on a task, in seconds since the epoch."""

    def idle(self, before: float) -> list[bytes]:
        """Tasks without work since ``before``."""

    def forget_work(self, task_sha256: bytes) -> None:
        """Deletes the record of ``note_work``."""

"""The interface of the aggregator's enclave for its host, on either side of the socket."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from odp.errors import Refusal
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2, hand_over_pb2, population_pb2
from trusted_aggregator.state.records import Writes


class Status(enum.Enum):
    """Where a round stands; a later state never goes back. The numbers are those of ``odp.v1.RoundState.Status``."""

    OPEN = 10
    CHARGED = 30
    SEALED = 40
    RELEASED = 50
    VOID = 90


class Refused(NamedTuple):
    """Why a contribution was refused. ``signature`` states that it can never count; it is empty if it might."""

    refusal: Refusal
    signature: bytes = b""


class Submit(NamedTuple):
    """A sealed contribution on its way to the enclave. ``host_sha256`` is of the part that stays with the host.

    A ``SubmitRequest`` says the same, but copies the contribution at each access, and those may be long.
    """

    task_sha256: bytes
    round: int
    sealed_contribution: bytes
    host_sha256: bytes = b""


Sealed = Submit | aggregator_pb2.SubmitRequest


@dataclass(frozen=True)
class Charged:
    """Answer to ``charge``. With ``released``, the release is sealed, and ``release`` returns it.

    ``host_part_bytes`` is the length of the host's part of each contribution, whose sum ``seal_release`` needs; 0 where
    there is none.
    """

    task_sha256: bytes
    round: int
    contributions: int
    released: bool
    writes: Writes
    host_part_bytes: int = 0


@dataclass(frozen=True)
class HostSum:
    """The host's part of a charged round, handed in once: its sum, and the name of the set that it summed.

    ``sum`` is integers, little-endian, as the round's mode of aggregation has them.
    """

    sum: bytes
    set_sha256: bytes


@dataclass(frozen=True)
class RoundState:
    """The public facts about a round (metadata, rule P3)."""

    task_sha256: bytes
    round: int
    status: Status
    contributions: int


class Aggregator(Protocol):
    """The enclave; the parts of ``trusted_aggregator.enclave.core`` say what each call guarantees and raises."""

    def set_charter(self, signed: population_pb2.SignedCharter) -> Writes:
        """Founds a population, or changes who owns it. Idempotent."""
        ...

    def charter(self, population: str) -> population_pb2.SignedCharter | None:
        """The charter in force; None where the population is not founded."""
        ...

    def commit(self) -> None:
        """Confirms that all writes of earlier calls are durable: their changes are then in force."""
        ...

    def check_task(self, signed_task: common_pb2.SignedTask) -> None:
        """Returns if a task could begin now; changes nothing."""
        ...

    def open_round(
        self,
        signed_task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> Writes:
        """Opens the round that ``order`` names. Idempotent."""
        ...

    def round_key(self, task_sha256: bytes, round: int) -> common_pb2.SignedRoundKey | None:
        """The public key of a round that is open or charged, signed; None of any other."""
        ...

    def submit_batch(self, submits: Sequence[Sealed]) -> list[Refused | None]:
        """Counts sealed contributions, each once, in order; None means accepted, and to be stored."""
        ...

    def sign_refusal(self, given: Sealed) -> Refused:
        """The refusal of a contribution to a round that takes none; nothing is kept."""
        ...

    def sealed_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of every well-formed sealed contribution to a round; or the refusal that each would get."""
        ...

    def host_part_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of the host's part of each contribution, 0 if there is none; or the refusal."""
        ...

    def host_parts(self, task_sha256: bytes, round: int, start: int) -> bytes:
        """SHA-256 of the host's parts of a charged round from number ``start`` on; empty after the last one."""
        ...

    def announce(self, task_sha256: bytes, round: int, clients: int, set_sha256: bytes) -> None:
        """Names the contributions that only the host holds: ``charge`` charges for them. Idempotent."""
        ...

    def give_up(self, task_sha256: bytes, round: int) -> Writes:
        """Ends a charged round whose sum or noise is lost. Idempotent."""
        ...

    def charge(self, order: bytes, signature: bytes) -> Charged:
        """Closes the set of contributions and charges the ledger for it. Idempotent."""
        ...

    def seal_release(
        self,
        order: bytes,
        *,
        noise: bytes | None = None,
        stream: bytes | None = None,
        host_sum: HostSum | None = None,
    ) -> Writes:
        """Makes the one release of a charged round, sealed. Idempotent."""
        ...

    def release(self, order: bytes, *, stored: bytes) -> bytes:
        """A sealed release whose hash is in force, opened: a StoredRelease, the same bytes each time."""
        ...

    def take_piece(self, key: str, number: int) -> bytes:
        """A sealed piece of the record that the call before was answered with; each once, in order."""
        ...

    def give_piece(self, task_sha256: bytes, round: int, record: bytes, number: int, data: bytes) -> None:
        """Takes a sealed piece of the noise of a charged round back, for ``seal_release``."""
        ...

    def abandon(
        self, signed_task: common_pb2.SignedTask, order: bytes, signature: population_pb2.CharterSignature
    ) -> Writes:
        """Ends a task: its data here are erased, and nothing of it is released any more. Idempotent."""
        ...

    def forget(self, task_sha256: bytes) -> Writes:
        """Erases an idle task, uncharged; it can be opened again. Idempotent."""
        ...

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        """(head of the population's ledger, encoded; its signature); None for an unknown task."""
        ...

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        """The number of contributions of a round; None for an unknown one."""
        ...

    def round_states(self) -> list[RoundState]:
        """All open or charged rounds, ordered by task and number."""
        ...

    def draw_nonce(self) -> bytes:
        """32 random bytes for the evidence of a successor; earlier nonces become invalid."""
        ...

    def begin_hand_over(self, request: hand_over_pb2.HandOverRequest) -> Writes:
        """Names the successor in every population's record. Idempotent for that successor."""
        ...

    def finish_hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverPackage:
        """The package for the successor, sealed to it, once its name is in force."""
        ...

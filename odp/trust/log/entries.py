"""The entries of the log: a closed set of types, each with one encoding.

Bytes of an entry::

    "odp/v1/entry" || type (1 byte) || for each field: length (4 bytes, big-endian) || bytes

Every type has a fixed number of fields, so one value has one encoding and no two values share one. The fields hold
signed bytes as they were signed; nothing is serialized again.

==== ================= =====================================================================================
type entry             fields
==== ================= =====================================================================================
1    ``TaskEntry``         definition, signature by the developer
2    ``PolicyEntry``       the policy of an enclave
3    ``EndorsementEntry``  statement, signature by an endorser: this code under this policy, from then to then
4    ``WithdrawalEntry``   statement, signature by the same endorser: that endorsement no longer holds
5    ``EvidenceEntry``     token, policy, event log: binds the key that signs releases and ledgers to endorsed code
6    ``ManifestEntry``     manifest, signature by the developer: a model version
7    ``ReleaseEntry``      release, signature by the aggregator's enclave
8    ``LedgerEntry``       task id, round (4 bytes), new entries of the ledger, its head, signature of the head by the
                       aggregator's enclave
9    ``CharterEntry``      charter, approvals (96 bytes each: key, signature), by ascending key
16   ``HandOverEntry``     statement, signature by an aggregator's enclave: other code has its populations from here on
17   ``CatalogueEntry``    step, key (32 bytes) of an owner of its population, signature by it: a catalogue version
==== ================= =====================================================================================
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar

from odp.crypto.public_keys import KEY_BYTES
from odp.errors import ConfigurationError
from odp.protocol.catalogues.step import SignedStep
from odp.signed.ledger import LedgerPart
from odp.signed.task import HASH_BYTES, SIGNATURE_BYTES, check_length
from odp.trust.log.merkle import leaf_hash
from odp.v1 import common_pb2, population_pb2

PREFIX = b"odp/v1/entry"
#: Leaves room for the framing of a reply that carries one entry.
LARGEST_ENTRY = 32 * 2**20 - 64 * 1024
_LENGTH_BYTES = 4
_ROUND_BYTES = 4
_APPROVAL_BYTES = KEY_BYTES + SIGNATURE_BYTES
_Signed = TypeVar("_Signed")


class _Entry:
    """Encoding by field order. Subclasses are frozen dataclasses of ``bytes``."""

    code: ClassVar[int]
    label: ClassVar[str]

    def encode(self) -> bytes:
        """The bytes of the entry. Raises ConfigurationError where it is too long."""
        parts = [PREFIX, bytes([self.code])]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value: bytes = getattr(self, field.name)
            parts += [len(value).to_bytes(_LENGTH_BYTES, "big"), value]
        data = b"".join(parts)
        if len(data) > LARGEST_ENTRY:
            raise ConfigurationError(f"Expected an entry of at most {LARGEST_ENTRY} bytes, got {len(data)}")
        return data

    @property
    def leaf(self) -> bytes:
        """Hash of the entry as a leaf of the log."""
        return leaf_hash(self.encode())


class _SignedEntry(_Entry, Generic[_Signed]):
    """The fields of a signed message, by their names in it."""

    @classmethod
    def of(cls, signed: _Signed) -> Self:
        """The entry of ``signed``."""
        return cls(*(getattr(signed, field.name) for field in dataclasses.fields(cls)))  # type: ignore[arg-type]  # as above


@dataclasses.dataclass(frozen=True)
class TaskEntry(_SignedEntry[common_pb2.SignedTask]):
    """A SignedTask."""

    code: ClassVar[int] = 1
    label: ClassVar[str] = "task"
    definition: bytes
    signature: bytes

    @property
    def signed(self) -> common_pb2.SignedTask:
        """The task."""
        return common_pb2.SignedTask(definition=self.definition, signature=self.signature)


@dataclasses.dataclass(frozen=True)
class PolicyEntry(_Entry):
    """The canonical JSON of an EnclavePolicy."""

    code: ClassVar[int] = 2
    label: ClassVar[str] = "policy"
    policy: bytes


@dataclasses.dataclass(frozen=True)
class EndorsementEntry(_Entry):
    """A statement of ``odp.trust.log.endorsements``, signed."""

    code: ClassVar[int] = 3
    label: ClassVar[str] = "endorsement"
    statement: bytes
    signature: bytes


@dataclasses.dataclass(frozen=True)
class WithdrawalEntry(_Entry):
    """The statement of an endorsement, signed again to withdraw it."""

    code: ClassVar[int] = 4
    label: ClassVar[str] = "withdrawal"
    statement: bytes
    signature: bytes


@dataclasses.dataclass(frozen=True)
class EvidenceEntry(_Entry):
    """Evidence of an enclave: the token in ASCII, its policy, and the event log of its registers."""

    code: ClassVar[int] = 5
    label: ClassVar[str] = "evidence"
    token: bytes
    policy: bytes
    event_log: bytes


@dataclasses.dataclass(frozen=True)
class ManifestEntry(_SignedEntry[common_pb2.SignedManifest]):
    """A SignedManifest."""

    code: ClassVar[int] = 6
    label: ClassVar[str] = "model"
    manifest: bytes
    signature: bytes

    @property
    def signed(self) -> common_pb2.SignedManifest:
        """The manifest."""
        return common_pb2.SignedManifest(manifest=self.manifest, signature=self.signature)


@dataclasses.dataclass(frozen=True)
class ReleaseEntry(_SignedEntry[common_pb2.SignedRelease]):
    """A SignedRelease."""

    code: ClassVar[int] = 7
    label: ClassVar[str] = "release"
    release: bytes
    signature: bytes


@dataclasses.dataclass(frozen=True)
class LedgerEntry(_Entry):
    """The new charges to a task's population since the last such entry, up to the signed head after one of its rounds.

    ``lines`` are entries of the ledger, as ``odp.privacy.ledger_entry`` has them; ``head`` is a ``LedgerHead``.
    """

    code: ClassVar[int] = 8
    label: ClassVar[str] = "ledger"
    task_sha256: bytes
    round: bytes
    lines: bytes
    head: bytes
    signature: bytes

    @classmethod
    def of(cls, task_sha256: bytes, round: int, part: LedgerPart) -> LedgerEntry:
        """The entry of the end of a ledger."""
        return cls(task_sha256, round.to_bytes(_ROUND_BYTES, "big"), part.lines, part.head, part.signature)

    @property
    def number(self) -> int:
        """The round."""
        return int.from_bytes(self.round, "big")


@dataclasses.dataclass(frozen=True)
class CharterEntry(_Entry):
    """A SignedCharter: the owners of a population from here on."""

    code: ClassVar[int] = 9
    label: ClassVar[str] = "charter"
    charter: bytes
    approvals: bytes

    @classmethod
    def of(cls, signed: population_pb2.SignedCharter) -> CharterEntry:
        """The entry of ``signed``."""
        return cls(signed.charter, b"".join(signature.key + signature.signature for signature in signed.signatures))

    @property
    def signed(self) -> population_pb2.SignedCharter:
        """The charter."""
        parts = [self.approvals[at : at + _APPROVAL_BYTES] for at in range(0, len(self.approvals), _APPROVAL_BYTES)]
        return population_pb2.SignedCharter(
            charter=self.charter,
            signatures=[
                population_pb2.CharterSignature(key=part[:KEY_BYTES], signature=part[KEY_BYTES:]) for part in parts
            ],
        )


@dataclasses.dataclass(frozen=True)
class HandOverEntry(_Entry):
    """A HandOverStatement, signed by the enclave that handed over."""

    code: ClassVar[int] = 16
    label: ClassVar[str] = "hand-over"
    statement: bytes
    signature: bytes


@dataclasses.dataclass(frozen=True)
class CatalogueEntry(_SignedEntry[SignedStep]):
    """A SignedStep of a catalogue."""

    code: ClassVar[int] = 17
    label: ClassVar[str] = "catalogue"
    step: bytes
    key: bytes
    signature: bytes

    @property
    def signed(self) -> SignedStep:
        """The step."""
        return SignedStep(self.step, self.key, self.signature)


Entry: TypeAlias = (
    TaskEntry
    | PolicyEntry
    | EndorsementEntry
    | WithdrawalEntry
    | EvidenceEntry
    | ManifestEntry
    | ReleaseEntry
    | LedgerEntry
    | CharterEntry
    | HandOverEntry
    | CatalogueEntry
)
TYPES: dict[int, type[Entry]] = {
    kind.code: kind
    for kind in (
        TaskEntry,
        PolicyEntry,
        EndorsementEntry,
        WithdrawalEntry,
        EvidenceEntry,
        ManifestEntry,
        ReleaseEntry,
        LedgerEntry,
        CharterEntry,
        HandOverEntry,
        CatalogueEntry,
    )
}
#: So many bytes of an entry tell its type.
HEAD_BYTES = len(PREFIX) + 1


def type_of(head: bytes) -> type[Entry] | None:
    """The type of an entry that starts with ``head``; None if it is no entry of this version."""
    if len(head) < HEAD_BYTES or not head.startswith(PREFIX):
        return None
    return TYPES.get(head[len(PREFIX)])


def decode(data: bytes) -> Entry:
    """The entry from ``encode``; its signatures are unchecked.

    Raises:
        ConfigurationError: it is no entry of this version.
    """
    if (kind := type_of(data[:HEAD_BYTES])) is None or len(data) > LARGEST_ENTRY:
        raise ConfigurationError("Expected an entry of the log, of a type that this version knows")
    values, at = [], HEAD_BYTES
    for _ in dataclasses.fields(kind):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if not start <= at <= len(data):
            raise ConfigurationError(f"Expected the fields of a log entry ({kind.label}) to lie within it")
        values.append(data[start:at])
    if at != len(data):
        raise ConfigurationError(f"Expected a log entry ({kind.label}) to end with its last field")
    entry = kind(*values)
    if isinstance(entry, LedgerEntry):
        check_length("task_sha256", entry.task_sha256, HASH_BYTES)
        check_length("round", entry.round, _ROUND_BYTES)
    if isinstance(entry, CharterEntry) and len(entry.approvals) % _APPROVAL_BYTES:
        raise ConfigurationError(f"Expected approvals of {_APPROVAL_BYTES} bytes each in a log entry ({kind.label})")
    return entry

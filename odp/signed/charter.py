"""Charters: which developer keys own a population, and how they pass it on.

A population's first charter is signed by a *founder*, a key that the policy of the aggregator's enclave names. Every
later one is signed by as many owners of the charter before as that one asks for. So whoever holds one charter, and the
hash of the founding one, can check every later one.

    >>> key = SigningKey.generate()
    >>> first = approve(found("films", owners=[key.public]), key)
    >>> founding = open_charter(first)
    >>> check_founding(founding, founders=[key.public])
    >>> other = SigningKey.generate()
    >>> second = approve(succeed(founding, owners=[key.public, other.public]), key)
    >>> check_succession(open_charter(second), founding)

Whether the founder is the right one follows from the enclave's policy, which evidence shows. Whether a charter is still
in force is the enclave's word alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection

from odp import _validate
from odp.crypto import domains
from odp.crypto.public_keys import require_ed25519
from odp.crypto.signing import SigningKey, verify
from odp.errors import ConfigurationError, PrivacyError
from odp.refusing import refusing
from odp.signed.task import HASH_BYTES, check_length, parse_known
from odp.v1 import population_pb2

#: Keys that may own one population.
MOST_OWNERS = 16

_LARGEST_CHARTER = 1024
_LARGEST_SEQUENCE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Charter:
    """A charter whose form was checked, not who signed it; public.

    Attributes:
        signed: as it was received.
        population: its name.
        sequence: 0 for the founding one.
        founding_sha256: of the charter that founded the population, 32 bytes: its own where ``sequence`` is 0.
        previous_sha256: of the one before, 32 bytes; empty where ``sequence`` is 0.
        owners: Ed25519 public keys, ascending.
        approvals: how many of them sign the next one.
        issuer_key: Ed25519 public key of the issuer of admission tokens; empty: none is asked for.
    """

    signed: population_pb2.SignedCharter
    population: str
    sequence: int
    founding_sha256: bytes
    previous_sha256: bytes
    owners: tuple[bytes, ...]
    approvals: int
    issuer_key: bytes

    @property
    def sha256(self) -> bytes:
        """The charter's id, 32 bytes."""
        return charter_sha256(self.signed)

    def require_owner(self, key: bytes, *, of: str) -> None:
        """Raises PrivacyError unless ``key`` owns the population; ``of`` says what it signed."""
        if key not in self.owners:
            raise PrivacyError(
                f"population {self.population!r} belongs to other keys than {key.hex()[:16]}.., which signed {of}: "
                "take another population, or have its owners add this key"
            )


def charter_sha256(signed: population_pb2.SignedCharter) -> bytes:
    """The charter's id: SHA-256 of its bytes."""
    return hashlib.sha256(signed.charter).digest()


def found(
    population: str, *, owners: Collection[bytes], approvals: int = 1, issuer_key: bytes = b""
) -> population_pb2.SignedCharter:
    """The first charter of a population, not signed yet. Raises ConfigurationError."""
    return _written(population, sequence=0, owners=owners, approvals=approvals, issuer_key=issuer_key)


def succeed(
    before: Charter, *, owners: Collection[bytes], approvals: int | None = None, issuer_key: bytes | None = None
) -> population_pb2.SignedCharter:
    """The charter after ``before``, not signed yet; None leaves a value as it was. Raises ConfigurationError."""
    return _written(
        before.population,
        sequence=before.sequence + 1,
        owners=owners,
        approvals=before.approvals if approvals is None else approvals,
        issuer_key=before.issuer_key if issuer_key is None else issuer_key,
        founding_sha256=before.founding_sha256,
        previous_sha256=before.sha256,
    )


def approve(signed: population_pb2.SignedCharter, key: SigningKey) -> population_pb2.SignedCharter:
    """``signed`` with the signature of ``key`` added; the same where it is there already."""
    signatures = {entry.key: entry.signature for entry in signed.signatures}
    signatures[key.public] = key.sign(domains.CHARTER, signed.charter)
    return population_pb2.SignedCharter(
        charter=signed.charter,
        signatures=[
            population_pb2.CharterSignature(key=owner, signature=signatures[owner]) for owner in sorted(signatures)
        ],
    )


@refusing("charter")
def open_charter(signed: population_pb2.SignedCharter) -> Charter:
    """The charter, after every field was checked; who signed it is left to the two checks below.

    Raises ConfigurationError naming the field.
    """
    if not 0 < len(signed.charter) <= _LARGEST_CHARTER:
        raise ConfigurationError(f"Expected a charter of 1 to {_LARGEST_CHARTER} bytes, got {len(signed.charter)}")
    message = parse_known(population_pb2.PopulationCharter(), signed.charter, "charter")
    _check(message)
    keys = [entry.key for entry in signed.signatures]
    if keys != sorted(set(keys)) or len(keys) > MOST_OWNERS:
        raise ConfigurationError(f"Expected at most {MOST_OWNERS} signatures of a charter, by ascending distinct keys")
    return Charter(
        signed=signed,
        population=message.population,
        sequence=message.sequence,
        founding_sha256=message.founding_sha256 if message.sequence else charter_sha256(signed),
        previous_sha256=message.previous_sha256,
        owners=tuple(message.owners),
        approvals=message.approvals,
        issuer_key=message.issuer_key,
    )


def check_founding(charter: Charter, founders: Collection[bytes]) -> None:
    """Returns if ``charter`` founds its population under the signature of one of ``founders``, and of no other key.

    Raises:
        PrivacyError: it does not.
        SignatureError: a signature is not that of its key.
    """
    if charter.sequence:
        raise PrivacyError(f"charter {charter.sequence} of population {charter.population!r} does not found it")
    _check_signatures(charter, founders, fewest=1, who="a founder that the enclave's policy names (--founder)")


def check_succession(charter: Charter, before: Charter) -> None:
    """Returns if ``charter`` is the one after ``before``, under the signatures that this one asks for.

    Raises:
        PrivacyError: it is not.
        SignatureError: a signature is not that of its key.
    """
    if charter.population != before.population:
        raise PrivacyError(f"a charter of population {charter.population!r} cannot follow one of {before.population!r}")
    if (charter.sequence, charter.previous_sha256, charter.founding_sha256) != (
        before.sequence + 1,
        before.sha256,
        before.founding_sha256,
    ):
        raise PrivacyError(
            f"charter {charter.sequence} of population {charter.population!r} does not follow charter "
            f"{before.sequence} that is in force: write the next one anew"
        )
    _check_signatures(charter, before.owners, fewest=before.approvals, who="an owner")


def missing_approvals(charter: Charter, before: Charter) -> int:
    """How many more owners of ``before`` have to sign ``charter``; signatures are counted, not checked."""
    approvals = sum(entry.key in before.owners for entry in charter.signed.signatures)
    return max(0, before.approvals - approvals)


def _check_signatures(charter: Charter, keys: Collection[bytes], *, fewest: int, who: str) -> None:
    signatures = charter.signed.signatures
    for entry in signatures:
        if entry.key not in keys:
            raise PrivacyError(
                f"charter {charter.sequence} of population {charter.population!r} is signed by "
                f"{entry.key.hex()[:16]}.., "
                f"which is not {who}"
            )
        verify(entry.key, entry.signature, domains.CHARTER, charter.signed.charter)
    if len(signatures) < fewest:
        raise PrivacyError(
            f"charter {charter.sequence} of population {charter.population!r} has {len(signatures)} of {fewest} "
            "signatures: have more owners approve it"
        )


def _written(
    population: str,
    *,
    sequence: int,
    owners: Collection[bytes],
    approvals: int,
    issuer_key: bytes,
    founding_sha256: bytes = b"",
    previous_sha256: bytes = b"",
) -> population_pb2.SignedCharter:
    message = population_pb2.PopulationCharter(
        population=population,
        sequence=sequence,
        founding_sha256=founding_sha256,
        previous_sha256=previous_sha256,
        owners=sorted(set(owners)),
        approvals=approvals,
        issuer_key=issuer_key,
    )
    signed = population_pb2.SignedCharter(charter=message.SerializeToString(deterministic=True))
    open_charter(signed)
    return signed


def _check(message: population_pb2.PopulationCharter) -> None:
    _validate.identifier(population=message.population)
    _validate.integer(low=0, high=_LARGEST_SEQUENCE, sequence=message.sequence)
    check_length("founding_sha256", message.founding_sha256, HASH_BYTES if message.sequence else 0)
    check_length("previous_sha256", message.previous_sha256, HASH_BYTES if message.sequence else 0)
    owners = list(message.owners)
    if not 1 <= len(owners) <= MOST_OWNERS or owners != sorted(set(owners)):
        raise ConfigurationError(f"Expected 1 to {MOST_OWNERS} owners, ascending and distinct, got {len(owners)}")
    for key in owners:
        require_ed25519(key, name="owner")
    if message.issuer_key:
        require_ed25519(message.issuer_key, name="issuer_key")
    _validate.integer(low=1, high=len(owners), approvals=message.approvals)

"""Endorsements: an endorser of an enclave's code states which code is good, under which policy, and for how long.

An endorsement can be withdrawn before it ends, and a device has to notice even if the server hides it. So the
withdrawal is made together with the endorsement: the same statement, signed in another domain. Its endorsement names
the hash that it would have as a leaf of the log. The endorser keeps the withdrawal to itself until it is needed. Who
has the hashes of a log's leaves knows whether it is there, and nobody else can make it.

Statements are canonical JSON (sorted keys, no spaces, ASCII); times are whole seconds since the epoch.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odp import _validate
from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey, verify
from odp.errors import ConfigurationError
from odp.trust.enclave.policy import ROLES
from odp.trust.log.entries import EndorsementEntry, PolicyEntry, WithdrawalEntry

_LARGEST_TIME = 2**40
_LARGEST_STATEMENT = 2048
_LARGEST_FILE = 1 << 20
_DIGEST = re.compile(r"sha384:[0-9a-f]{96}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KINDS: dict[str, type] = {
    "endorser": str, "image_digest": str, "not_after": int, "not_before": int, "policy_sha256": str, "role": str,
    "withdrawal": str,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endorsement:
    """A verified endorsement; public.

    Attributes:
        role, image_digest, policy_sha256: the enclave, as evidence and reference values name it.
        not_before, not_after: when it holds.
        endorser: the key that signed it, 64 hex digits.
        withdrawal: leaf hash of the entry that withdraws it, 64 hex digits.
    """

    role: str
    image_digest: str
    policy_sha256: str
    not_before: int
    not_after: int
    endorser: str
    withdrawal: str

    def __post_init__(self) -> None:
        _validate.one_of(ROLES, role=self.role)
        for name, form in (
            ("image_digest", _DIGEST), ("policy_sha256", _SHA256), ("endorser", _SHA256), ("withdrawal", _SHA256)
        ):  # fmt: skip
            if not form.fullmatch(getattr(self, name)):
                raise ConfigurationError(f"Expected {name} of an endorsement to match {form.pattern}")
        _validate.integer(low=0, high=_LARGEST_TIME, not_before=self.not_before, not_after=self.not_after)
        if not self.not_before < self.not_after:
            raise ConfigurationError("Expected not_before of an endorsement to be before not_after")

    def covers(self, *, role: str, image_digest: str, policy_sha256: str, now: float) -> bool:
        """Whether it endorses this enclave at this time."""
        named = (self.role, self.image_digest, self.policy_sha256) == (role, image_digest, policy_sha256)
        return named and self.not_before <= now < self.not_after


def endorse(
    key: SigningKey, *, role: str, image_digest: str, policy_sha256: str, not_before: int, not_after: int
) -> tuple[EndorsementEntry, WithdrawalEntry]:
    """An endorsement, and its withdrawal: keep that one, or make it again from the same values and key.

    Raises:
        ConfigurationError: a value is malformed.
    """
    core: dict[str, Any] = {
        "endorser": key.public.hex(),
        "image_digest": image_digest,
        "not_after": not_after,
        "not_before": not_before,
        "policy_sha256": policy_sha256,
        "role": role,
    }
    withdrawn = _canonical(core)
    withdrawal = WithdrawalEntry(withdrawn, key.sign(domains.WITHDRAWAL, withdrawn))
    whole = Endorsement(**core, withdrawal=withdrawal.leaf.hex())
    statement = _canonical(dataclasses.asdict(whole))
    return EndorsementEntry(statement, key.sign(domains.ENDORSEMENT, statement)), withdrawal


def withdrawal_of(entry: EndorsementEntry, key: SigningKey) -> WithdrawalEntry:
    """The withdrawal of an endorsement by ``key``.

    Raises:
        ConfigurationError: the endorsement is malformed, or by another key.
    """
    terms = dataclasses.asdict(open_endorsement(entry))
    del terms["withdrawal"]
    if terms.pop("endorser") != key.public.hex():
        raise ConfigurationError("Expected the key that signed the endorsement, got another one")
    return endorse(key, **terms)[1]


def open_endorsement(entry: EndorsementEntry) -> Endorsement:
    """The statement of an entry, after a check of its signature by the key in it. The caller decides about that key.

    Raises:
        ConfigurationError: the statement is malformed.
        SignatureError: the signature is not by the key that it names.
    """
    endorsement = Endorsement(**_read(entry.statement, _KINDS))
    verify(bytes.fromhex(endorsement.endorser), entry.signature, domains.ENDORSEMENT, entry.statement)
    return endorsement


def check_withdrawal(entry: WithdrawalEntry, endorsement: Endorsement) -> None:
    """Returns if the entry withdraws ``endorsement``.

    Raises:
        ConfigurationError: it states something else.
        SignatureError: it is not by the endorser, or not the one that the endorsement names.
    """
    core = dataclasses.asdict(endorsement)
    del core["withdrawal"]
    if entry.statement != _canonical(core):
        raise ConfigurationError("the withdrawal is of another endorsement")
    verify(bytes.fromhex(endorsement.endorser), entry.signature, domains.WITHDRAWAL, entry.statement)
    if entry.leaf.hex() != endorsement.withdrawal:
        raise SignatureError("the withdrawal is not the one that its endorsement names")


@dataclasses.dataclass(frozen=True)
class EndorsementFile:
    """The file of an endorser for the log's operator: policies, endorsements, and effective withdrawals."""

    policies: tuple[PolicyEntry, ...] = ()
    endorsements: tuple[EndorsementEntry, ...] = ()
    withdrawals: tuple[WithdrawalEntry, ...] = ()

    def save(self, path: Path) -> None:
        """Writes JSON, atomically. Raises StateError."""
        content = {
            "policies": [entry.policy.decode("ascii") for entry in self.policies],
            "endorsements": [_text(entry) for entry in self.endorsements],
            "withdrawals": [_text(entry) for entry in self.withdrawals],
        }
        from odp._system.files.state_folder import state_errors, write_atomically

        with state_errors(path.parent):
            write_atomically(path, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)

    @classmethod
    def load(cls, path: Path) -> EndorsementFile:
        """Reads what ``save`` wrote. Raises ConfigurationError."""
        from odp._system.files.settings_file import load_settings

        return load_settings(path, cls._of_json, what="endorsements", parse=json.loads, largest=_LARGEST_FILE)

    @classmethod
    def _of_json(cls, values: dict[str, Any]) -> EndorsementFile:
        _validate.known_keys(values, ("policies", "endorsements", "withdrawals"), where="the endorsements")
        read = cls(
            tuple(PolicyEntry(text.encode("ascii")) for text in values["policies"]),
            tuple(EndorsementEntry(*_bytes(value)) for value in values["endorsements"]),
            tuple(WithdrawalEntry(*_bytes(value)) for value in values["withdrawals"]),
        )
        for entry in read.endorsements:
            try:
                open_endorsement(entry)
            except SignatureError as error:
                raise ConfigurationError(str(error)) from error
        return read

    @property
    def entries(self) -> Sequence[PolicyEntry | EndorsementEntry | WithdrawalEntry]:
        """All entries in the order of the log."""
        return (*self.policies, *self.endorsements, *self.withdrawals)


class Changed:
    """Reads a file of endorsements again after each change; the constructor reads it first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_stamp = self._stamp()

    def __call__(self) -> EndorsementFile | None:
        """The new content of the file; None if it did not change. Raises ConfigurationError, once per change."""
        stamp = self._stamp()
        if stamp is None or stamp == self._last_stamp:
            return None
        self._last_stamp = stamp
        return EndorsementFile.load(self._path)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _text(entry: EndorsementEntry | WithdrawalEntry) -> dict[str, str]:
    return {"statement": entry.statement.decode("ascii"), "signature": entry.signature.hex()}


def _bytes(value: Mapping[str, str]) -> tuple[bytes, bytes]:
    return value["statement"].encode("ascii"), bytes.fromhex(value["signature"])


def _read(statement: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    if len(statement) > _LARGEST_STATEMENT:
        raise ConfigurationError(f"Expected a statement of at most {_LARGEST_STATEMENT} bytes")
    try:
        values = json.loads(statement.decode("ascii"))
    except (ValueError, RecursionError):
        raise ConfigurationError("Expected the statement of an endorsement to be JSON") from None
    if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != kinds:
        raise ConfigurationError(f"Expected an endorsement to state {', '.join(kinds)}")
    if _canonical(values) != statement:
        raise ConfigurationError("Expected the statement of an endorsement as canonical JSON")
    return values


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

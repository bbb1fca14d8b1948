"""Checkpoints: the tree of a log, signed by the log and cosigned by witnesses.

A checkpoint is a signed note of three lines, ``origin``, ``size`` and the base64 of the root. The log signs it twice
with its one key: as a note, and as a cosignature, which states when. Witnesses add cosignatures of their own.

Source: C2SP tlog-checkpoint v1.0.0 (no extension lines: nobody could audit them), tlog-cosignature v1.0.0.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re

from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.note import Kind, Note, NoteKey, VerifierKey, check_name
from odp.errors import ConfigurationError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log.merkle import HASH_BYTES, LARGEST_TREE

#: Maximum difference between the clocks of logs, witnesses and devices.
CLOCK_SKEW_SECONDS = 60.0
_SIZE = re.compile(r"0|[1-9][0-9]{0,14}")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tree of a log: its number of entries and its root."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> bytes:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n".encode()

    @classmethod
    def from_body(cls, body: bytes) -> Checkpoint:
        """The checkpoint of a note's text.

        Raises:
            TransparencyError: ``malformed``.
        """
        try:
            origin, size, root, end = body.decode("ascii").split("\n")
            check_name(origin)
            decoded = base64.b64decode(root, validate=True)
        except (ConfigurationError, binascii.Error, ValueError):
            raise refused(LogReason.MALFORMED, "a checkpoint that is not three lines: origin, size, root") from None
        if not _SIZE.fullmatch(size) or int(size) > LARGEST_TREE or len(decoded) != HASH_BYTES or end:
            raise refused(LogReason.MALFORMED, "a checkpoint whose size or root is malformed")
        checkpoint = cls(origin, int(size), decoded)
        if checkpoint.body != body:
            raise refused(LogReason.MALFORMED, "a checkpoint that is not in its one spelling")
        return checkpoint


@dataclasses.dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint whose signatures were verified.

    Attributes:
        checkpoint: the tree.
        note: the bytes of the signed note.
        witnesses: names of the pinned witnesses that have cosigned.
        time: when the quorum had vouched for it, or without a quorum the log; seconds since the epoch. None where
            nobody stated a time.
    """

    checkpoint: Checkpoint
    note: bytes
    witnesses: tuple[str, ...]
    time: int | None


def sign_checkpoint(checkpoint: Checkpoint, key: NoteKey, *, now: float) -> Note:
    """The note of a log's own checkpoint, with its time.

    Raises:
        ConfigurationError: the origin is not the name of the key.
    """
    if checkpoint.origin != key.name:
        raise ConfigurationError(f"Expected origin={checkpoint.origin!r} to be {key.name!r}, the name of the log's key")
    return Note(checkpoint.body, (key.sign(checkpoint.body), key.cosign(checkpoint.body, now=now)))


def verify_checkpoint(data: bytes, policy: LogPolicy, *, strict: bool = False) -> VerifiedCheckpoint:
    """Checks a checkpoint's form, origin, signatures and quorum against the pinned values. ``check_age`` checks its
    age.

    ``strict`` refuses lines of keys that are not pinned, which other readers ignore.

    Raises:
        TransparencyError: ``malformed``, ``wrong_origin``, ``wrong_log_key``, ``bad_signature``, ``witness_quorum``.
    """
    note = Note.parse(data)
    checkpoint = Checkpoint.from_body(note.body)
    if checkpoint.origin != policy.origin:
        raise refused(LogReason.WRONG_ORIGIN, f"a checkpoint of {checkpoint.origin!r}, not of {policy.origin!r}")
    logs = policy.logs
    timed = tuple(key.of_kind(Kind.COSIGNATURE) for key in logs)
    signed: dict[VerifierKey, int | None] = {}
    strangers: list[str] = []
    for line in note.lines:
        key = next((candidate for candidate in (*logs, *timed, *policy.witnesses) if line.is_by(candidate)), None)
        if key is None:
            strangers.append(line.name)
            continue
        if key in signed or not key.verifies(line, note.body):
            raise refused(LogReason.BAD_SIGNATURE, f"the line by {key.name!r} is not its signature of this checkpoint")
        signed[key] = line.time
    if not any(key in signed for key in logs):
        raise refused(LogReason.WRONG_LOG_KEY, f"the checkpoint is not signed by a pinned key of {policy.origin!r}")
    if strict and strangers:
        raise refused(LogReason.BAD_SIGNATURE, f"a line by a key of {strangers[0]!r} that is not pinned")
    witnesses = [key for key in policy.witnesses if key in signed]
    if len(witnesses) < policy.quorum:
        raise refused(
            LogReason.WITNESS_QUORUM,
            f"{len(witnesses)} of the pinned witnesses have cosigned the checkpoint of size {checkpoint.size}; "
            f"{policy.quorum} have to",
        )
    required_keys = witnesses if policy.quorum else [key for key in timed if key in signed]
    times = sorted((time for time in (signed[key] for key in required_keys) if time is not None), reverse=True)
    needed = max(policy.quorum, 1)
    return VerifiedCheckpoint(
        checkpoint, data, tuple(key.name for key in witnesses), times[needed - 1] if len(times) >= needed else None
    )


def check_age(verified: VerifiedCheckpoint, policy: LogPolicy, *, now: float) -> None:
    """Returns if the checkpoint was cosigned recently.

    Raises:
        TransparencyError: ``stale`` or ``not_yet_valid``.
    """
    if verified.time is None:
        raise refused(LogReason.STALE, "no signature states when the checkpoint was the newest")
    if verified.time > now + CLOCK_SKEW_SECONDS:
        raise refused(LogReason.NOT_YET_VALID, f"signed {verified.time - now:.0f} s in the future; check the clock")
    if now - verified.time > policy.max_age_seconds:
        raise refused(
            LogReason.STALE,
            f"the checkpoint was the newest {now - verified.time:.0f} s ago; the limit is {policy.max_age_seconds:g} s",
        )

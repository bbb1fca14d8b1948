"""A witness: it cosigns a log's checkpoint only if that continues the last one that it cosigned.

For each log it keeps the newest checkpoint that it cosigned, on the disk before the cosignature leaves. So it never
cosigns two trees of one size, nor a tree that drops what it vouched for, whatever the log says and whenever it dies.

Source: C2SP tlog-cosignature v1.0.0; the exchange is that of C2SP tlog-witness, over gRPC.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from odp._system.files.state_folder import StateFolder
from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.note import Note, NoteKey, SignatureLine
from odp.errors import ConfigurationError, StateError, TransparencyError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log.checkpoint import Checkpoint, verify_checkpoint
from odp.trust.log.merkle import EMPTY_ROOT, ProofError, verify_consistency


@dataclass(frozen=True)
class Answer:
    """``size`` of the last cosigned checkpoint; ``line`` is None if the log has to prove from there."""

    size: int
    line: SignatureLine | None


class Witness:
    """Cosigns checkpoints of the logs in its configuration. Thread-safe.

    Args:
        state: the witness's folder.
        key: its key.
        log_keys: verifier keys of each log, in text form, by origin.
        clock: seconds since the epoch.
    """

    def __init__(
        self, state: StateFolder, key: NoteKey, log_keys: Sequence[str], *, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._key = key
        self._clock = clock
        self._logs: Mapping[str, LogPolicy] = _by_origin(log_keys)
        self._lock = threading.Lock()

    def add_checkpoint(self, note: bytes, *, old_size: int, proof: Sequence[bytes]) -> Answer:
        """Cosigns the checkpoint of ``note``, if ``proof`` shows that it continues that of ``old_size`` leaves.

        Raises:
            TransparencyError: ``malformed``, ``wrong_origin``, ``wrong_log_key``, ``bad_signature``; ``shrunk``,
                ``split_view`` or ``inconsistent`` where the log shows another history than it did.
            StateError: the witness's own files cannot be read or written: nothing was cosigned.
        """
        origin = Checkpoint.from_body(Note.parse(note).body).origin
        policy = self._logs.get(origin)
        if policy is None:
            raise refused(LogReason.WRONG_ORIGIN, f"this witness does not know a log {origin!r}")
        checkpoint = verify_checkpoint(note, policy).checkpoint
        with self._lock:
            last = self.last(origin)
            if old_size != last.size:
                return Answer(last.size, None)
            if checkpoint.size < last.size:
                raise refused(LogReason.SHRUNK, f"the log has {checkpoint.size} entries, and had {last.size}")
            if checkpoint.size == last.size and checkpoint.root != last.root:
                raise refused(LogReason.SPLIT_VIEW, f"the log shows two different trees of {checkpoint.size} entries")
            try:
                verify_consistency(
                    first=last.size,
                    second=checkpoint.size,
                    first_root=last.root,
                    second_root=checkpoint.root,
                    proof=proof,
                )
            except ProofError as error:
                raise refused(
                    LogReason.INCONSISTENT,
                    f"the tree of {checkpoint.size} entries does not continue that of {last.size}",
                ) from error
            # Also one that is there: an earlier process may have ended before it was on the disk.
            self._state.write_atomically(_file(origin), checkpoint.body)
            if not self._state.path(_marker(origin)).exists():
                self._state.write_atomically(_marker(origin), b"")
            return Answer(checkpoint.size, self._key.cosign(checkpoint.body, now=self._clock()))

    def last(self, origin: str) -> Checkpoint:
        """The last cosigned checkpoint of a log; an empty tree before the first. Raises StateError."""
        self._state.require_not_lost(_file(origin), beside=_marker(origin))
        stored = self._state.read(_file(origin))
        if stored is None:
            return Checkpoint(origin, 0, EMPTY_ROOT)
        try:
            checkpoint = Checkpoint.from_body(stored)
            if checkpoint.origin != origin:
                raise StateError(f"{self._state.path(_file(origin))} is of another log")
        except (TransparencyError, StateError) as error:
            raise StateError(
                f"{self._state.path(_file(origin))} is damaged: this witness cannot know what it cosigned; "
                "restore the file"
            ) from error
        return checkpoint


def _file(origin: str) -> str:
    return f"{_number(origin)}.checkpoint"


def _marker(origin: str) -> str:
    """A marker, created after the first checkpoint: without it, a lost checkpoint would look like a new log."""
    return f"{_number(origin)}.known"


def _number(origin: str) -> str:
    return hashlib.sha256(origin.encode()).hexdigest()[:32]


def _by_origin(log_keys: Sequence[str]) -> dict[str, LogPolicy]:
    if not log_keys:
        raise ConfigurationError("Expected the verifier key of at least one log; the log's operator has it")
    by_origin: dict[str, list[str]] = {}
    for text in log_keys:
        by_origin.setdefault(text.partition("+")[0], []).append(text)
    return {origin: LogPolicy(log_keys=tuple(keys), endorser_keys=()) for origin, keys in by_origin.items()}

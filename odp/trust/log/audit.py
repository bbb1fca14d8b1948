"""Verifies a whole log again: every hash, signature, charge and epsilon. Trusts only what the auditor pins.

1. The checkpoint: signed by the pinned log, cosigned by a quorum of the pinned witnesses, no line by anybody else. All
   that follows is about the entries of this one, whatever a server appends meanwhile.
2. The tree: every entry's hash, every stored hash, the root.
3. Every entry in its place, by ``odp.trust.log.records``; of a release that has the hash of its values alone, the
   values, unless the source is a copy of the log without any.
4. The end: every release has its ledger, and epsilon follows from the charges alone.

The first thing that is wrong ends the audit with the name of the record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from odp.crypto.log_reasons import LogReason
from odp.errors import ConfigurationError, TransparencyError
from odp.signed.release import ReleaseRefused, checked_values
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint, VerifiedCheckpoint, verify_checkpoint
from odp.trust.log.entries import HEAD_BYTES, TYPES, ReleaseEntry, decode, type_of
from odp.trust.log.records import Records, TaskFindings
from odp.trust.log.sources import AuditFailure, LogSource
from odp.v1 import common_pb2

# A server that appended has its witnesses cosign: for so long the audit waits for them, and looks so often.
_COSIGNING_SECONDS, _LOOK_SECONDS = 5.0, 0.05


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit that passed.

    Attributes:
        checkpoint: the tree that was verified, with its witnesses and its time.
        counts: number of entries by type, in the order of their codes.
        tasks: what was found of each task, in the order of their submission.
    """

    checkpoint: VerifiedCheckpoint
    counts: dict[str, int]
    tasks: tuple[TaskFindings, ...]


def audit(source: LogSource, reference_values: ReferenceValues) -> AuditReport:
    """Verifies the log of ``source`` against the pinned values of ``reference_values``.

    Raises:
        AuditFailure: names the first record that is wrong.
        ConfigurationError: the reference values pin no log.
        ServiceError: the source did not answer.
    """
    if (policy := reference_values.log) is None:
        raise ConfigurationError("Expected reference values with a log: they pin nothing to audit against")
    verified = _newest(source, policy)
    tree = verified.checkpoint
    _check_tree(source, tree)
    records = Records(reference_values, policy)
    counts: Counter[str] = Counter()
    for number, data in enumerate(source.entries(tree.size)):
        try:
            entry = decode(data)
        except ConfigurationError as error:
            raise AuditFailure(f"entry {number}", str(error)) from error
        counts[entry.label] += 1
        records.add(number, entry)
        if isinstance(entry, ReleaseEntry):
            _check_values(source, number, entry)
    return AuditReport(verified, {kind.label: counts[kind.label] for kind in TYPES.values()}, records.finish())


def _newest(source: LogSource, policy: LogPolicy) -> VerifiedCheckpoint:
    """The newest checkpoint; of a log that is written, the next one that its witnesses have cosigned."""
    until = time.monotonic() + _COSIGNING_SECONDS
    while True:
        try:
            return verify_checkpoint(source.note(), policy, strict=True)
        except TransparencyError as error:
            if error.reason != LogReason.WITNESS_QUORUM or time.monotonic() >= until or not source.is_written():
                raise AuditFailure("checkpoint", str(error)) from error
        time.sleep(_LOOK_SECONDS)


def _check_values(source: LogSource, number: int, entry: ReleaseEntry) -> None:
    release = common_pb2.Release.FromString(entry.release)
    if not release.values_sha256:
        return
    if (pieces := source.values(release.values_sha256)) is None:
        return
    try:
        for _ in checked_values(release, pieces):
            pass
    except ReleaseRefused as error:
        raise AuditFailure(f"entry {number} ({entry.label} of round {release.round})", str(error)) from error


def _check_tree(source: LogSource, tree: Checkpoint) -> None:
    leaves, heads = [], []
    damaged: AuditFailure | None = None
    try:
        for data in source.entries(tree.size):
            leaves.append(merkle.leaf_hash(data))
            heads.append(data[:HEAD_BYTES])
    except AuditFailure as error:
        # A wrong length shows only further on: the hashes below say where it is.
        damaged = error
    if damaged is None and len(set(leaves)) != len(leaves):
        raise AuditFailure(_name(_repeated(leaves), heads), "it appears twice in the log")
    whole = damaged is None and merkle.root_of(leaves) == tree.root
    try:
        stored = source.stored_hashes(tree.size)
    except AuditFailure:
        if whole:
            raise
        stored = None
    if whole:
        _check_stored(leaves, stored)
        return
    if stored is not None:
        for number, leaf in enumerate(leaves):
            if leaf != stored[merkle.position(0, number)]:
                raise AuditFailure(_name(number, heads), "its bytes do not have the hash that the tree has for it")
    if damaged is not None:
        raise damaged
    raise AuditFailure("checkpoint", f"the {tree.size} entries do not give its root")


def _check_stored(leaves: list[bytes], stored: Sequence[bytes] | None) -> None:
    if stored is None:
        return
    rebuilt: list[bytes] = []

    def node(level: int, place: int) -> bytes:
        return rebuilt[merkle.position(level, place)]

    for number, leaf in enumerate(leaves):
        rebuilt += merkle.completed(leaf, number, node)
    for place, (left, right) in enumerate(zip(stored, rebuilt, strict=True)):
        if left != right:
            raise AuditFailure("file 'hashes'", f"hash {place} is not that of its subtree")


def _repeated(leaves: list[bytes]) -> int:
    first = {leaf: number for number, leaf in reversed(list(enumerate(leaves)))}
    return next(number for number, leaf in enumerate(leaves) if first[leaf] != number)


def _name(number: int, heads: list[bytes]) -> str:
    kind = type_of(heads[number])
    return f"entry {number}" if kind is None else f"entry {number} ({kind.label})"

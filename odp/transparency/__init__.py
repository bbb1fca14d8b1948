"""The transparency log: Merkle tree, signed checkpoints, entries, and how devices, witnesses and auditors check them.

Whoever runs the log is not trusted. What the log holds is listed in ``entries``; ``audit`` checks all of it.
"""

from odp.transparency.checkpoint import Checkpoint, VerifiedCheckpoint, sign_checkpoint, verify_checkpoint
from odp.transparency.note import Kind, Note, NoteKey, VerifierKey
from odp.transparency.policy import LogPolicy
from odp.transparency.reasons import LogReason

__all__ = [
    "Checkpoint",
    "Kind",
    "LogPolicy",
    "LogReason",
    "Note",
    "NoteKey",
    "VerifiedCheckpoint",
    "VerifierKey",
    "sign_checkpoint",
    "verify_checkpoint",
]

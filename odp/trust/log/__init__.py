"""The transparency log: Merkle tree, signed checkpoints, entries, and the checks of devices, witnesses and auditors.

Whoever runs the log is not trusted. What the log holds is listed in ``entries``; ``audit`` checks all of it.
"""

from odp.trust.log.checkpoint import Checkpoint, VerifiedCheckpoint, sign_checkpoint, verify_checkpoint

__all__ = [
    "Checkpoint",
    "VerifiedCheckpoint",
    "sign_checkpoint",
    "verify_checkpoint",
]

"""Which leaf of a tree of aggregators takes a device's contribution: a public function, so that duplicates meet."""

from __future__ import annotations

import hashlib

from odp import _validate
from odp.crypto import domains

#: Leaves of one tree.
MOST_LEAVES = 64


def leaf_of(task_sha256: bytes, round: int, pseudonym: bytes, leaves: int) -> int:
    """The number of the leaf, from 0 to ``leaves`` - 1, for a device's contribution to a round.

    The devices of a round spread evenly, up to 2^-58. Who does not know the pseudonym learns nothing from the leaves of
    two rounds about whether they are of one device.

    Args:
        task_sha256: 32 bytes.
        round: 0 .. 2^32 - 1.
        pseudonym: 32 bytes, the device's in this task.
        leaves: 1 .. ``MOST_LEAVES``.

    Raises:
        ConfigurationError: a value has another length, or is out of range.
    """
    _validate.integer(low=1, high=MOST_LEAVES, leaves=leaves)
    digest = hashlib.sha256(domains.leaf(task_sha256, round, pseudonym)).digest()
    return int.from_bytes(digest[:8], "big") % leaves

"""The interface of a kind of device attestation: one half for the device, one for the issuer of tokens.

A new kind (Play Integrity, App Attest) is a class for each half, and an entry in the issuer's set of verifiers.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from odp.crypto import domains

#: Statements are read up to this length.
LARGEST_STATEMENT = 16 * 1024


class Attester(Protocol):
    """The device's half."""

    @property
    def kind(self) -> str:
        """The kind of its statements."""

    def attest(self, nonce: bytes) -> bytes:
        """A statement (at most ``LARGEST_STATEMENT`` bytes) about this device and ``nonce`` (32 bytes).

        Whether, when and of what length depends on no data of the person.
        """


class Verifier(Protocol):
    """The issuer's half."""

    @property
    def kind(self) -> str:
        """The kind of statements that it accepts."""

    def verify(self, statement: bytes, nonce: bytes, *, now: float) -> bytes:
        """The device's name: 32 bytes, the same for every statement of one device.

        ``now`` is in seconds since the epoch. Raises EnrolmentError where the statement does not count, with one line
        that repeats none of its bytes.
        """


def device_name(kind: str, key: bytes) -> bytes:
    """The name (32 bytes) of the device with ``key``; an issuer stores it instead of the key."""
    return hashlib.sha256(domains.DEVICE_NAME + kind.encode() + b"\x00" + key).digest()

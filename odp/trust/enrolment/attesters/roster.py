"""Devices of a roster: each signs with its Ed25519 key in the file. The author of the file vouches for the devices."""

from __future__ import annotations

from dataclasses import dataclass

from odp.crypto import domains
from odp.crypto.public_keys import KEY_BYTES
from odp.crypto.signing import SIGNATURE_BYTES, SignatureError, SigningKey, verify
from odp.errors import EnrolmentError
from odp.trust.enrolment.attesters.seam import device_name

KIND = "roster"


@dataclass(frozen=True)
class RosterAttester:
    """A device whose ``key`` is in the issuer's roster; in SecAgg+ sessions with a roster, it is also its identity."""

    key: SigningKey
    kind: str = KIND

    def attest(self, nonce: bytes) -> bytes:
        """The public key, and the signature over ``nonce``."""
        return self.key.public + self.key.sign(domains.DEVICE_STATEMENT, nonce)


@dataclass(frozen=True)
class RosterVerifier:
    """Accepts the devices of ``roster``, as ``odp.crypto.roster.read_roster`` gives it."""

    roster: frozenset[bytes]
    kind: str = KIND

    def verify(self, statement: bytes, nonce: bytes, *, now: float) -> bytes:
        public, signature = statement[:KEY_BYTES], statement[KEY_BYTES:]
        if len(statement) != KEY_BYTES + SIGNATURE_BYTES:
            raise EnrolmentError(f"Expected a statement of {KEY_BYTES + SIGNATURE_BYTES} bytes")
        if public not in self.roster:
            raise EnrolmentError("this device is not on the issuer's roster")
        try:
            verify(public, signature, domains.DEVICE_STATEMENT, nonce)
        except SignatureError:
            raise EnrolmentError("the statement is not about this challenge, round and request") from None
        return device_name(KIND, public)

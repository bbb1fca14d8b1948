"""A device's side of a token: the request and the result.

Salt and blinding factor follow from the device's secret, the key and the message. So a device that was killed asks for
the same again without having stored anything, and an issuer that answers once per round answers it again. To everybody
without the secret they are random. Whoever learns the secret could compute the device's contribution ids as well.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
from dataclasses import dataclass

from odp.crypto import domains
from odp.crypto.blind_rsa import Blinding, RandomBytes, blind, finalize
from odp.errors import ConfigurationError, EnrolmentError
from odp.trust.enrolment.attesters.seam import Attester
from odp.trust.enrolment.token_key import TokenKey
from odp.v1 import enrolment_pb2

_SECRET_BYTES = 32
_MESSAGE_BYTES = 32


@dataclass(frozen=True)
class TokenRequest:
    """A request for a token: ``key`` of the round, ``issuer_key`` (32 bytes) of the issuer."""

    key: TokenKey
    issuer_key: bytes
    blinding: Blinding

    @classmethod
    def of(cls, key: TokenKey, message: bytes, *, issuer_key: bytes, secret: bytes, now: float) -> TokenRequest:
        """The request for a token over ``message``; the same for the same arguments at any time.

        Args:
            key: of the round; its signature was checked.
            message: 32 bytes, of ``domains.contribution_token`` or ``domains.session_token``.
            issuer_key: 32 bytes, by which ``key`` is signed.
            secret: the device's, 32 bytes; never leaves it.
            now: seconds since the epoch.

        Raises:
            EnrolmentError: the issuer signs nothing more under this key.
            ConfigurationError: a length is wrong, or the modulus is no honest signer's.
        """
        if now > key.not_after:
            raise EnrolmentError(
                f"the token key of round {key.round} has expired; the task's server has to end the round"
            )
        return cls(key, issuer_key, blind(key.public, message, _derived(secret, key, message)))

    def answer(self, reply: enrolment_pb2.GetChallengeResponse, attester: Attester) -> enrolment_pb2.IssueTokenRequest:
        """The answer to a challenge: the blinded message under a statement of ``attester``.

        Raises:
            EnrolmentError: the issuer does not accept statements of this kind.
            ConfigurationError: the challenge has another length.
        """
        if attester.kind not in reply.attesters:
            accepted = ", ".join(sorted(reply.attesters)) or "none"
            raise EnrolmentError(
                f"the issuer of tokens does not accept statements of kind {attester.kind!r}; it accepts: {accepted}"
            )
        nonce = domains.enrolment_nonce(
            issuer_key=self.issuer_key,
            challenge=reply.challenge,
            task_sha256=self.key.task_sha256,
            round=self.key.round,
            blinded_message=self.blinding.blinded_message,
        )
        return enrolment_pb2.IssueTokenRequest(
            task_sha256=self.key.task_sha256,
            round=self.key.round,
            blinded_message=self.blinding.blinded_message,
            challenge=reply.challenge,
            attester=attester.kind,
            statement=attester.attest(nonce),
        )

    def token(self, reply: enrolment_pb2.IssueTokenResponse) -> bytes:
        """The token (256 bytes), verified. Raises SignatureError if the issuer signed something else."""
        return finalize(self.key.public, self.blinding, reply.blind_signature)


def _derived(secret: bytes, key: TokenKey, message: bytes) -> RandomBytes:
    """Bytes of a pseudorandom function under ``secret``, of one key and message; each call gives further ones."""
    if len(secret) != _SECRET_BYTES or len(message) != _MESSAGE_BYTES:
        raise ConfigurationError(f"Expected a secret and a message of {_SECRET_BYTES} bytes each")
    context = domains.TOKEN_BLINDING + hashlib.sha256(key.modulus).digest() + message
    seed = hmac.digest(secret, context, "sha256")
    numbers = itertools.count()

    def give(count: int) -> bytes:
        # The length of one part is fixed by its number: salt, then candidates for the factor.
        return hashlib.shake_256(seed + next(numbers).to_bytes(4, "big")).digest(count)

    return give

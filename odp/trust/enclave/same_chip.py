"""Verifies another enclave of the same platform: the mutual check of two enclaves before secrets go between them.

An enclave pins no root of its own. It asks its platform for evidence of itself: the chip that signs that is the one
chip whose word it takes, by that chip's clock.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from odp.errors import AttestationError, StateError
from odp.trust.enclave.evidence import DEBUG_DISABLED, Claims, read_token
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import EnclavePolicy, Role
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence
from odp.v1 import attestation_pb2

#: Of every nonce of a hand-over.
NONCE_BYTES = 32


@dataclasses.dataclass(frozen=True)
class OwnChip:
    """The chip below an enclave; ``now`` is its clock, in seconds since the epoch."""

    identity: EnclaveIdentity
    chain: Sequence[bytes]
    claims: Claims

    @classmethod
    def of(cls, identity: EnclaveIdentity) -> OwnChip:
        """Asks the platform. Raises StateError if its evidence does not carry the whole chain."""
        token = read_token(identity.evidence(os.urandom(NONCE_BYTES)).token)
        if len(token.chain) != 3:
            raise StateError(
                "the platform's evidence does not carry its root: no other enclave can be checked against it"
            )
        return cls(identity, token.chain, Claims.from_json(token.claims))

    @property
    def now(self) -> float:
        """The platform's clock, seconds since the epoch."""
        return float(self.claims.issued)

    def verify(self, given: attestation_pb2.GetEvidenceResponse, *, nonce: bytes) -> VerifiedEnclave:
        """The verified enclave of ``given``, over ``nonce``: of this chip, this role and this policy.

        Which code it is, the caller judges.

        Raises:
            AttestationError: the evidence is of another chip, role or policy, replayed, forged, or of a debuggable
                enclave where this one is not.
        """
        token = read_token(given.token)
        # Whoever certifies chips under the root must not count: the chip itself has to be this one.
        if not token.chain or token.chain[0] != self.chain[0]:
            raise AttestationError("wrong_root", "the evidence is not by the chip that this enclave runs on")
        return self._verified(given, Claims.from_json(token.claims).image_digest, self.identity.policy, nonce=nonce)

    def verify_same_code(
        self, given: attestation_pb2.GetEvidenceResponse, *, role: Role, nonce: bytes
    ) -> VerifiedEnclave:
        """The verified enclave of ``given``, over ``nonce``: of this very code, and of this policy in another role.

        Its chip may be any that the root of this one's certifies: what it gets are secrets of a round, and no sealing
        key.

        Raises:
            AttestationError: the evidence is of other code, another root, role or policy, replayed, forged, or of a
                debuggable enclave where this one is not.
        """
        return self._verified(given, self.claims.image_digest, self.identity.policy.as_role(role), nonce=nonce)

    def _verified(
        self, given: attestation_pb2.GetEvidenceResponse, image_digest: str, policy: EnclavePolicy, *, nonce: bytes
    ) -> VerifiedEnclave:
        role = policy.role
        root = x509.load_der_x509_certificate(self.chain[-1])
        return verify_evidence(
            token=given.token,
            policy=given.policy,
            event_log=given.event_log,
            nonce=nonce,
            role=role,
            reference_values=ReferenceValues(
                roots=(root.public_bytes(Encoding.PEM).decode("ascii"),),
                image_digests={role: (image_digest,)},
                policy_sha256={role: (policy.sha256.hex(),)},
                allow_emulated=self.claims.emulated,
                allow_debug=self.claims.debug_status != DEBUG_DISABLED,
                allow_test_noise=policy.test_noise_seed is not None,
            ),
            now=self.now,
        )

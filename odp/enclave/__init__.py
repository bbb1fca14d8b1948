"""Attested enclaves: the platform below them, the evidence they give, and the verifier that devices run."""

from odp.enclave.evidence import Reason
from odp.enclave.guest import Evidence, Guest, MonotonicCounter
from odp.enclave.measurement import AGGREGATOR_PACKAGES, DISTRIBUTOR_PACKAGES, image_digest
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.enclave.sealing import seal, unseal
from odp.enclave.verifier import VerifiedEnclave, verify_evidence

__all__ = [
    "AGGREGATOR_PACKAGES",
    "DISTRIBUTOR_PACKAGES",
    "EmulatedPlatform",
    "EnclavePolicy",
    "Evidence",
    "Guest",
    "MonotonicCounter",
    "Reason",
    "ReferenceValues",
    "VerifiedEnclave",
    "image_digest",
    "seal",
    "unseal",
    "verify_evidence",
]

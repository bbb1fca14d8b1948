"""Attested enclaves: the platform below them, their evidence, and the verifier that devices run.

The names below are loaded when first used: an enclave's image has few of their modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from odp.trust.enclave.evidence import Reason
    from odp.trust.enclave.guest import Evidence, Guest, MonotonicCounter
    from odp.trust.enclave.launcher import LaunchedEnclave, launch
    from odp.trust.enclave.measurement import measure
    from odp.trust.enclave.platform import EmulatedPlatform
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.enclave.reference_values import ReferenceValues
    from odp.trust.enclave.sealing import seal, unseal
    from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence

__all__ = [
    "EmulatedPlatform",
    "EnclavePolicy",
    "Evidence",
    "Guest",
    "LaunchedEnclave",
    "MonotonicCounter",
    "Reason",
    "ReferenceValues",
    "VerifiedEnclave",
    "launch",
    "measure",
    "seal",
    "unseal",
    "verify_evidence",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EmulatedPlatform": "odp.trust.enclave.platform",
        "EnclavePolicy": "odp.trust.enclave.policy",
        "Evidence": "odp.trust.enclave.guest",
        "Guest": "odp.trust.enclave.guest",
        "LaunchedEnclave": "odp.trust.enclave.launcher",
        "MonotonicCounter": "odp.trust.enclave.guest",
        "Reason": "odp.trust.enclave.evidence",
        "ReferenceValues": "odp.trust.enclave.reference_values",
        "VerifiedEnclave": "odp.trust.enclave.verifier",
        "launch": "odp.trust.enclave.launcher",
        "measure": "odp.trust.enclave.measurement",
        "seal": "odp.trust.enclave.sealing",
        "unseal": "odp.trust.enclave.sealing",
        "verify_evidence": "odp.trust.enclave.verifier",
    },
)

"""Attested enclaves: the platform below them, their evidence, and the verifier that devices run.

The names below are loaded when first used: an enclave's image has few of their modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from odp.enclave.evidence import Reason
    from odp.enclave.guest import Evidence, Guest, MonotonicCounter
    from odp.enclave.launcher import LaunchedEnclave, launch
    from odp.enclave.measurement import measure
    from odp.enclave.platform import EmulatedPlatform
    from odp.enclave.policy import EnclavePolicy
    from odp.enclave.reference_values import ReferenceValues
    from odp.enclave.sealing import seal, unseal
    from odp.enclave.verifier import VerifiedEnclave, verify_evidence

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
        "EmulatedPlatform": "odp.enclave.platform",
        "EnclavePolicy": "odp.enclave.policy",
        "Evidence": "odp.enclave.guest",
        "Guest": "odp.enclave.guest",
        "LaunchedEnclave": "odp.enclave.launcher",
        "MonotonicCounter": "odp.enclave.guest",
        "Reason": "odp.enclave.evidence",
        "ReferenceValues": "odp.enclave.reference_values",
        "VerifiedEnclave": "odp.enclave.verifier",
        "launch": "odp.enclave.launcher",
        "measure": "odp.enclave.measurement",
        "seal": "odp.enclave.sealing",
        "unseal": "odp.enclave.sealing",
        "verify_evidence": "odp.enclave.verifier",
    },
)

"""Attested enclaves: the platform below them, their evidence, and the verifier that devices run.

The names below are loaded when first used: an enclave process takes its restrictions before it loads a library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odp.enclave.evidence import Reason
    from odp.enclave.guest import Evidence, Guest, MonotonicCounter
    from odp.enclave.launcher import LaunchedEnclave, launch
    from odp.enclave.measurement import Measurement, measure
    from odp.enclave.platform import EmulatedPlatform
    from odp.enclave.policy import EnclavePolicy
    from odp.enclave.reference_values import ReferenceValues
    from odp.enclave.sealing import seal, unseal
    from odp.enclave.verifier import VerifiedEnclave, verify_evidence

_HOME = {
    "EmulatedPlatform": "platform",
    "EnclavePolicy": "policy",
    "Evidence": "guest",
    "Guest": "guest",
    "LaunchedEnclave": "launcher",
    "Measurement": "measurement",
    "MonotonicCounter": "guest",
    "Reason": "evidence",
    "ReferenceValues": "reference_values",
    "VerifiedEnclave": "verifier",
    "launch": "launcher",
    "measure": "measurement",
    "seal": "sealing",
    "unseal": "sealing",
    "verify_evidence": "verifier",
}

__all__ = [
    "EmulatedPlatform",
    "EnclavePolicy",
    "Evidence",
    "Guest",
    "LaunchedEnclave",
    "Measurement",
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


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(importlib.import_module(f"odp.enclave.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'odp.enclave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)

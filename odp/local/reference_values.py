"""Reference values for the enclaves of this installation, written by the code that is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.enclave.log_policy import LogPolicy
from odp.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, Measurement, measure_all, packages_of
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy, Selection
from odp.enclave.reference_values import ReferenceValues


def write_reference_values(
    platform: Path,
    aggregator_policy: EnclavePolicy,
    output: Path,
    *,
    select: Selection = "oblivious",
    log: LogPolicy | None = None,
    helper_keys: Sequence[str] = (),
    addresses: Mapping[str, tuple[str, ...]] | None = None,
    emulated_vendor: Path | None = None,
) -> None:
    """Reference values for enclaves of this code on ``platform``, written atomically to ``output``."""
    policies = {"aggregator": aggregator_policy, "distributor": EnclavePolicy(role="distributor", select=select)}
    ReferenceValues(
        roots=(EmulatedPlatform.open(platform).root_certificate_pem,),
        image_digests={role: (measured.digest,) for role, measured in measurements().items()},
        policy_sha256={role: (hashlib.sha256(policy.to_bytes()).hexdigest(),) for role, policy in policies.items()},
        allow_emulated=True,
        helper_keys=tuple(helper_keys),
        allow_test_noise=aggregator_policy.test_noise_seed is not None,
        addresses={role: pinned for role, pinned in (addresses or {}).items() if pinned},
        emulated_vendor="" if emulated_vendor is None else str(emulated_vendor.absolute()),
        log=log,
    ).save(output)


def measurements() -> dict[str, Measurement]:
    """Role -> measurement of this installation's enclave."""
    entries = {"aggregator": AGGREGATOR_ENTRY, "distributor": DISTRIBUTOR_ENTRY}
    measured = measure_all({entry: packages_of(entry) for entry in entries.values()})
    return {role: measured[entry] for role, entry in entries.items()}

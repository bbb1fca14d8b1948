"""Reference values for the enclaves of this installation, written by the code that is measured."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.trust.enclave.image.parts import Image
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy, Selection
from odp.trust.enclave.reference_values import ReferenceValues


def root_of(platform: Path) -> str:
    """The root certificate, PEM, of the emulated hardware in a folder; the hardware is made on first use.

    Raises StateError where the folder cannot be used.
    """
    return EmulatedPlatform.open(platform).root_certificate_pem


def reference_values(
    platform: Path | None,
    aggregator_policy: EnclavePolicy,
    *,
    select: Selection = "oblivious",
    log: LogPolicy | None = None,
    helper_keys: Sequence[str] = (),
    addresses: Mapping[str, tuple[str, ...]] | None = None,
    emulated_vendor: Path | None = None,
    roots: Sequence[str] = (),
    images: Path | None = None,
) -> ReferenceValues:
    """Reference values for enclaves of this code, or of a folder of images that were built elsewhere.

    They run on the hardware in the folder ``platform``, or on one whose root certificate is among ``roots`` (PEM).
    """
    policies = {"aggregator": aggregator_policy, "distributor": EnclavePolicy(role="distributor", select=select)}
    return ReferenceValues(
        roots=(*([] if platform is None else [root_of(platform)]), *roots),
        image_digests={role: (measured.digest,) for role, measured in measurements(images).items()},
        policy_sha256={role: (hashlib.sha256(policy.to_bytes()).hexdigest(),) for role, policy in policies.items()},
        allow_emulated=True,
        helper_keys=tuple(helper_keys),
        allow_test_noise=aggregator_policy.test_noise_seed is not None,
        addresses={role: pinned for role, pinned in (addresses or {}).items() if pinned},
        emulated_vendor="" if emulated_vendor is None else str(emulated_vendor.absolute()),
        log=log,
    )


def accepting_both(values: ReferenceValues, others: ReferenceValues) -> ReferenceValues:
    """``values``, with the roots, enclaves and addresses of ``others``, too."""
    return dataclasses.replace(
        values,
        roots=tuple(dict.fromkeys((*values.roots, *others.roots))),
        image_digests=_joined(values.image_digests, others.image_digests),
        policy_sha256=_joined(values.policy_sha256, others.policy_sha256),
        addresses=_joined(values.addresses, others.addresses),
    )


def _joined(first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Role -> what either has for it."""
    roles = dict.fromkeys((*first, *second))
    return {role: tuple(dict.fromkeys((*first.get(role, ()), *second.get(role, ())))) for role in roles}


def measurements(images: Path | None = None) -> dict[str, Image]:
    """Role -> image of the enclave, from a folder of images or of this installation."""
    entries = {"aggregator": AGGREGATOR_ENTRY, "distributor": DISTRIBUTOR_ENTRY}
    return {role: measure(entry, images=images) for role, entry in entries.items()}

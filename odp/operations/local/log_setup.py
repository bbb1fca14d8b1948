"""The default pins of `odp up` and `odp demo`: a log key, an endorser, and endorsements of their own enclaves.

Reference values for the enclaves of this installation, written by the code that is measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from odp import _validate
from odp.crypto.note import Kind, VerifierKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.trust.enclave.image.parts import Image
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy, Selection, UpgradePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.endorsements import EndorsementFile, endorse, open_endorsement, withdrawal_of
from odp.trust.log.entries import PolicyEntry
from odp.trust.log.key_file import endorser_key, note_key


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


LOG_KEY, ENDORSER_KEY, ENDORSEMENTS = "log.key", "endorser.key", "endorsements.json"
UPGRADE = "upgrade.json"
VALID_SECONDS = 365 * 24 * 3600
_BACKDATED_SECONDS = 24 * 3600


def pin_log(
    root: Path,
    reference_values: Path,
    policies: Sequence[EnclavePolicy],
    *,
    witness_keys: Sequence[VerifierKey] = (),
    clock: Callable[[], float] = time.time,
) -> None:
    """Pins the log of the state folder ``root`` in the file ``reference_values``, and endorses the enclaves in it.

    The keys of log and endorser are made on first use. All of ``witness_keys`` have to cosign.

    Raises ConfigurationError and StateError.
    """
    values = ReferenceValues.load(reference_values)
    log = note_key(root / LOG_KEY, name=f"odp.local/log/{secrets.token_hex(8)}")
    endorser = endorser_key(root / ENDORSER_KEY)
    endorse_all(root / ENDORSEMENTS, values, policies, endorser, now=clock())
    pinned = LogPolicy(
        log_keys=(log.public(Kind.NOTE).text,),
        endorser_keys=(endorser.public.hex(),),
        witness_keys=tuple(key.text for key in witness_keys),
        quorum=len(witness_keys),
    )
    replace(values, log=pinned).save(reference_values)


def endorse_all(
    path: Path, values: ReferenceValues, policies: Sequence[EnclavePolicy], key: SigningKey, *, now: float
) -> int:
    """Adds endorsements of the enclaves in ``values`` to the file ``path``; keeps those with more than half their time
    left.

    Returns the number of endorsements that were added.

    Raises:
        ConfigurationError: a listed policy is not among ``policies``, or the file is malformed.
        StateError: the file cannot be written.
    """
    file = EndorsementFile.load(path) if path.exists() else EndorsementFile()
    standing = [open_endorsement(entry) for entry in file.endorsements]
    by_hash = {hashlib.sha256(policy.to_bytes()).hexdigest(): policy for policy in policies}
    added, used = [], dict.fromkeys(file.policies)
    for role, digests in values.image_digests.items():
        for sha256 in values.policy_sha256.get(role, ()):
            if sha256 not in by_hash:
                raise ConfigurationError(
                    f"Expected the policy {sha256[:12]}.. of the {role}, which is listed, but not given: repeat the "
                    f"options of `odp {role} run` that limit it, such as --founder and --upgrade of an aggregator"
                )
            used[PolicyEntry(by_hash[sha256].to_bytes())] = None
            for digest in digests:
                named = {"role": role, "image_digest": digest, "policy_sha256": sha256}
                endorsed = any(
                    endorsement.endorser == key.public.hex()
                    and endorsement.covers(**named, now=now)
                    and endorsement.not_after - now > VALID_SECONDS / 2
                    for endorsement in standing
                )
                if not endorsed:
                    start = int(now) - _BACKDATED_SECONDS
                    entry, _withdrawal = endorse(
                        key, **named, not_before=start, not_after=start + _BACKDATED_SECONDS + VALID_SECONDS
                    )
                    added.append(entry)
    EndorsementFile(tuple(used), (*file.endorsements, *added), file.withdrawals).save(path)
    return len(added)


def endorse_image(path: Path, policy: EnclavePolicy, image_digest: str, key: SigningKey, *, now: float) -> None:
    """Adds an endorsement of one image under one policy to the file ``path``, unless a fresh one is in it.

    Raises:
        ConfigurationError: the file, or the digest, is malformed.
        StateError: the file cannot be written.
    """
    values = ReferenceValues(
        roots=(),
        image_digests={policy.role: (image_digest,)},
        policy_sha256={policy.role: (policy.sha256.hex(),)},
        allow_emulated=False,
    )
    endorse_all(path, values, (policy,), key, now=now)


def upgrade_policy(root: Path) -> UpgradePolicy:
    """The parties that may approve an upgrade of the aggregator in ``root``: its own endorser, in its own log.

    The witnesses of the log are not named: the policy of an enclave stays as it is, and they may change.

    Raises StateError where the keys cannot be made or read.
    """
    log = note_key(root / LOG_KEY, name=f"odp.local/log/{secrets.token_hex(8)}")
    endorser = endorser_key(root / ENDORSER_KEY)
    pinned = LogPolicy(log_keys=(log.public(Kind.NOTE).text,), endorser_keys=(endorser.public.hex(),))
    return UpgradePolicy(log=pinned)


def withdraw_all(path: Path, image_digest: str, key: SigningKey) -> int:
    """Adds withdrawals of all endorsements of an image by ``key`` to the file ``path``; returns their number.

    Raises:
        ConfigurationError: the file is malformed, or no endorsement in it is of that image and key.
        StateError: the file cannot be written.
    """
    file = EndorsementFile.load(path)
    stated = [(entry, open_endorsement(entry)) for entry in file.endorsements]
    withdrawals_made = [
        withdrawal_of(entry, key)
        for entry, endorsement in stated
        if (endorsement.image_digest, endorsement.endorser) == (image_digest, key.public.hex())
    ]
    if not withdrawals_made:
        listed = sorted({endorsement.image_digest for _entry, endorsement in stated})
        raise ConfigurationError(
            f"Expected image_digest={image_digest!r} to be endorsed by this key in {path}"
            f"{_validate.nearest(image_digest, listed)}"
        )
    withdrawals = tuple(dict.fromkeys((*file.withdrawals, *withdrawals_made)))
    EndorsementFile(file.policies, file.endorsements, withdrawals).save(path)
    return len(withdrawals_made)

"""What the host of every enclave does at start: measure the code, and give the enclave its keys back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odp.crypto.hpke import DecryptionError
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.measurement import image_digest
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.errors import StateError
from odp.transport.logs import Log
from odp.transport.state_folder import StateFolder

_SEALED_KEYS = "enclave.sealed"


def start_identity(
    *,
    state: StateFolder,
    platform: Path | None,
    packages: Sequence[str],
    policy: EnclavePolicy,
    may_renew: bool,
    log: Log,
) -> EnclaveIdentity:
    """The enclave's identity on the platform in the folder ``platform`` (default: inside ``state``).

    ``may_renew`` says that nothing but the keys was ever sealed: then new code, another platform or another policy
    simply start with new keys, and devices attest again.

    Raises StateError where the keys cannot be opened and other sealed state hangs on them.
    """
    hardware = EmulatedPlatform.open(platform if platform is not None else state.path("platform"))
    digest = image_digest(packages)
    stored = state.read(_SEALED_KEYS)
    try:
        identity, sealed = EnclaveIdentity.restore_or_create(
            platform=hardware, image_digest=digest, policy=policy, sealed=stored
        )
    except DecryptionError as error:
        if not may_renew:
            raise StateError(
                f"state folder {state.root} was sealed by another version of the {policy.role}, under another policy "
                "or on another platform; run it as before, or start in an empty folder"
            ) from error
        log.warning("enclave_keys_renewed", image=digest)
        identity, sealed = EnclaveIdentity.restore_or_create(
            platform=hardware, image_digest=digest, policy=policy, sealed=None
        )
    if sealed != stored:
        state.write_atomically(_SEALED_KEYS, sealed)
    return identity

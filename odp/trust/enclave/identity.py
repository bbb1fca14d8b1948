"""The keys of one enclave, and the evidence that binds them to its measured code and policy."""

from __future__ import annotations

import json

from odp.crypto.hpke import HpkeKey
from odp.crypto.signing import SigningKey
from odp.trust.enclave.guest import Evidence, Guest, MonotonicCounter
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.sealing import seal, unseal

_CONTEXT = b"odp/v1/enclave-keys"


class EnclaveIdentity:
    """HPKE key (of one launch), signing key (releases are signed by it), sealing key (state is kept under it).

    The keys are made inside the enclave. The HPKE key never leaves it: with the launch, what was sealed to it is closed
    for good. The signing key leaves only sealed to measurement and policy: another image, another chip or a relaxed
    policy cannot open it, and then starts with a new one.
    """

    def __init__(self, *, guest: Guest, policy: EnclavePolicy, hpke: HpkeKey, signing: SigningKey) -> None:
        self.guest = guest
        self.image_digest = guest.image_digest
        self.policy = policy
        self.hpke = hpke
        self.signing = signing
        self.sealing_key = guest.sealing_key()

    @classmethod
    def restore_or_create(cls, *, guest: Guest, sealed: bytes | None) -> tuple[EnclaveIdentity, bytes]:
        """The identity in ``sealed``, or a new one if that is None; and the sealed key for the host to store.

        The policy is the one that ``guest`` was launched with. The keys are bound to the guest: once per launch.

        Raises:
            DecryptionError: ``sealed`` was made by another image or chip, under another policy, or was changed.
            ConfigurationError: the guest was launched with something that is not a policy.
            StateError: the guest has other keys already.
        """
        policy = EnclavePolicy.from_bytes(guest.policy)
        key = guest.sealing_key()
        # Bound to the policy: under a weaker one, a host could otherwise have releases signed as by the stricter one.
        context = _CONTEXT + policy.sha256
        if sealed is None:
            signing = SigningKey.generate()
            sealed = seal(key, json.dumps({"signing": signing.to_bytes().hex()}).encode(), context)
        else:
            signing = SigningKey.from_bytes(bytes.fromhex(json.loads(unseal(key, sealed, context))["signing"]))
        hpke = HpkeKey.generate()
        guest.bind_keys(hpke_public=hpke.public, signing_public=signing.public)
        return cls(guest=guest, policy=policy, hpke=hpke, signing=signing), sealed

    def evidence(self, nonce: bytes) -> Evidence:
        """Fresh evidence over ``nonce`` (16 to 64 bytes)."""
        return self.guest.evidence(nonce)

    def counter(self, name: str) -> MonotonicCounter:
        """A hardware counter of this enclave's chip that can only go up."""
        return self.guest.counter(name)

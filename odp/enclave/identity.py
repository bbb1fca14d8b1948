"""The keys of one enclave, and the evidence that binds them to its measured code and policy."""

from __future__ import annotations

import json

from odp.crypto.hpke import HpkeKey
from odp.crypto.signing import SigningKey
from odp.enclave.platform import Launched, MonotonicCounter, Platform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.sealing import seal, unseal

_CONTEXT = b"odp/v1/enclave-keys"


class EnclaveIdentity:
    """HPKE key (devices encrypt to it), signing key (releases are signed by it), sealing key (state is kept under it).

    The keys are made inside the enclave and leave it only sealed to its measurement and policy: another image, another
    chip or a relaxed policy cannot open them, and then starts with new keys.
    """

    def __init__(
        self,
        *,
        platform: Platform,
        launched: Launched,
        image_digest: str,
        policy: EnclavePolicy,
        hpke: HpkeKey,
        signing: SigningKey,
    ) -> None:
        self._platform = platform
        self._launched = launched
        self.image_digest = image_digest
        self.policy = policy
        self.policy_bytes = policy.to_bytes()
        self.hpke = hpke
        self.signing = signing
        self.sealing_key = platform.sealing_key(image_digest)

    @classmethod
    def restore_or_create(
        cls, *, platform: Platform, image_digest: str, policy: EnclavePolicy, sealed: bytes | None
    ) -> tuple[EnclaveIdentity, bytes]:
        """The identity under ``sealed``, or a new one where that is None; and the sealed bytes for the host to store.

        Raises DecryptionError when ``sealed`` was made by another image or chip, under another policy, or was changed.
        """
        key = platform.sealing_key(image_digest)
        # Bound to the policy: under a weaker one, a host could otherwise open what devices sent to the stricter one.
        context = _CONTEXT + policy.sha256
        if sealed is None:
            hpke, signing = HpkeKey.generate(), SigningKey.generate()
            kept = json.dumps({"hpke": hpke.to_bytes().hex(), "signing": signing.to_bytes().hex()}).encode()
            sealed = seal(key, kept, context)
        else:
            opened = json.loads(unseal(key, sealed, context))
            hpke = HpkeKey.from_bytes(bytes.fromhex(opened["hpke"]))
            signing = SigningKey.from_bytes(bytes.fromhex(opened["signing"]))
        launched = platform.launch(
            image_digest=image_digest,
            policy=policy.to_bytes(),
            hpke_public=hpke.public,
            signing_public=signing.public,
            name=policy.role,
        )
        identity = cls(
            platform=platform, launched=launched, image_digest=image_digest, policy=policy, hpke=hpke, signing=signing
        )
        return identity, sealed

    def token(self, nonce: bytes, now: float) -> str:
        """Evidence over ``nonce``: a signed token (odp/v1/attestation.proto)."""
        return self._launched.token(nonce, now)

    def counter(self, name: str) -> MonotonicCounter:
        """A hardware counter of this enclave that only goes up."""
        return self._platform.counter(name)
